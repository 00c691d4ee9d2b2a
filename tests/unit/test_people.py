"""The IDs of people on the nodes."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from clusterctl.commands import status
from clusterctl.inventory.model import Host
from clusterctl.nodes import contact
from clusterctl.nodes import people as people_of
from clusterctl.nodes.contact import PeopleIds
from clusterctl.nodes.people import SAMPLE, Directory, Person, asked, compare, differences
from clusterctl.nodes.probe import people, state
from clusterctl.nodes.probe.common import MAX_PEOPLE
from clusterctl.nodes.remote import Access
from clusterctl.nodes.session import ContactError, Failure

from .ssh_server import host, inventory, listening


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


def test_probe__of_more_people__may_take_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "getent").write_text("#!/bin/sh\nsleep 2; echo root:x:0:0:::\n")
    (tmp_path / "getent").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(people, "PEOPLE_SECONDS", 1)
    monkeypatch.setattr(people, "PEOPLE_OF_A_SECOND", 1)
    assert people.people(["root"] * 30) == {"ids": {"root": "0:0"}, "error": None}


class Recorder:
    """A session that notes how long a program may run, and how much it may print."""

    def run(self, *_: object, timeout: float, limit: int, **__: object) -> tuple[int, str, str]:
        self.timeout, self.limit = timeout, limit
        return 0, "", ""


def test_contact__about_many_people__waits_and_reads_longer() -> None:
    session: Any = Recorder()
    contact._run_probe(session, {}, True)
    usual = session.timeout, session.limit
    names = [f"{number:032}" for number in range(MAX_PEOPLE)]
    contact._run_probe(session, {"people": names}, True)
    assert session.timeout - usual[0] >= people.people_seconds(MAX_PEOPLE) - people.people_seconds(0)
    assert session.limit - usual[1] >= len(json.dumps(dict.fromkeys(names, "4000000000:4000000000")))


@pytest.mark.proves("identity", "`status` asks nodes for few people of a large directory, each day for others.")
def test_asked__of_a_large_directory__are_all_in_turn() -> None:
    names = [f"p{number:04}" for number in range(1000)]
    known = Directory({name: Person("v", "vision", 1) for name in names}, ())
    worker = replace(
        host(1), groups=frozenset({"slurm_workers", "sssd"}), variables={"users_accounts": [{"name": "ops"}]}
    )
    assert asked(worker, known) == ["ops", *names]
    days = [asked(worker, known, date(2026, 12, 30) + timedelta(number)) for number in range(1000 // SAMPLE + 1)]
    assert all(day[0] == "ops" and len(day) == 1 + SAMPLE for day in days)
    assert {name for day in days for name in day} == {"ops", *names}
    assert asked(host(1), known) == []


def test_accounting__of_a_large_directory__is_without_its_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{number:032}" for number in range(MAX_PEOPLE)]
    one = {"account": "a" * 40, "group": "g" * 64, "uid": 1 << 31}
    record = {"online": True, "people": dict.fromkeys(names, one), "problems": []}
    (tmp_path / "record").write_text(json.dumps(record, indent=1, sort_keys=True))
    monkeypatch.setattr(state, "_DIRECTORY", str(tmp_path / "record"))
    assert state._accounting(f"aurora|v|{names[-1]}|\naurora|v|eve|") == {"accounting": ["aurora|v|eve|"]}


@pytest.mark.parametrize("verb", ["status", "verify"])
def test_head__that_does_not_respond__is_contacted_once(tmp_path: Path, verb: str) -> None:
    contacts: list[socket.socket] = []

    def refuse(connection: socket.socket) -> None:
        contacts.append(connection)
        connection.close()

    with listening(refuse) as port:
        groups = frozenset({"slurm_head", "sssd"})
        head = replace(host(port, tmp_path / "id", "head1"), groups=groups, user="root")
        cluster, access = inventory(tmp_path, head), Access(tmp_path / "known_hosts")
        if verb == "status":
            found = status.collect(cluster, access)
            assert found.nodes[0].problem
            assert found.directory[0].startswith("people of the directory are not known: head1: ")
        else:
            apart, known = compare(cluster, cluster.hosts, access)
            assert (apart, len(known.problems)) == ([], 1)
    assert len(contacts) == 1


@pytest.mark.proves("identity", "If the first of two heads does not respond, the other one knows the people.")
@pytest.mark.parametrize("is_dead", [True, False])
def test_directory__with_a_first_head_without_it__is_that_of_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_dead: bool
) -> None:
    """It is dead, or was reinstalled."""
    groups = frozenset({"slurm_head", "sssd"})
    heads = [replace(host(1, tmp_path / "id", name), groups=groups, user="root") for name in ("head1", "head2")]
    known = Directory({"eve": Person("vision", "vision", 7001)}, ())

    @contextmanager
    def connect(head: Host, _access: Access) -> Iterator[None]:
        if head.name == "head1" and is_dead:
            raise ContactError(Failure.SILENT, "it does not respond")
        yield

    monkeypatch.setattr(people_of, "connect", connect)
    monkeypatch.setattr(people_of, "read", lambda head, _: known if head.name == "head2" else people_of._NOBODY)
    found, failed = people_of.directory(inventory(tmp_path, *heads), Access(tmp_path / "known_hosts"))
    assert (found, [*failed]) == (known, ["head1"] * is_dead)
