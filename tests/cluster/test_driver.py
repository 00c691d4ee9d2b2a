"""NVIDIA's driver on a node without simulation, which has none.

It is a container, so no module is ever loaded: the kernel to build for is named, as for an image of a server. Vendor
packages of our own stand in for NVIDIA's, in its repository's layout; Debian's own are real, and `long`.
"""

import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from clusterctl.lab.image import HERE
from tests.cluster.lab import ALICE, TestLab, fresh
from tests.faults.injury import gateway, latest_run
from tests.faults.repository import repository
from tests.labs import REPOSITORY

NODE = "gpu01"
KERNEL = "6.99.9-lab"
KEY = "8793F200.pub"
OLD, NEW, NEXT = "580.95.05", "580.105.08", "590.48.01"
GDRCOPY = "2.5.1"
PLAY_LIMIT = 800
"""Seconds after which a play is given up; Debian's own drivers take minutes to compile."""
OTHER_PRINT = "0123456789ABCDEF0123456789ABCDEF01234567"
PLAY = """\
- name: Set up the package sources, then a role
  hosts: gpu01
  gather_facts: true
  tags: facts # ansible.cfg skips what has no tag of its own
  pre_tasks:
    - name: Set up the package sources
      ansible.builtin.include_role: {name: base, tasks_from: sources}
  roles: [%s]
"""
DKMS = """\
PACKAGE_NAME="nvidia-open"
PACKAGE_VERSION="%s"
BUILT_MODULE_NAME[0]="nvidia"
DEST_MODULE_LOCATION[0]="/updates/dkms"
MAKE[0]="gcc -c -o nvidia.ko nvidia.c"
CLEAN="true"
AUTOINSTALL="yes"
"""
MODULE = 'char version[] __attribute__((section(".modinfo"))) = "version=%s";\n'
BROKEN = "int resize(int, int);\nint broken = resize(1);\n"
# As the packages of Debian and of NVIDIA do it.
POSTINST = "#!/bin/sh -e\n/usr/lib/dkms/common.postinst nvidia-open %s /usr/share/nvidia-open '' $2\n"
# What the lab's simulated driver consists of, where it waits, and how a package of NVIDIA's name brings it back.
SIMULATED = "nvidia-smi libnvidia-ml1-simulated"
SET_ASIDE = f"""
dpkg -L {SIMULATED} | while read -r path; do if [ -L "$path" ] || [ ! -d "$path" ]; then echo "$path"; fi; done |
    tar --create --absolute-names --file=/opt/driver.tar --files-from=-
"""
BRING_BACK = (
    "#!/bin/sh -e\ntar --extract --absolute-names --file=/opt/driver.tar\nldconfig\n/usr/libexec/simulated-gpus\n"
)
PRERM = "#!/bin/sh -e\ndkms remove -m nvidia-open -v %s --all\n"
HELD = ("linux-headers-" + KERNEL, "nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-persistenced")


@pytest.fixture(scope="module")
def lab() -> Iterator[TestLab]:
    """A worker as a server is without a driver: the simulated one is taken off it."""
    with fresh("driver", "--gpus", "0", workers=1) as lab:
        lab.declare(f"cluster_no_proxy: [{gateway(lab)}]")
        lab.root(NODE, f"{SET_ASIDE}\ndpkg --purge {SIMULATED}")
        yield lab


def pack(folder: Path, name: str, version: str, files: Mapping[str, str], **control: str) -> None:
    """Make a package of these files."""
    root = folder.parent / f"{name}-{version}"
    fields = {"Package": name, "Version": version, "Architecture": "all", "Maintainer": "nobody <n@example.org>"}
    fields |= {"Description": "stands in for NVIDIA's", **{key.title(): value for key, value in control.items()}}
    for path, content in {**files, "DEBIAN/control": "".join(f"{k}: {v}\n" for k, v in fields.items())}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
        (root / path).chmod(0o755 if path.startswith("DEBIAN/p") or "/bin/" in path else 0o644)
    argv = ["dpkg-deb", "--root-owner-group", "--build", str(root), str(folder / f"{name}_{version}.deb")]
    subprocess.run(argv, check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver of three versions, the oldest of which does not compile, and a kernel's headers."""
    folder = tmp_path_factory.mktemp("vendor") / "packages"
    folder.mkdir()
    build = f"lib/modules/{KERNEL}/build"
    headers = {f"{build}/{path}": "" for path in ("Makefile", ".config", "include/config/auto.conf")}
    pack(folder, f"linux-headers-{KERNEL}", "1", headers)
    pack(folder, "nvidia-persistenced", f"{NEW}-1", {})
    for version in (OLD, NEW, NEXT):
        pack(folder, "libcuda1", f"{version}-1", {})
        files = {"DEBIAN/postinst": BRING_BACK} if version == NEXT else {}
        pack(folder, "nvidia-driver-cuda", f"{version}-1", files, depends="libcuda1")
        source = f"usr/src/nvidia-open-{version}"
        code = BROKEN if version == OLD else MODULE % version
        files = {
            f"{source}/dkms.conf": DKMS % version,
            f"{source}/nvidia.c": code,
            "DEBIAN/postinst": POSTINST % version,
            "DEBIAN/prerm": PRERM % version,
        }
        pack(folder, "nvidia-kernel-open-dkms", f"{version}-1", files, depends="dkms")
    source = f"usr/src/gdrdrv-{GDRCOPY}"
    files = {
        f"{source}/dkms.conf": DKMS % GDRCOPY,
        f"{source}/gdrdrv.c": MODULE % GDRCOPY,
        "DEBIAN/postinst": POSTINST % GDRCOPY,
        "DEBIAN/prerm": PRERM % GDRCOPY,
    }
    files = {path: re.sub("nvidia(-open)?", "gdrdrv", text) for path, text in files.items()}
    pack(folder, "gdrdrv-dkms", f"{GDRCOPY}-1", files, depends="dkms")
    pack(folder, "libgdrapi", f"{GDRCOPY}-1", {})
    for toolkit in ("12.8", "13.0"):
        name, place = toolkit.replace(".", "-"), f"usr/local/cuda-{toolkit}"
        pack(folder, f"cuda-toolkit-{name}", f"{toolkit}.1-1", {f"{place}/bin/nvcc": f"#!/bin/sh\necho {toolkit}\n"})
        pack(folder, f"cuda-compat-{name}", f"{NEW}-1", {f"{place}/compat/libcuda.so.1": ""})
    for cuda in ("cuda12.9", "cuda13.0"):
        version = f"2.28.3-1+{cuda}"
        pack(folder, "libnccl2", version, {})
        pack(folder, "libnccl-dev", version, {}, depends=f"libnccl2 (= {version})")
    return folder


@contextmanager
def vendor(lab: TestLab, packages: Path, fault: str = "none") -> Iterator[dict[str, Any]]:
    """NVIDIA's repository as far as the role can tell; yields what the inventory says to use it."""
    with repository(gateway(lab), fault, packages, KEY) as (url, key):
        yield {
            "cluster_package_mirrors": {"nvidia": f"{url}/compute/cuda/repos"},
            "nvidia_driver_key_fingerprint": fingerprint(key),
            "nvidia_driver_kernel": KERNEL,
        }


def fingerprint(key: str) -> str:
    """A public key's."""
    argv = ["gpg", "--show-keys", "--with-colons"]
    shown = subprocess.run(argv, input=key, capture_output=True, text=True, check=True, timeout=60).stdout
    found = re.search(r"(?m)^fpr:+([0-9A-F]{40}):", shown)
    assert found is not None
    return found.group(1)


def play(
    lab: TestLab, folder: Path, variables: Mapping[str, Any], *options: str, role: str = "nvidia_driver"
) -> tuple[int, str]:
    """Play a role to the node; returns Ansible's exit status and what it printed."""
    (folder / "play.yml").write_text(PLAY % role)
    if not (folder / "group_vars").exists():
        (folder / "group_vars").symlink_to(REPOSITORY / "playbooks/group_vars")
    argv = ["env", f"ANSIBLE_CONFIG={REPOSITORY / 'ansible.cfg'}", "ansible-playbook", "-i", str(lab.inventory)]
    argv += [str(folder / "play.yml"), "--extra-vars", json.dumps(variables), *options]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=PLAY_LIMIT
    )
    return done.returncode, done.stdout + done.stderr


def installed(lab: TestLab) -> dict[str, str]:
    """The node's packages."""
    rows = lab.ssh(NODE, "dpkg-query", "--show", "--showformat", r"'${db:Status-Abbrev}\t${Package}\t${Version}\n'")
    found = (row.split("\t") for row in rows.splitlines())
    return {name: version for status, name, version in found if status.strip()[1:] == "i"}


def built(lab: TestLab, kernel: str, module: str = "nvidia") -> list[str]:
    """The versions of the driver's modules, or of another, that lie there for a kernel."""
    files = f"$(find /lib/modules/{kernel} -path '*/updates/*' -name '{module}*.ko*')"
    return sorted(set(lab.root(NODE, f"for file in {files}; do modinfo -F version $file; done").split()))


@pytest.mark.proves("driver", "`--check` reports the driver's package source and installs nothing.")
def test_a_dry_run_says_what_would_come_and_changes_nothing(lab: TestLab, packages: Path, tmp_path: Path) -> None:
    before = installed(lab)
    with vendor(lab, packages) as variables:
        status, output = play(lab, tmp_path, variables, "--check", "--diff")
    assert status == 0, output
    assert "nvidia.sources" in output
    assert "/debian13/x86_64/" in output
    assert installed(lab) == before


@pytest.mark.proves("driver", "A wrong signature, key or fingerprint of the driver's source installs nothing.")
@pytest.mark.proves(
    "driver", "A driver's source without a signature is refused; nothing is installed.", only=["unsigned"]
)
@pytest.mark.parametrize(
    "fault",
    [
        "signature",
        "fingerprint",
        pytest.param("key", marks=pytest.mark.long),
        pytest.param("unsigned", marks=pytest.mark.long),
    ],
)
def test_packages_that_the_pinned_key_has_not_signed_are_refused(
    lab: TestLab, packages: Path, tmp_path: Path, fault: str
) -> None:
    before = installed(lab)
    with vendor(lab, packages, fault) as variables:
        given = variables | ({"nvidia_driver_key_fingerprint": OTHER_PRINT} if fault == "fingerprint" else {})
        status, output = play(lab, tmp_path, given)
    assert status != 0
    told = f"expected {OTHER_PRINT}" if fault == "fingerprint" else "a source cannot be trusted|is not signed"
    assert re.search(told, output), output
    assert installed(lab) == before


@pytest.mark.proves("driver", "The branch's newest driver is built for the named kernel and held.")
@pytest.mark.proves("driver", "A second run of the driver's role changes nothing.")
def test_the_newest_of_the_branch_is_built_for_the_kernel_and_held(
    lab: TestLab, packages: Path, tmp_path: Path
) -> None:
    with vendor(lab, packages) as variables:
        variables["nvidia_driver_branch"] = "580"
        status, output = play(lab, tmp_path, variables)
        assert status == 0, output
        here = installed(lab)
        assert {here[name] for name in ("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "libcuda1")} == {f"{NEW}-1"}
        assert built(lab, KERNEL) == [NEW]
        assert set(HELD) <= set(lab.ssh(NODE, "apt-mark", "showhold").split())
        # Neither the branch's pin nor anything else than the hold keeps it.
        free = "apt-get --simulate -o Dir::Etc::PreferencesParts=/nowhere dist-upgrade"
        assert not re.search("(?m)^Inst .*nvidia-", lab.root(NODE, free))
        assert re.search(f"(?m)^Inst .*nvidia-.*{NEXT}", lab.root(NODE, f"{free} --ignore-hold"))
        status, output = play(lab, tmp_path, variables)
        assert status == 0, output
        assert "changed=0" in output


@pytest.mark.proves("driver", "A failed driver build reports the compiler's line and leaves dpkg consistent.")
def test_a_driver_that_does_not_build_is_told_by_the_compilers_line(
    lab: TestLab, packages: Path, tmp_path: Path
) -> None:
    with vendor(lab, packages) as variables:
        # Nothing is loaded here that an upgrade would have to exchange.
        status, output = play(lab, tmp_path, variables | {"nvidia_driver_version": OLD})
        assert status != 0
        assert f"driver {OLD} does not build for kernel {KERNEL}" in output
        assert re.search(r"nvidia\.c:2:\d+: error: too few arguments to function .*resize", output), output
        assert "nvidia_driver_source: distribution" in output
        assert lab.root(NODE, "apt-get check >/dev/null; dpkg --audit") == ""
        status, output = play(lab, tmp_path, variables | {"nvidia_driver_version": NEW})
        assert status == 0, output
        assert built(lab, KERNEL) == [NEW]


@pytest.mark.proves("driver", "GDRCopy's module is built with the driver.")
@pytest.mark.proves("packages", "A renewed repository key is fetched again.")
@pytest.mark.long
def test_gdrcopy_is_built_with_it_and_comes_from_a_source_whose_key_was_renewed(
    lab: TestLab, packages: Path, tmp_path: Path
) -> None:
    """The node has the key as it was before the subkey that signs now."""
    with vendor(lab, packages, "renewed") as variables:
        variables["nvidia_driver_branch"] = "580"
        mirror, place = variables["cluster_package_mirrors"]["nvidia"], "/etc/apt/keyrings/nvidia.asc"
        lab.root(NODE, f"""python3 -c 'import urllib.request as r; r.urlretrieve("{mirror}/old.asc", "{place}")'""")
        old = lab.root(NODE, f"cat {place}")
        status, output = play(lab, tmp_path, variables | {"nvidia_driver_gdrcopy": True})
        assert status == 0, output
        assert lab.root(NODE, f"cat {place}") != old
        assert built(lab, KERNEL, "gdrdrv") == [GDRCOPY]
        assert "gdrdrv" in lab.root(NODE, "cat /etc/modules-load.d/clusterctl-nvidia.conf")
        status, output = play(lab, tmp_path, variables | {"nvidia_driver_gdrcopy": True})
        assert status == 0, output
        assert "changed=0" in output


@pytest.mark.proves("driver", "Users choose among two installed CUDA toolkits with `module load`.")
@pytest.mark.proves("driver", "An unknown CUDA release is refused.")
def test_users_choose_among_toolkits_side_by_side(lab: TestLab, packages: Path, tmp_path: Path) -> None:
    given = {"nvidia_cuda_toolkits": ["12.8", "13.0"], "nvidia_cuda_compat": ["13.0"]}
    with vendor(lab, packages) as variables:
        status, output = play(lab, tmp_path, variables | given, role="nvidia_cuda")
        assert status == 0, output
        assert module(lab, "cuda", "nvcc").split() == ["12.8"]
        assert module(lab, "cuda/13.0", "nvcc; echo $CUDA_HOME $LD_LIBRARY_PATH").split() == [
            "13.0",
            "/usr/local/cuda-13.0",
            "/usr/local/cuda-13.0/compat:/usr/local/cuda-13.0/lib64",
        ]
        assert installed(lab)["libnccl-dev"] == "2.28.3-1+cuda13.0"
        status, output = play(lab, tmp_path, variables | given, role="nvidia_cuda")
        assert status == 0, output
        assert "changed=0" in output
        refused = {"nvidia_cuda_toolkits": ["99.9"]}
        status, output = play(lab, tmp_path, variables | refused, role="nvidia_cuda")
        assert status != 0
        assert "CUDA 99.9 is unknown" in output


@pytest.mark.proves(
    "containers",
    "A Docker source with wrong signature or fingerprint installs nothing.",
    only=["signature", "fingerprint"],
)
@pytest.mark.proves(
    "containers", "Packages in Docker's layout install from a signed source; rerun changes nothing.", only=["none"]
)
@pytest.mark.parametrize("fault", ["signature", "fingerprint", "none"])
def test_dockers_own_packages_come_from_a_source_that_its_key_has_signed(
    lab: TestLab, tmp_path: Path, fault: str
) -> None:
    """Packages of our own stand for them, in its repository's layout; the daemon only sleeps."""
    unit = "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
    files = {"usr/bin/dockerd": "#!/bin/sh\n", "lib/systemd/system/docker.service": unit}
    names = ("docker-ce", "docker-ce-cli", "containerd.io", "docker-buildx-plugin", "docker-compose-plugin")
    folder = tmp_path / "packages"
    folder.mkdir()
    for name in names:
        pack(folder, name, "29.1.0", files if name == "docker-ce" else {})
    lab.root(NODE, "rm -f /etc/apt/sources.list.d/nvidia.sources")  # its server, at this address, is gone
    before = installed(lab)
    with repository(gateway(lab), fault, folder, "gpg") as (url, key):
        given = {
            "containers_source": "docker",
            "containers_repository_url": f"{url}/linux",
            "containers_key_fingerprint": OTHER_PRINT if fault == "fingerprint" else fingerprint(key),
        }
        status, output = play(lab, tmp_path, given, role="containers, docker")
        if fault == "none":
            assert status == 0, output
            assert installed(lab).items() >= dict.fromkeys(names, "29.1.0").items()
            assert f"{url}/linux/debian trixie/stable" in lab.root(NODE, "apt-cache policy docker-ce")
            status, output = play(lab, tmp_path, given, role="containers, docker")
            assert status == 0, output
            assert "changed=0" in output
        else:
            assert status != 0
            told = f"expected {OTHER_PRINT}" if fault == "fingerprint" else "a source cannot be trusted"
            assert told in output
            assert installed(lab) == before
    lab.root(NODE, "rm -f /etc/apt/sources.list.d/docker.sources")
    lab.root(NODE, f"apt-get -qq purge {' '.join({*names} & installed(lab).keys())}")


def module(lab: TestLab, name: str, command: str) -> str:
    """What an ordinary user's login shell prints with a module loaded."""
    return lab.ssh(NODE, "bash", "--login", "-c", shlex.quote(f"module load {name} && {command}"))


@pytest.mark.proves("driver", "Debian's real driver that does not build is refused with the compiler's line.")
@pytest.mark.proves("driver", "Debian's real driver that builds is installed and held; rerun changes nothing.")
@pytest.mark.proves("driver", "A failed build of Debian's driver names a choice; dpkg stays consistent.")
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_debians_drivers_one_that_builds_and_one_that_does_not(lab: TestLab, tmp_path: Path) -> None:
    """Real packages, for the kernel that Debian carries: some minutes of compiling each."""
    headers = lab.root(NODE, "apt-get -qq update; apt-cache depends linux-headers-amd64")
    found = re.search(r"linux-headers-(\d\S+)", headers)
    assert found is not None
    kernel = found.group(1)
    variables = {"nvidia_driver_source": "distribution", "nvidia_driver_kernel": kernel}
    status, output = play(lab, tmp_path, variables)
    assert status != 0
    assert re.search(rf"driver 550\S+ does not build for kernel {re.escape(kernel)}", output), output
    assert re.search(r"nvidia/[\w-]+\.[ch]:\d+:\d+: error: ", output), output
    assert "nvidia_driver_source: nvidia" in output
    assert lab.root(NODE, "apt-get check >/dev/null; dpkg --audit") == ""
    assert built(lab, kernel) == []
    variables |= {"nvidia_driver_branch": "535", "nvidia_driver_modules": "proprietary"}
    status, output = play(lab, tmp_path, variables)
    assert status == 0, output
    here = installed(lab)
    assert built(lab, kernel) == [here["nvidia-tesla-535-kernel-dkms"].partition("-")[0]]
    assert "nvidia-open-kernel-dkms" not in here
    assert "nvidia-tesla-535-kernel-dkms" in lab.ssh(NODE, "apt-mark", "showhold").split()
    status, output = play(lab, tmp_path, variables)
    assert status == 0, output
    assert "changed=0" in output


@pytest.mark.proves("driver", "A node whose driver does not build stays drained until another choice.")
@pytest.mark.proves("driver", "A bootstrap after the new driver choice changes nothing.")
@pytest.mark.long
def test_a_node_whose_driver_does_not_build_stays_out_of_service(lab: TestLab, packages: Path) -> None:
    """Through the whole program, until another choice brings it back."""
    choice = lab.inventory.parent / "host_vars" / f"{NODE}.yml"
    choice.parent.mkdir(exist_ok=True)
    with vendor(lab, packages) as variables:
        choice.write_text(json.dumps(variables | {"nvidia_driver_version": OLD}))
        told = json.dumps(lab.run("bootstrap", expect=4)["failures"])
        assert "nvidia.c:2:14: error: too few arguments to function" in told
        assert "nvidia_driver_source: distribution" in told
        assert "bootstrap" in json.loads(lab.root("head1", "slurm-drain"))[NODE]
        choice.write_text(json.dumps(variables | {"nvidia_driver_version": NEW}))
        lab.run("bootstrap")
        assert json.loads(lab.root("head1", "slurm-drain")) == {}
        again = lab.run("bootstrap")
        assert {host["changed"] for host in again["hosts"].values()} == {0}


@pytest.mark.proves("driver", "GPUs that a new driver shows are recorded and in Slurm after one run.")
@pytest.mark.long
def test_bootstrap__driver_brings_gpus_to_light__slurm_has_them_at_once(lab: TestLab, packages: Path) -> None:
    """One run installs the driver, records the GPUs that it shows, and gives them to Slurm; the GPUs are simulated."""
    choice = lab.inventory.parent / "host_vars" / f"{NODE}.yml"
    choice.parent.mkdir(exist_ok=True)
    record = lab.inventory.parent / "hardware" / f"{NODE}.json"
    gres = ("sinfo", "--noheader", f"--nodes={NODE}", "--format=%G")
    # The server of the test before has ended, and preflight refuses a node with a source that does not answer.
    lab.root(NODE, "grep -rl /compute/cuda/ /etc/apt/sources.list.d | xargs rm -f")
    with vendor(lab, packages) as variables:
        choice.write_text(json.dumps(variables | {"nvidia_driver_version": NEW}))
        lab.run("bootstrap")
        assert json.loads(record.read_text())["gpus"] == []
        assert lab.ssh("head1", *gres).strip() == "(null)"
        profile = (HERE / "nvml/profiles/a100-sxm4-80gb.conf").read_text()
        text = f"{profile}gpus=2\nnode_seed=driver/{NODE}\n"
        lab.ssh(NODE, "sudo", "tee", "/etc/simulated-nvml.conf", stdin=text)

        choice.write_text(json.dumps(variables | {"nvidia_driver_version": NEXT}))
        lab.run("bootstrap")
        events = [json.loads(line) for line in (latest_run(lab) / "events.jsonl").read_text().splitlines()]
        assert [event for event in events if event.get("status") == "failed"] == []
        assert [gpu["model"] for gpu in json.loads(record.read_text())["gpus"]] == ["NVIDIA A100-SXM4-80GB"] * 2
        assert lab.ssh("head1", *gres).strip().startswith("gpu:a100:2")
        gpus = lab.ssh("head1", *ALICE, "srun", "--chdir=/", "--gres=gpu:2", "nvidia-smi", "-L")
        assert len(re.findall(r"(?m)^GPU \d: ", gpus)) == 2
        lab.unchanged()
