"""Every package name and pin of every role, on every supported system, against what its repositories have."""

import pytest

from tests.systems import packages
from tests.systems.packages import REPOSITORIES, Request, judge, markdown, repository, requests
from tests.systems.rendering import CONTENT, SYSTEMS


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
