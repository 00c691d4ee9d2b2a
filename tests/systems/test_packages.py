"""Every package name and pin of every role, on every supported system, against what its repositories have."""

from pathlib import Path

import pytest

from tests.systems import packages
from tests.systems.packages import REPOSITORIES, VARIANTS, Request, judge, markdown, repository, requests, variant
from tests.systems.rendering import CONTENT, SYSTEMS, a_cluster, load


@pytest.mark.proves("roles", "No role asks for a package or pin that its system is known to lack.")
@pytest.mark.parametrize("system", SYSTEMS)
def test_packages__of_all_roles__are_in_the_systems_repositories(system: str) -> None:
    asked = requests(system)
    assert len(asked) > 50, "roles are seen to ask for packages"
    wrong = [
        f"{one.role}: {why}" for one in sorted(asked) for verdict, why in [judge(system, one)] if verdict == "wrong"
    ]
    assert wrong == []


@pytest.mark.proves("roles", "Package names that could not be verified are listed in docs/packages.md.")
def test_page__of_what_is_not_known__is_current() -> None:
    page = (CONTENT / "docs/packages.md").read_text(encoding="utf-8")
    assert page == markdown(), "run python -m tests.systems.packages > docs/packages.md"


@pytest.mark.parametrize("name", sorted({name for names in REPOSITORIES.values() for name in names}))
def test_repository__each_fact__has_its_source(name: str) -> None:
    document = repository(name)
    assert document["repository"] == name
    assert all(entry["source"] for entry in document["packages"].values())
    assert all(document["absent"].values())
    known = [document["packages"].keys(), document["absent"].keys(), document["unknown"]]
    assert sum(map(len, known)) == len(set().union(*known)), "a name is known, absent or unknown"


@pytest.mark.parametrize(
    ("system", "asked", "verdict"),
    [
        # NVIDIA/gpu-driver-container#451, NVIDIA/cuda-repo-management#41.
        ("ubuntu-22.04", Request("x", "nvidia-fabricmanager-580", "580.*"), "wrong"),
        ("ubuntu-22.04", Request("x", "nvidia-fabricmanager-580"), "known"),
        ("debian-13", Request("x", "datacenter-gpu-manager-4-core", "4.6.*"), "wrong"),
        ("rhel-10", Request("x", "golang-github-prometheus"), "wrong"),
        # NVIDIA/cuda-repo-management#38; the default of all systems was 580 once.
        ("debian-13", Request("x", "nvidia-kernel-open-dkms", "580.*"), "wrong"),
        ("debian-13", Request("x", "nvidia-kernel-open-dkms", "595.*"), "known"),
        ("debian-13", Request("x", "nvidia-kernel-open-dkms", "590.*"), "unknown"),
        # EPEL 10 has Slurm in the tree of 10.3 alone: 10.0 has none, CentOS Stream has that of the next minor release.
        ("rhel-10", Request("x", "slurm-slurmctld"), "unknown"),
        ("rhel-10", Request("x", "htop"), "known"),
        ("ubuntu-24.04", Request("x", "nvidia-fabricmanager", "580.*"), "known"),
        ("ubuntu-24.04", Request("x", "nvidia-dkms-580-open", "580.159.03*"), "known"),
        ("ubuntu-24.04", Request("x", "nvidia-dkms-580-open", "580.1.*"), "unknown"),
        ("debian-12", Request("x", "slurmctld", "22.05.*"), "known"),
        ("debian-13", Request("x", "no-such-package"), "unknown"),
    ],
)
def test_judge__by_what_is_known__tells_wrong_from_unknown(system: str, asked: Request, verdict: str) -> None:
    assert judge(system, asked)[0] == verdict


def test_judge__a_repository_that_is_unsettled__is_not_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """One repository lacks it, of the other it is not known."""
    told = {
        "rhel-10": {"packages": {}, "absent": {"parallel": "a listing"}, "unknown": []},
        "epel-10": {"packages": {}, "absent": {}, "unknown": ["parallel"]},
    }
    none: dict[str, object] = {"packages": {}, "absent": {}, "unknown": []}
    monkeypatch.setattr(packages, "repository", lambda name: told.get(name, none))
    assert judge("rhel-10", Request("enroot", "parallel"))[0] == "unknown"
    told["epel-10"]["unknown"] = []
    assert judge("rhel-10", Request("enroot", "parallel"))[0] == "wrong"


@pytest.mark.proves("packages", "The known release of each distribution's Slurm is what its repository has.")
def test_slurm__release_of_each_system__is_that_of_its_repository() -> None:
    known = load(CONTENT / "roles/slurm_head/vars/main.yml")["__slurm_head_distribution_versions"]
    tables = {"redhat-9": "epel-9", "redhat-10": "epel-10"}
    # Labs and tests/cluster/test_slurm_releases.py install it.
    for system, release in ((name, known[name]) for name in known if name != "debian-testing"):
        found = repository(tables.get(system, system))["packages"]
        package = found["slurm-slurmctld" if system in tables else "slurmctld"]
        assert {".".join(version.split(".")[:2]) for version in package["versions"]} == {release}, system


@pytest.mark.parametrize(
    ("system", "name", "expected"),
    [
        ("rocky-9", "V100", "kmod-nvidia-latest-dkms=580.*"),
        ("ubuntu-24.04", "V100", "nvidia-dkms-580=580.*"),
        ("debian-12", "V100", "nvidia-kernel-dkms=580.*"),
        ("debian-13", "L40S", "nvidia-kernel-open-dkms=590.*"),
        ("ubuntu-24.04", "B200", "nvlsm"),
        ("ubuntu-24.04", "gdrcopy", "gdrdrv-dkms"),
        ("ubuntu-24.04", "distribution", "nvidia-fabricmanager-580=580.*"),
        ("debian-13", "distribution, no switches", "nvidia-open-kernel-dkms=550.*"),
        ("debian-13", "distribution, V100", "nvidia-kernel-dkms=550.*"),
    ],
)
def test_requests__of_other_gpus_and_sources__are_among_them(system: str, name: str, expected: str) -> None:
    assert name in VARIANTS
    assert expected in map(str, requests(system))


def test_requests__of_what_no_repository_has__are_refused_by_the_role(tmp_path: Path) -> None:
    """NVIDIA has no branch for V100 on Debian 13, the RHEL family no driver of its own."""
    for system, name in (("debian-13", "V100"), ("rocky-9", "distribution")):
        (tmp_path / system).mkdir()
        roles = variant(a_cluster(tmp_path / system, system), system, name)
        assert "nvidia_driver" not in [role.name for role in roles]
