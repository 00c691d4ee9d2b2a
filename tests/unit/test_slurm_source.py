"""Whose packages of Slurm a cluster takes: their names on every system, their source, and the user that they need."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleError

from clusterctl.inventory import slurm_source
from clusterctl.slurm import checks, versions
from tests.systems.rendering import SYSTEMS, Cluster, a_cluster, record
from tests.unit.test_preflight import _set, facts, three

SITE = {"url": "http://site.example/slurm", "key": "http://site.example/key.asc", "fingerprint": "A" * 40}
EPEL = {"slurm-slurmctld", "slurm-slurmdbd", "slurm"}, {"slurm-slurmd", "slurm", "slurm-pam_slurm"}, ["slurm-devel"]
NAMES = {
    ("Debian", "distribution"): (
        {"slurmctld", "slurmdbd", "slurm-client"},
        {"slurmd", "slurm-client", "libpam-slurm-adopt"},
        ["libslurm-dev"],
    ),
    # debian/control and slurm.spec of github.com/SchedMD/slurm at 284c3b95f0.
    ("Debian", "schedmd"): (
        {"slurm-smd-slurmctld", "slurm-smd-slurmdbd", "slurm-smd", "slurm-smd-client"},
        {"slurm-smd-slurmd", "slurm-smd", "slurm-smd-client", "slurm-smd-libpam-slurm-adopt"},
        ["slurm-smd-dev"],
    ),
    ("RedHat", "distribution"): EPEL,
    ("RedHat", "schedmd"): EPEL,
}
SYSUSERS = "/etc/sysusers.d/slurm.conf"


def own(packages: list[Any]) -> set[str]:
    """Return the names of the packages that are pinned and held: Slurm's own."""
    held = [package for package in packages if isinstance(package, dict)]
    assert all((package["hold"], package["version"]) == (True, "25.11.*") for package in held)
    return {package["name"] for package in held}


def cluster_of(tmp_path: Path, system: str, **changes: Any) -> Cluster:
    cluster = a_cluster(tmp_path, system)
    for host in cluster.hosts:
        cluster.set(host, slurm_head_version="25.11.*", **(changes if host == "head1" else {}))
    return cluster


def user_file(cluster: Cluster, role: str, host: str) -> str | None:
    files = cluster.role(role, host).value(f"__{role}_files")
    return next((str(file["content"]) for file in files if file["dest"] == SYSUSERS), None)


@pytest.mark.proves("roles", "Slurm's packages have the names of their source on every system, and are held.")
@pytest.mark.parametrize("source", ["distribution", "schedmd"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_slurm__by_source_and_system__has_its_names(tmp_path: Path, system: str, source: str) -> None:
    """Set for the head alone, it holds for the workers too."""
    cluster = cluster_of(tmp_path, system, slurm_head_source=source)
    on_head, on_worker, headers = NAMES[SYSTEMS[system].family, source]
    assert own(cluster.role("slurm_head", "head1").value("__slurm_head_packages")) == on_head
    found = cluster.role("slurm_worker", "gpu01").value("__slurm_worker_packages")
    found += cluster.role("slurm_logins", "gpu01").value("__slurm_logins_packages")
    assert own(found) == on_worker
    assert own(cluster.role("pyxis", "head1").value("__pyxis_packages")) == {*headers}
    restarts = cluster.role("slurm_head", "head1").value("__slurm_head_units")
    daemons = {word for unit in restarts for word in unit["restart_on"] if word.startswith("package:")}
    assert daemons == {f"package:{name}" for name in on_head if name.endswith(("ctld", "dbd"))}
    restart_on = cluster.role("slurm_worker", "gpu01").value("__slurm_worker_restart_on")
    assert [word for word in restart_on if word.startswith("package:")] == [
        f"package:{name}" for name in on_worker if name.endswith("slurmd")
    ]


@pytest.mark.parametrize(
    ("system", "source", "mpi", "library"),
    [
        ("debian-12", "distribution", "pmix", ["libpmix-dev"]),
        ("debian-13", "distribution", "pmix", []),
        ("debian-13", "schedmd", "pmix", ["libpmix-dev"]),
        ("ubuntu-24.04", "schedmd", "pmix", ["libpmix-dev"]),
        ("rocky-9", "distribution", "pmix", []),
        ("rocky-9", "schedmd", "pmi2", []),
    ],
)
def test_mpi__by_source_and_system__is_what_the_packages_have(
    tmp_path: Path, system: str, source: str, mpi: str, library: list[str]
) -> None:
    cluster = cluster_of(tmp_path, system, slurm_head_source=source)
    role = cluster.role("slurm_head", "head1")
    assert role.value("__slurm_head_mpi") == mpi
    assert f"\nMpiDefault={mpi}\n" in role.render(role.path / "templates/slurm.conf.j2")
    on_worker = cluster.role("slurm_worker", "gpu01").value("__slurm_worker_packages")
    assert [package for package in on_worker if isinstance(package, str)] == library
    given = cluster.role("slurm_head", "head1", slurm_head_mpi="none").value("__slurm_head_mpi")
    assert given == "none"


def test_names__of_a_site__replace_single_parts(tmp_path: Path) -> None:
    names = {"worker": ["our-slurmd"], "client": ["our-tools", "our-completion"]}
    cluster = cluster_of(tmp_path, "debian-13", slurm_head_package_names=names)
    assert own(cluster.role("slurm_worker", "gpu01").value("__slurm_worker_packages")) == {
        "our-slurmd",
        "our-tools",
        "our-completion",
    }
    assert "package:our-slurmd" in cluster.role("slurm_worker", "gpu01").value("__slurm_worker_restart_on")
    for wrong in ({"slurm_head_source": "ppa"}, {"slurm_head_package_names": {"workers": ["x"]}}):
        with pytest.raises(AnsibleError, match="expected"):
            str(cluster.role("slurm_head", "head1", **wrong).value("__slurm_head_given"))


@pytest.mark.proves("roles", "Where no package creates user slurm, all nodes get it with one number.")
@pytest.mark.parametrize(
    ("system", "changes", "number"),
    [
        ("debian-13", {}, None),
        ("debian-13", {"slurm_head_source": "schedmd"}, 64030),
        ("debian-13", {"slurm_head_user_id": 450}, 450),
        ("rocky-9", {}, 64030),
        ("rocky-9", {"slurm_head_source": "schedmd", "slurm_head_user_id": 450}, 450),
    ],
)
def test_user_slurm__that_no_package_creates__has_one_number(
    tmp_path: Path, system: str, changes: dict[str, Any], number: int | None
) -> None:
    cluster = cluster_of(tmp_path, system, **changes)
    line = f'u slurm {number} "Slurm workload manager" /var/lib/slurm\n' if number else None
    assert user_file(cluster, "slurm_head", "head1") == line
    assert user_file(cluster, "slurm_worker", "gpu01") == line


@pytest.mark.parametrize("system", ["debian-13", "rocky-9"])
def test_repository__of_the_head__is_every_nodes_and_waits_for_no_package(tmp_path: Path, system: str) -> None:
    cluster = cluster_of(tmp_path, system, slurm_head_source="schedmd", slurm_head_repository=SITE)
    for host in cluster.hosts:
        sources = [
            one for one in cluster.role("base", host).value("__base_slurm_repositories") if one["name"] == "slurm"
        ]
        assert sources == [{"name": "slurm", "priority": 10, **SITE}]
        assert cluster.role("base", host, group_names=["monitoring"]).value("__base_slurm_repositories") == []
        assert not cluster.role("packages", host, cluster_package_mirrors={}, cluster_ca_certificates=[]).value(
            "__packages_reachable"
        )


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({}, False),
        ({"slurm_head_source": "schedmd"}, True),
        ({"slurm_head_repository": SITE}, True),
        ({"slurm_head_source": "schedmd", "slurm_head_version": "25.11.*"}, False),
    ],
)
def test_release__of_another_source__has_to_be_stated(tmp_path: Path, changes: dict[str, Any], refused: bool) -> None:
    cluster = a_cluster(tmp_path, "debian-13")
    for host in cluster.hosts:
        cluster.set(host, **changes)
    problems = cluster.role("slurm_head", "head1", **changes).value("__slurm_head_problems")
    assert [problem.startswith("slurm_head_version is not set") for problem in problems] == [True] * refused


@pytest.mark.parametrize(
    ("system", "version", "restarts"),
    [
        ("debian-12", "", True),
        ("debian-13", "", False),
        ("debian-12", "25.11.*", False),
        ("rocky-9", "", True),
        ("rocky-9", "25.11.*", False),
    ],
)
def test_slurmd__before_23_11__is_restarted_for_new_nodes(
    tmp_path: Path, system: str, version: str, restarts: bool
) -> None:
    cluster = a_cluster(tmp_path, system)
    cluster.set("gpu01", slurm_head_version=version)
    assert cluster.role("slurm_worker", "gpu01").value("__slurm_worker_restarts") is restarts


def having(tmp_path: Path, variables: dict[str, Any], installed: dict[str, str], user: int | None) -> list[str]:
    """Return what preflight finds on a worker with these packages and this user."""
    cluster = three(tmp_path)
    hosts = [replace(host, variables={**host.variables, **variables}) for host in cluster.hosts]
    cluster = replace(cluster, hosts=tuple(hosts))
    told = facts(_set("node", "slurm_packages", to={"installed": installed, "offered": [], "user": user}), "gpu02")
    return [str(finding) for finding in checks.sources(cluster, {"gpu02": told})]


@pytest.mark.proves("preflight", "Slurm's packages of another source, and a user slurm of another number, are refused.")
@pytest.mark.parametrize(
    ("variables", "installed", "user", "found"),
    [
        ({}, {}, None, ""),
        ({}, {"slurmd": "24.11.5-4", "munge": "0.5.16-1"}, 64030, ""),
        (
            {},
            {},
            450,
            "UID of the user slurm: got 450, expected 64030 (if all nodes have it, set slurm_head_user_id: 450; ",
        ),
        ({"slurm_head_user_id": 450}, {}, 450, ""),
        ({"slurm_head_user_id": 450}, {}, 64030, "UID of the user slurm: got 64030, expected 450"),
        ({"slurm_head_source": "schedmd"}, {"slurm-smd-slurmd": "25.11.1-1"}, 64030, ""),
        (
            {"slurm_head_source": "schedmd"},
            {"slurmd": "24.11.5-4"},
            None,
            "has slurmd, which are not from schedmd (uninstall them, or correct slurm_head_source)",
        ),
        ({}, {"slurm-smd-slurmd": "25.11.1-1"}, None, "has slurm-smd-slurmd, which are not from distribution"),
        ({"slurm_head_package_names": {"worker": ["our-slurmd"]}}, {"our-slurmd": "1"}, None, ""),
    ],
)
def test_node__with_another_source_or_user__is_refused(
    tmp_path: Path, variables: dict[str, Any], installed: dict[str, str], user: int | None, found: str
) -> None:
    told = having(tmp_path, variables, installed, user)
    assert len(told) == bool(found)
    assert all(found in one for one in told)


def test_probe__is_asked_for_all_daemons_and_the_own_worker(tmp_path: Path) -> None:
    cluster = three(tmp_path)
    own = {"slurm_head_source": "schedmd", "slurm_head_package_names": {"controller": ["our-ctld"]}}
    hosts = [replace(host, variables={**host.variables, **own}) for host in cluster.hosts]
    cluster = replace(cluster, hosts=tuple(hosts))
    daemons = [name for part in slurm_source.DAEMONS for name in slurm_source.every(cluster, part)]
    asked = checks.probe_options(cluster, cluster.hosts[0], daemons)
    assert {"slurmctld", "slurm-slurmctld", "slurm-smd-slurmctld", "our-ctld", "slurmd"} <= {*asked["daemons"]}
    assert asked["worker"] == ["slurm-smd-slurmd", "slurm-slurmd"]
    alone = replace(cluster.hosts[0], groups=frozenset({"monitoring"}))
    assert checks.probe_options(cluster, alone, daemons) == {}


@pytest.mark.parametrize(("version", "by_restart"), [("", True), ("25.11.*", False), ("22.05.*", True)])
def test_new_nodes__by_the_release_of_the_source__come_without_a_restart(
    tmp_path: Path, version: str, by_restart: bool
) -> None:
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware/head1.json").write_text(json.dumps(record("head1", 0, "debian-12")), encoding="utf-8")
    known = three(tmp_path)
    hosts = [replace(host, variables={**host.variables, "slurm_head_version": version}) for host in known.hosts]
    assert versions.learns_by_restart(replace(known, hosts=tuple(hosts))) is by_restart


def test_new_nodes__of_a_cluster_with_one_old_worker__need_a_restart_there(tmp_path: Path) -> None:
    """Slurm 23.11 on Ubuntu 24.04 supports 22.05 on Debian 12."""
    (tmp_path / "hardware").mkdir()
    cluster = three(tmp_path)
    for number, host in enumerate(cluster.hosts):
        text = json.dumps(record(host.name, number, "ubuntu-24.04"))
        (tmp_path / f"hardware/{host.name}.json").write_text(text, encoding="utf-8")
    assert not versions.learns_by_restart(cluster)
    old = cluster.in_group("slurm_workers")[-1].name
    (tmp_path / f"hardware/{old}.json").write_text(json.dumps(record(old, 1, "debian-12")), encoding="utf-8")
    assert versions.learns_by_restart(cluster)
