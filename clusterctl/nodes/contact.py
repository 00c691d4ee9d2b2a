"""Contact a node: one connection, one run of the probe, and a decoded answer or the errors that prevented it."""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any

from clusterctl.inventory.model import Host
from clusterctl.nodes import probe
from clusterctl.nodes.probe import common as probe_common
from clusterctl.nodes.remote import Access, connect
from clusterctl.nodes.session import MAX_OUTPUT, ContactError, Failure, Session
from clusterctl.util import paths
from clusterctl.util.errors import Finding
from clusterctl.util.text import printable
from clusterctl.util.untrusted import (
    Malformed,
    decode,
    flag,
    mapping,
    nested,
    number,
    optional,
    seconds,
    sequence,
    text,
)
from clusterctl.workspace import hardware
from clusterctl.workspace.hardware import Hardware

# A package source that does not respond costs the probe 8 s; a node under load takes longer.
PROBE_SECONDS = 40.0
PYTHON = "/usr/bin/python3"  # as interpreter_python in ansible.cfg
UNREACHABLE = frozenset({Failure.UNRESOLVED, Failure.NO_ROUTE, Failure.REFUSED, Failure.SILENT, Failure.CLOSED})
_DIGESTS = mapping(text("[a-z_ ]+"), text("[0-9a-f]{64}", "a digest"), 32)
_RECORDS = mapping(text("[a-z0-9_]+"), text("([0-9a-f]{64})?", "a digest"), probe_common.MAX_RECORDS)
_FOR_ROOT = ("drift", "alerts", "state", "targets")
_PERSON = 64  # bytes of a name and IDs in the answer
_SHELL_MARK = "clusterctl-shell:"
_NO_PYTHON = 97
_SHELL = f"echo {_SHELL_MARK}; [ -x {PYTHON} ] || {{ cat /etc/os-release; exit {_NO_PYTHON}; }}; exec {PYTHON} -I -"


@dataclass(frozen=True)
class Source:
    """A package source, and why it does not answer (None if it does)."""

    url: Annotated[str, text()]
    error: Annotated[str | None, optional(text())]


@dataclass(frozen=True)
class Network:
    """Access to packages: the first name to resolve, the proxy, and the sources."""

    name: Annotated[str, text()]
    name_error: Annotated[str | None, optional(text())]
    proxy: Annotated[str | None, optional(text())]
    sources: Annotated[tuple[Source, ...], sequence(nested(Source), probe_common.MAX_SOURCES)]


@dataclass(frozen=True)
class SlurmPackages:
    """Installed versions of Slurm's daemons and munge, and available versions of slurmd, the candidate first.

    `user` is the UID of the user slurm, None if there is no such user.
    """

    installed: Annotated[Mapping[str, str], mapping(text(), text(), 16)]
    offered: Annotated[tuple[str, ...], sequence(text(), probe_common.MAX_OFFERED)]
    user: Annotated[int | None, optional(number(0, 1 << 32))]


@dataclass(frozen=True)
class PeopleIds:
    """UID and GID of people by name, joined by a colon, or why the node does not resolve them."""

    ids: Annotated[Mapping[str, str], mapping(text(), text(r"\d+:\d+", "two IDs"), probe_common.MAX_PEOPLE)]
    error: Annotated[str | None, optional(text())]


@dataclass(frozen=True)
class Node:
    """State of a node that changes and is not recorded; sizes in MiB, services by name with systemd's ActiveState.

    `pci_gpus` has the device ids of NVIDIA's GPUs on the bus. `key_enrolled` is whether the firmware trusts dkms's key.
    `security_updates` is the age in seconds of the last successful security update or of its setup; None: not set up.
    `mounts` has the states of shared directories: empty, or as probe/mounts.py describes them.
    `homes` has the time of the last change of users' home directories, in nanoseconds since 1970.
    """

    hostname: Annotated[str, text()]
    root: Annotated[bool, flag]
    free_mb: Annotated[Mapping[str, int], mapping(text(), number(0, 1 << 40), 8)]
    memory_available_mb: Annotated[int, number(0, 1 << 32)]
    pci_gpus: Annotated[tuple[str, ...], sequence(text(r"[0-9a-f]{4}", "a PCI device id"), probe_common.MAX_GPUS)]
    nvml_error: Annotated[str | None, optional(text())]
    container: Annotated[bool, flag]
    secure_boot: Annotated[bool | None, optional(flag)]
    key_enrolled: Annotated[bool, flag]
    network: Annotated[Network | None, optional(nested(Network))]
    lock_holder: Annotated[str | None, optional(text())]
    roles: Annotated[tuple[str, ...], sequence(text(), 64)]
    cluster: Annotated[str | None, optional(text())]
    before: Annotated[tuple[str, ...], sequence(text(), 16)]
    slurm: Annotated[tuple[str, ...], sequence(text(), 4)]
    kubernetes: Annotated[tuple[str, ...], sequence(text(), 4)]
    swap_mb: Annotated[int, number(0, 1 << 32)]
    security_updates: Annotated[int | None, optional(number(0, 1 << 40))]
    slurm_packages: Annotated[SlurmPackages | None, optional(nested(SlurmPackages))]
    watched_packages: Annotated[Mapping[str, str], mapping(text(), text(), len(probe_common.WATCHED))]
    jobs: Annotated[tuple[str, ...], sequence(text(r"\d+", "a job's number"), probe_common.MAX_JOBS)]
    firewall: Annotated[str | None, optional(text())]
    services: Annotated[Mapping[str, str], mapping(text(), text(), 64)]
    homes: Annotated[Mapping[str, int], mapping(text(), number(0, 1 << 63), 64)]
    mounts: Annotated[Mapping[str, str], mapping(text(), text(), probe_common.MAX_MOUNTS)]
    people: Annotated[PeopleIds, nested(PeopleIds)]


@dataclass(frozen=True)
class Item:
    """One item that differs from its record. `scope` is the name under which the role recorded it.

    `what` is for people. `old` and `new` are the recorded and the current version of a package, or empty.
    """

    scope: Annotated[str, text()]
    kind: Annotated[str, text()]
    name: Annotated[str, text()]
    what: Annotated[str, text()]
    old: Annotated[str, text()] = ""
    new: Annotated[str, text()] = ""


@dataclass(frozen=True)
class Drift:
    """The differences of a node from its records, the number of further ones, and the versions of their packages."""

    error: Annotated[str | None, optional(text())]
    items: Annotated[tuple[Item, ...], sequence(nested(Item), probe_common.MAX_DRIFT)]
    more: Annotated[int, number(0, 1 << 20)]
    versions: Annotated[Mapping[str, str], mapping(text(), text(), 1 << 12)]


@dataclass(frozen=True)
class Alert:
    """A firing alert; `since` is in Prometheus's format, in UTC."""

    name: Annotated[str, text()]
    severity: Annotated[str, text()]
    node: Annotated[str, text()]
    since: Annotated[str, text()]
    summary: Annotated[str, text()]


@dataclass(frozen=True)
class Alerts:
    """The firing alerts, the most severe first, and the number of further ones; or why they could not be read."""

    error: Annotated[str | None, optional(text())] = None
    firing: Annotated[tuple[Alert, ...], sequence(nested(Alert), probe_common.MAX_ALERTS)] = ()
    more: Annotated[int, number(0, 1 << 20)] = 0


@dataclass(frozen=True)
class _Reply:
    node: Annotated[Node, nested(Node)]
    drift: Annotated[Drift | None, optional(nested(Drift))]
    alerts: Annotated[Alerts | None, optional(nested(Alerts))]
    state: Annotated[Mapping[str, str] | None, optional(_DIGESTS)]
    state_error: Annotated[str, text()]
    records: Annotated[Mapping[str, str], _RECORDS]
    targets: Annotated[Mapping[str, bool] | None, optional(mapping(text(), flag, probe_common.MAX_TARGETS))]
    started: Annotated[float, seconds]
    ended: Annotated[float, seconds]


def lead(bounds: tuple[float, float]) -> float:
    """Return the smallest lead or lag of a clock within these bounds, in seconds."""
    low, high = bounds
    return max(low, 0.0) or min(high, 0.0)


@dataclass(frozen=True)
class Facts:
    """A node's answer. `clock` has the bounds of its clock's lead over this machine's in seconds; negative: behind."""

    hardware: Hardware
    node: Node
    clock: tuple[float, float]
    drift: Drift | None = None
    alerts: Alerts | None = None
    state: Mapping[str, str] | None = None
    """Digests of the node's state; see probe/state.py."""
    state_error: str = ""
    """Why they are missing, if they were asked for: what does not work."""
    records: Mapping[str, str] = field(default_factory=dict)
    """Digests of the records of roles, by their scopes."""
    targets: Mapping[str, bool] | None = None
    """Whether all exporters of each target of this host's Prometheus are up; None if that is unknown."""

    @property
    def skew(self) -> float:
        """Return the smallest certain lead or lag in seconds, without the time of the connection."""
        return lead(self.clock)


@dataclass(frozen=True)
class Answer:
    """The result of a contact: facts, errors, or both (facts gathered without sudo)."""

    facts: Facts | None = None
    errors: tuple[ContactError, ...] = ()
    release: tuple[str, str] | None = None  # os-release's ID and VERSION_ID, also without python

    @property
    def is_unreachable(self) -> bool:
        """Return whether the node did not respond at all."""
        return any(error.failure in UNREACHABLE for error in self.errors)


def ask(host: Host, access: Access, options: Mapping[str, Any], refused: ContactError | None = None) -> Answer:
    """Contact one node and run the probe there with `options` (see probe.main). A node's failure is in the answer.

    `refused` is an earlier error of sudo's password. The password is not tried again, because some nodes lock an
    account after a few attempts.
    """
    try:
        with connect(host, access) as session:
            return converse(host, session, options, refused)
    except ContactError as error:
        return Answer(errors=(error,))


def converse(host: Host, session: Session, options: Mapping[str, Any], refused: ContactError | None = None) -> Answer:
    """Run the probe over an open connection. Raises ContactError if the connection ends."""
    errors: list[ContactError] = []
    started = time.time()
    try:
        if refused:
            raise refused
        status, answer, complaint = _run_probe(session, options, True)
        if session.becomes and _SHELL_MARK not in answer:
            cause = _last_line(complaint) or _last_line(answer) or f"exit status {status}"
            raise _no_root(session.user, cause)
    except ContactError as error:
        if error.failure is not Failure.SUDO:
            raise
        errors.append(error)
        # The report needs all problems, so probe without root. Options that need root are left out.
        options = {name: value for name, value in options.items() if name not in _FOR_ROOT}
        started = time.time()
        status, answer, complaint = _run_probe(session, options, False)
    ended = time.time()
    if status == _NO_PYTHON:
        release = probe_common.assignments(answer)
        found = printable(release.get("ID", "")), printable(release.get("VERSION_ID", ""))
        missing = ContactError(Failure.PYTHON, f"there is no {PYTHON}", _install_python(release))
        return Answer(errors=(*errors, missing), release=found)
    try:
        facts = read(host, answer, (started, ended))
    except Malformed as error:
        cause = _last_line(complaint)
        errors.append(
            ContactError(Failure.REPLY, f"the probe's answer is not valid: {error}" + (f" ({cause})" if cause else ""))
        )
        return Answer(errors=tuple(errors))
    if not facts.node.root and not errors:
        hint = "log in as root, or set ansible_become to true"
        errors.append(
            ContactError(Failure.SUDO, f"{session.user} is not root on the node, and ansible_become is false", hint)
        )
    return Answer(facts, tuple(errors), (facts.hardware.os.id, facts.hardware.os.version))


def _no_root(user: str, cause: str) -> ContactError:
    hint = "install sudo, or log in as root"
    if "not found" not in cause:
        allow = f'echo "{user} ALL=(ALL) NOPASSWD: ALL" > /etc/sudoers.d/{user}'
        hint = f"use --ask-become-pass, or allow sudo without a password: {allow}"
    return ContactError(Failure.SUDO, f"{user} cannot become root: {cause}", hint)


def _run_probe(session: Session, options: Mapping[str, Any], root: bool) -> tuple[int, str, str]:
    # By standard input, because every user of the node can see arguments.
    script = probe.program(dict(options))
    people = len(options.get("people", ()))
    timeout, limit = PROBE_SECONDS + people // probe_common.PEOPLE_OF_A_SECOND, MAX_OUTPUT + people * _PERSON
    return session.run(["/bin/sh", "-c", _SHELL], stdin=script, root=root, timeout=timeout, limit=limit)


def read(host: Host, answer: str, journey: tuple[float, float]) -> Facts:
    """Decode the probe's output; `journey` has the times before and after its run. Raises Malformed."""
    lines = [line for line in answer.splitlines() if line.startswith(probe_common.MARK)]
    if not lines:
        raise Malformed("it is empty")
    try:
        data = json.loads(lines[-1][len(probe_common.MARK) :])
    except (ValueError, RecursionError):
        raise Malformed("it is not JSON") from None
    reply = decode(_Reply, data)
    record = hardware.from_reply(host.name, data.get("hardware"), datetime.now(UTC))
    started, ended = journey
    # The node's clock was read between these two times, which bounds its lead from both sides.
    clock = (reply.ended - ended, reply.started - started)
    return Facts(
        record,
        reply.node,
        clock,
        reply.drift,
        reply.alerts,
        reply.state,
        reply.state_error,
        reply.records,
        reply.targets,
    )


@cache
def drift_modules() -> Mapping[str, str]:
    """Return the packed source of the modules that compare a node with its records, in order of import."""
    folder = paths.content() / "plugins/module_utils/node_state"
    names = ("tools", "keys", "packages", "watch", "record", "items", "kernel", "drift")
    return {name: probe.packed((folder / f"{name}.py").read_text(encoding="utf-8")) for name in names}


def drift_options(key: str | None) -> dict[str, Any]:
    """Return the probe's options for what differs from a node's records.

    `key` is the key of the secrets' hashes. It is sent to root on standard input and is not stored on the node.
    """
    return {"drift": {"modules": dict(drift_modules()), "key": key}}


def _install_python(release: Mapping[str, str]) -> str:
    likes = f"{release.get('ID', '')} {release.get('ID_LIKE', '')}".split()
    if "debian" in likes:
        return "run on the node: apt-get install -y python3"
    if {"rhel", "fedora", "centos"} & set(likes):
        return "run on the node: dnf install -y python3"
    return "install it on the node"


def _last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip() and not re.match(r"\s*clusterctl-", line)]
    return printable(lines[-1], 200) if lines else ""


@dataclass(frozen=True)
class Contact:
    """The result of a passed preflight: facts of every host that answered, warnings, differences, and skipped hosts."""

    facts: Mapping[str, Facts]
    warnings: tuple[Finding, ...] = ()
    differences: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    skipped: tuple[Finding, ...] = ()
