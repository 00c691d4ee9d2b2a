"""The IDs of people on the nodes."""

import os
from pathlib import Path

import pytest

from clusterctl.nodes.contact import PeopleIds
from clusterctl.nodes.people import Directory, Person, differences
from clusterctl.nodes.probe import people


@pytest.mark.proves("identity", "A user with other IDs on some nodes is named, with these nodes.")
def test_differences__of_ids__name_the_person_and_the_nodes() -> None:
    names = dict.fromkeys(["head1", "gpu01", "gpu02"], ("ada", "bob", "eve", "new"))
    found = {
        "head1": PeopleIds({"ada": "5001:5001", "bob": "5002:5002", "eve": "7001:7000"}, None),
        "gpu01": PeopleIds({"ada": "5001:5001", "bob": "6002:5002", "eve": "7001:7000"}, None),
        "gpu02": PeopleIds({"ada": "5001:5001", "bob": "5002:5002"}, None),
    }
    assert differences(names, found) == [
        "bob has different IDs (UID:GID): 5002:5002 on head1, gpu02; 6002:5002 on gpu01",
        "eve has different IDs (UID:GID): 7001:7000 on head1, gpu01; none on gpu02",
    ]


def test_differences__without_the_directory__leave_out_whom_a_node_never_met() -> None:
    found = {"head1": PeopleIds({"eve": "7001:7000"}, None), "gpu01": PeopleIds({}, None)}
    eve = {"eve": Person("vision", "vision", 7001)}
    names = {"head1": ["eve"], "gpu01": ["eve"]}
    assert differences(names, found, Directory(eve, (), online=False)) == []
    assert len(differences(names, found, Directory(eve, ()))) == 1


def test_differences__of_a_node_without_an_answer__are_that_node() -> None:
    names = {"head1": ["ada"], "gpu01": ["ada"]}
    found = {"head1": PeopleIds({"ada": "5001:5001"}, None), "gpu01": PeopleIds({}, "it does not resolve users")}
    assert differences(names, found) == ["gpu01: it does not resolve users"]


def test_probe__of_people__has_those_that_the_node_knows() -> None:
    answer = people.people(["root", "nobody-of-this-name", "--help"])
    assert answer == {"ids": {"root": "0:0"}, "error": None}
    assert people.people([]) == {"ids": {}, "error": None}


def test_probe__of_a_resolver_that_hangs__ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "getent").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "getent").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(people, "PEOPLE_SECONDS", 1)
    assert people.people(["root"]) == {"ids": {}, "error": "it does not resolve users within 1 s"}
