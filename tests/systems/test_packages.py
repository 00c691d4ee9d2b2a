"""Every package name and pin of every role, on every supported system, against what its repositories have."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.systems import packages
from tests.systems.packages import (
    REPOSITORIES,
    SCHEDMD,
    VARIANTS,
    Request,
    judge,
    markdown,
    repository,
    requests,
    variant,
)
from tests.systems.rendering import CONTENT, PACKAGED, SYSTEMS, a_cluster, load

WHERE = re.compile(r"https?://[a-z0-9.-]+/|github:[\w.-]+/[\w.-]+ \S")
WHEN = re.compile(r"\b20\d\d-\d\d-\d\d$")


@pytest.mark.proves("roles", "No role asks for a package or pin that its system is known to lack.")
@pytest.mark.parametrize("system", [*SYSTEMS, *PACKAGED])
def test_packages__of_all_roles__are_in_the_systems_repositories(system: str) -> None:
    asked = requests(system)
    assert len(asked) > (50 if system in SYSTEMS or "debian" in system else 5), "roles are seen to ask for packages"
    wrong = [
        f"{one.role}: {why}" for one in sorted(asked) for verdict, why in [judge(system, one)] if verdict == "wrong"
    ]
    assert wrong == []


@pytest.mark.proves("roles", "Package names that could not be verified are listed in docs/packages.md.")
def test_page__of_what_is_not_known__is_current() -> None:
    page = (CONTENT / "docs/packages.md").read_text(encoding="utf-8")
    assert page == markdown(), "run python -m tests.systems.packages > docs/packages.md"


TABLES = sorted({SCHEDMD, *(name for names in REPOSITORIES.values() for name in names)})


def parts(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a table and what it has for aarch64, with its sources."""
    yield document
    if "aarch64" in document:
        yield {"packages": {}, "absent": {}, "unknown": [], **document["aarch64"]}


def sources(part: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each fact with its source in full."""
    known = part.get("sources", {})
    for name, fact in part["packages"].items():
        yield name, known.get(fact["source"], fact["source"])
    for name, source in part["absent"].items():
        yield name, known.get(source, source)
    for key in ("like_x86_64", "first_branch"):
        source = part.get(key) or ""
        source = source["source"] if isinstance(source, dict) else source
        if source:
            yield key, known.get(source, source)


@pytest.mark.parametrize("name", TABLES)
def test_repository__each_fact__has_a_named_source_and_a_date(name: str) -> None:
    document = repository(name)
    assert document["repository"] == name
    for part in parts(document):
        found = dict(sources(part))
        assert [f"{fact}: {text}" for fact, text in found.items() if not WHERE.match(text)] == [], "no address"
        assert [f"{fact}: {text}" for fact, text in found.items() if not WHEN.search(text)] == [], "no date"
        assert {*part.get("sources", {}).values()} <= {*found.values()}, "a source that no fact has"


@pytest.mark.parametrize("name", TABLES)
def test_repository__each_name__is_known_absent_or_unknown(name: str) -> None:
    for part in parts(repository(name)):
        known = [part["packages"].keys(), part["absent"].keys(), part["unknown"]]
        assert sum(map(len, known)) == len(set().union(*known))


@pytest.mark.parametrize(
    ("source", "refused"),
    [
        ("https://packages.ubuntu.com/noble/tmux, read 2026-11-24", False),
        ("github:NVIDIA/enroot doc/installation.md @8ea147d, 2026-04-29", False),
        ("a public file of an unnamed repository (lab report), 2026-09-07", True),
        ("github:NVIDIA/enroot, 2026-04-29", True),
        ("https://packages.ubuntu.com/noble/tmux", True),
        ("https://packages.ubuntu.com/noble/tmux, 2026-11", True),
    ],
)
def test_source__without_an_address_or_a_day__is_refused(source: str, refused: bool) -> None:
    assert bool(WHERE.match(source) and WHEN.search(source)) is not refused


def test_repository__on_aarch64__has_only_what_is_known_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One repository is listed as like that of x86_64, of the other only its own facts are known."""
    fact, arm = {"source": "x"}, {"source": "arm"}
    base = {"packages": {"a": fact, "b": fact}, "absent": {"c": "x"}, "unknown": ["d"]}
    like = base | {"aarch64": {"like_x86_64": "y", "packages": {"c": arm}, "absent": {"b": "y"}}}
    own = base | {"aarch64": {"packages": {"a": arm}, "absent": {}, "unknown": []}}
    monkeypatch.setattr(packages, "load", lambda path: {"like": like, "own": own}[path.stem])
    read = repository.__wrapped__
    found = read("like", "aarch64")
    assert (found["packages"], found["absent"], found["unknown"]) == ({"a": fact, "c": arm}, {"b": "y"}, ["d"])
    found = read("own", "aarch64")
    assert (found["packages"], found["absent"], found["unknown"]) == ({"a": arm}, {}, ["b", "c", "d"])


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
        ("rhel-10", Request("x", "kmod-nvidia-open-dkms", "595.*"), "known"),
        # NVIDIA/gpu-driver-container has none for arm64; of other names nothing is known there.
        ("rocky-9-aarch64", Request("x", "libnvsdm", "580.*"), "wrong"),
        ("rocky-9-aarch64", Request("x", "kmod-nvidia-open-dkms", "580.*"), "known"),
        ("rocky-9-aarch64", Request("x", "cuda-toolkit-13-0"), "unknown"),
        ("debian-13-aarch64", Request("x", "linux-headers-amd64"), "wrong"),
        ("debian-13-aarch64", Request("x", "slurmctld", "24.11.*"), "known"),
        ("debian-testing", Request("x", "slurmctld", "26.05.*"), "known"),
        # Names of SchedMD's packages are those of EPEL, at other releases.
        ("rocky-9", Request("x", "slurm-slurmctld", "25.11.*", "schedmd"), "known"),
        ("rocky-9", Request("x", "slurm-slurmctld", "25.11.*"), "unknown"),
        ("debian-12", Request("x", "slurm-smd-slurmctld", "25.11.*", "schedmd"), "known"),
        ("debian-12", Request("x", "slurm-smd-slurmctld", "25.11.*"), "wrong"),
        ("ubuntu-24.04", Request("x", "linux-modules-nvidia-580-server-open-6.8.0-85-generic"), "known"),
        ("debian-13", Request("x", "nvidia-kernel-open-dkms", "590.*"), "unknown"),
        # EPEL 10 has Slurm in the tree of 10.3 alone: 10.0 has none, CentOS Stream has that of the next minor release.
        ("rhel-10", Request("x", "slurm-slurmctld"), "unknown"),
        ("rhel-10", Request("x", "htop"), "known"),
        ("ubuntu-24.04", Request("x", "nvidia-fabricmanager", "580.*"), "known"),
        ("ubuntu-24.04", Request("x", "nvidia-dkms-580-open", "580.159.04*"), "known"),
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
    monkeypatch.setattr(packages, "repository", lambda name, _: told.get(name, none))
    assert judge("rhel-10", Request("enroot", "parallel"))[0] == "unknown"
    told["epel-10"]["unknown"] = []
    assert judge("rhel-10", Request("enroot", "parallel"))[0] == "wrong"


@pytest.mark.proves("packages", "The known release of each distribution's Slurm is what its repository has.")
def test_slurm__release_of_each_system__is_that_of_its_repository() -> None:
    known = load(CONTENT / "roles/slurm_head/vars/main.yml")["__slurm_head_distribution_versions"]
    tables = {"redhat-9": "epel-9", "redhat-10": "epel-10"}
    for system, release in known.items():
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
        ("debian-13", "distribution, no switches", "nvidia-cuda-mps=550.*"),
        ("debian-13", "distribution, V100", "nvidia-kernel-dkms=550.*"),
        ("ubuntu-24.04", "Secure Boot", "linux-modules-nvidia-580-server-open-6.8.0-85-generic"),
        ("ubuntu-22.04", "Secure Boot, V100", "linux-modules-nvidia-580-server-generic"),
    ],
)
def test_requests__of_other_gpus_and_sources__are_among_them(system: str, name: str, expected: str) -> None:
    assert name in VARIANTS
    assert expected in map(str, requests(system))


@pytest.mark.parametrize(
    ("system", "name"),
    [
        ("debian-testing", "slurm-smd-slurmctld=25.11.*"),
        ("ubuntu-24.04", "slurm-smd-libpam-slurm-adopt=25.11.*"),
        ("rocky-9", "slurm-slurmdbd=25.11.*"),
    ],
)
def test_requests__of_schedmds_source__have_its_names(system: str, name: str) -> None:
    assert name in [str(one) for one in requests(system) if one.origin == SCHEDMD]


def test_requests__of_what_no_repository_has__are_refused_by_the_role(tmp_path: Path) -> None:
    """NVIDIA has no branch for V100 on Debian 13, the RHEL family no driver of its own."""
    for system, name in (("debian-13", "V100"), ("rocky-9", "distribution")):
        (tmp_path / system).mkdir()
        roles = variant(a_cluster(tmp_path / system, system), system, name)
        assert "nvidia_driver" not in [role.name for role in roles]
