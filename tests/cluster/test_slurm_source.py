"""Slurm from a site's own signed repository, under the names that SchedMD's packages have.

The packages are a stand-in: Debian's own files, put together as debian/control of SchedMD has them (slurm-smd has the
library and all plugins), without Debian's maintainer scripts, so that nothing but the roles makes the user slurm.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.lab import TestLab, fresh, podman
from tests.faults.injury import container, fails, gateway, in_service, inventory_with
from tests.faults.repository import repository

pytestmark = pytest.mark.long

# slurmd-wlm and its like get the plain names, which Debian's scripts make by update-alternatives.
REPACK = r"""
rm -rf /tmp/smd; mkdir -p /tmp/smd/new; cd /tmp/smd
apt-get -qq update
version=$(apt-cache show --no-all-versions slurmctld | sed -n 's/^Version: //p')
upstream=${version%%-*}
repack() { # NAME CONFLICTS DEPENDS PACKAGE...
  name=$1 conflicts=$2 depends=$3; shift 3
  rm -rf root; mkdir -p root/DEBIAN
  for package in "$@"; do
    apt-get -qq download "$package=$version"
    dpkg-deb --extract "$package"_*.deb root
    own=$(dpkg-deb --field "$package"_*.deb Depends | tr ',' '\n' | grep -vE '^ *(slurm|ucf|adduser|munge)')
    own=$(echo "$own" | paste -sd ,)
    depends="$depends${own:+,$own}"
  done
  rm -rf root/etc/default root/etc/slurm/plugstack.conf.d
  for path in root/usr/sbin/*-wlm; do [ ! -e "$path" ] || mv "$path" "${path%-wlm}"; done
  printf '%s\n' "Package: $name" "Version: $upstream-1" "Architecture: amd64" "Maintainer: a site <site@example.org>" \
    "Depends: ${depends#,}" "Conflicts: $conflicts" "Description: a stand-in" > root/DEBIAN/control
  dpkg-deb --root-owner-group -Zgzip -z1 --build root "new/${name}_$upstream-1_amd64.deb" >/dev/null
}
same="slurm-smd (= $upstream-1)"
repack slurm-smd "slurm-wlm-basic-plugins, slurm-wlm-mysql-plugin" "" slurm-wlm-basic-plugins slurm-wlm-mysql-plugin
repack slurm-smd-client slurm-client "$same" slurm-client
repack slurm-smd-slurmctld slurmctld "$same" slurmctld
repack slurm-smd-slurmdbd slurmdbd "$same" slurmdbd
repack slurm-smd-slurmd slurmd "$same" slurmd
repack slurm-smd-libpam-slurm-adopt libpam-slurm-adopt "" libpam-slurm-adopt
"""
OWN = {
    "head1": {"slurm-smd", "slurm-smd-client", "slurm-smd-slurmctld", "slurm-smd-slurmdbd"},
    "gpu01": {"slurm-smd", "slurm-smd-client", "slurm-smd-slurmd", "slurm-smd-libpam-slurm-adopt"},
}


def fingerprint(key: str) -> str:
    argv = ["gpg", "--show-keys", "--with-colons"]
    shown = subprocess.run(argv, input=key, capture_output=True, text=True, check=True, timeout=60).stdout
    found = re.search(r"(?m)^fpr:+([0-9A-F]{40}):", shown)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestLab]:
    """Empty nodes whose inventory takes Slurm from a site's repository."""
    folder: Path = tmp_path_factory.mktemp("packages") / "new"
    with fresh("smd", "--gpus", "2", workers=1) as lab:
        lab.root("gpu01", REPACK)
        podman("cp", f"{container(lab, 'gpu01')}:/tmp/smd/new", str(folder))
        with repository(gateway(lab), packages=folder, key_name="site.asc") as (url, key):
            site = f"{{url: {url}, key: {url}/site.asc, fingerprint: {fingerprint(key)}}}"
            lab.declare(
                "slurm_head_source: schedmd",
                'slurm_head_version: "24.11.*"',
                f"slurm_head_repository: {site}",
                f"cluster_no_proxy: [{gateway(lab)}]",
            )
            yield lab


def packages(lab: TestLab, node: str) -> dict[str, str]:
    """Return Slurm's packages on a node, each with dpkg's selection: install or hold."""
    shown = lab.root(node, r"dpkg-query --show --showformat '${Package} ${db:Status-Want} ${db:Status-Status}\n'")
    rows = [row for row in shown.splitlines() if "slurm" in row]
    found = [row.split() for row in rows]
    return {name: want for name, want, status in found if status == "installed" and not name.startswith("libslurm")}


@pytest.mark.proves("bootstrap", "A user slurm of another number is refused before a node is changed.")
def test_bootstrap__with_a_user_slurm_of_another_number__is_refused(lab: TestLab) -> None:
    lab.root("gpu01", "useradd --system --uid 450 slurm")
    try:
        told = fails(lab, 3)
        assert "gpu01: slurm user: UID of the user slurm: got 450, expected 64030" in " ".join(told.split())
        assert packages(lab, "head1") == {}
    finally:
        lab.root("gpu01", "userdel slurm")


@pytest.mark.proves("bootstrap", "Slurm comes from a signed repository with SchedMD's names (stand-in), held.")
def test_bootstrap__from_a_repository_with_schedmds_names__takes_jobs(lab: TestLab) -> None:
    lab.run("bootstrap")
    for node, names in OWN.items():
        assert packages(lab, node) == dict.fromkeys(names, "hold")
        assert lab.root(node, "id --user slurm; id --group slurm").split() == ["64030", "64030"]
    assert in_service(lab) == {"gpu01": "idle"}
    told = lab.ssh("head1", "sudo", "--login", "--user", "alice", "srun", "--quiet", "--gres=gpu:2", "hostname")
    assert told.strip() == "gpu01"
    lab.unchanged()


@pytest.mark.proves("preflight", "A node with Slurm's packages of another source is refused.")
def test_bootstrap__after_a_change_of_the_source__is_refused(lab: TestLab) -> None:
    text = lab.inventory.read_text()
    lab.inventory.write_text(text.replace("slurm_head_source: schedmd", "slurm_head_source: distribution"))
    try:
        told = " ".join(fails(lab, 3).split())
        assert "slurm source: has slurm-smd-slurmctld, which are not from distribution" in told
        assert "slurm source: has slurm-smd-slurmd, which are not from distribution" in told
    finally:
        lab.inventory.write_text(text)
    with inventory_with(lab, "base_journal_max_size: 1G"):
        lab.run("bootstrap")
    assert packages(lab, "gpu01").keys() == OWN["gpu01"]
