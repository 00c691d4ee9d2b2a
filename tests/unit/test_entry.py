"""What leads up to a run, and how long its nodes are waited for."""

import contextlib
import io
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.ansible.events import PlaybookStarted, Result, Status
from clusterctl.ansible.run_directory import RunDirectory
from clusterctl.commands import bootstrap
from clusterctl.nodes import known_hosts
from clusterctl.nodes.contact import Contact
from clusterctl.nodes.known_hosts import HostKey
from clusterctl.nodes.remote import Access
from clusterctl.run import entry, plays, preflight, record, unchanged
from clusterctl.run.context import Options, Site
from clusterctl.run.entry import EnsureSecrets, Preflight, PrepareAnsible
from clusterctl.run.phases import Run
from clusterctl.ui.report import Screen
from clusterctl.util.errors import ClusterctlError, Finding, InputError, PreflightError, WorkersFailed
from clusterctl.workspace import home

from .ssh_server import host, inventory

PASSWORD = "correct horse battery"


def site(directory: Path) -> Site:
    made = inventory(directory, host(22))
    options = Options("verify", directory)
    return Site(options, made, made.hosts, Access(directory / "known_hosts", PASSWORD))


@pytest.mark.proves("secrets", "Preflight's problems and notes show no sudo password.")
def test_what_a_node_says_before_a_run_shows_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding("gpu01", "sudo", f"admin cannot become root: {PASSWORD}: not found", f"say {PASSWORD}")

    def refuse(*_: Any) -> Contact:
        raise PreflightError([finding])

    monkeypatch.setattr(preflight, "preflight", refuse)
    with pytest.raises(PreflightError, match=r"cannot become root: \[redacted\]: not found") as refused:
        Preflight(replaces=False).run(Run(site(tmp_path), Screen(io.StringIO())))
    assert PASSWORD not in str(refused.value)
    monkeypatch.setattr(preflight, "preflight", lambda *_: Contact({}, (replace(finding, warning=True),), {}, ()))
    page = io.StringIO()
    Preflight(replaces=False).run(Run(site(tmp_path), Screen(page)))
    assert "note: gpu01: sudo" in page.getvalue()
    assert PASSWORD not in page.getvalue()


@pytest.mark.proves("faults", "A run that is refused or interrupted before it plays ends Ansible's process.")
@pytest.mark.parametrize("error", [PreflightError([Finding("gpu01", "ssh", "refused")]), KeyboardInterrupt()])
def test_ansible__started_with_the_checks__ends_with_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def refuse(*_: Any) -> Contact:
        raise error

    monkeypatch.setattr(preflight, "preflight", refuse)
    with contextlib.ExitStack() as stack:
        run = Run(site(tmp_path), Screen(io.StringIO()), stack)
        PrepareAnsible().run(run)
        started = run.ansible
        assert started
        with pytest.raises(type(error)):
            Preflight().run(run)
        assert started.child.poll() is None
    assert started.child.returncode == -signal.SIGKILL
    assert run.ansible is None


@pytest.mark.parametrize(
    ("leaves_out", "due", "starts"),
    [
        (True, {}, True),
        (True, {"gpu01": frozenset[str]()}, False),
        (True, {"gpu01": frozenset({"users"})}, True),
        (False, {"gpu01": frozenset[str]()}, True),
    ],
)
def test_ansible__if_all_nodes_may_be_left_out__is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves_out: bool, due: dict[str, frozenset[str]], starts: bool
) -> None:
    monkeypatch.setattr(unchanged, "expected_roles", lambda site: due)
    with contextlib.ExitStack() as stack:
        run = Run(site(tmp_path), Screen(io.StringIO()), stack, variables="a digest")
        PrepareAnsible(leaves_out=leaves_out).run(run)
        assert (run.ansible is not None) is starts
        assert run.expected_roles == (due if leaves_out else {})


def test_phases__before_the_checks__start_ansible_between_the_lock_and_the_secrets() -> None:
    """It inherits the lock; the secrets take a quarter of a second, in which it loads its code."""
    kinds = [type(phase) for phase in entry.CONTACT]
    lock, started, secrets = map(kinds.index, (entry.LockDirectory, PrepareAnsible, EnsureSecrets))
    assert lock < started < secrets


def test_host_keys_that_cannot_be_written_are_no_bug(tmp_path: Path) -> None:
    key = HostKey("gpu01", "gpu01", "ssh-ed25519", "SHA256:x", "gpu01 ssh-ed25519 AAAA")
    with pytest.raises(InputError, match="known_hosts: cannot be written: No such file"):
        known_hosts.add(tmp_path / "gone/known_hosts", [key])


@pytest.mark.parametrize(("adopt", "variables"), [(True, {"slurm_head_adopt": True}), (False, {})])
def test_adopt__of_a_run__reaches_the_role_of_the_head(tmp_path: Path, adopt: bool, variables: dict[str, bool]) -> None:
    one = site(tmp_path)
    assert replace(one, options=replace(one.options, adopt=adopt)).command().variables == variables


def test_page__disk_is_full_during_a_plan__names_the_directory_that_stays(tmp_path: Path) -> None:
    """A plan has a copy of the cluster's directory, whose state is a link to the real one."""
    (tmp_path / "aurora/runs").mkdir(parents=True)
    (tmp_path / "copy").symlink_to(tmp_path / "aurora")
    kept = RunDirectory(tmp_path / "copy/runs")
    for name in (None, str(tmp_path / "copy/runs/events.jsonl")):
        page, trouble = io.StringIO(), OSError(28, "No space left on device", name)
        run = Run(site(tmp_path), Screen(page), kept=kept, trouble=trouble)
        record.page(run, WorkersFailed("x"), "again")
        full = tmp_path / "aurora/runs" / Path(name or "").name
        assert f"{full}: No space left on device; the log is incomplete" in page.getvalue()
        assert "copy" not in page.getvalue()


@pytest.fixture
def patiences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float | None]]:
    """The hosts and the patience of each playbook of a run that contacts and plays nothing; gpu02 is slow."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    made = inventory(tmp_path, host(22, None, "head1", "slurm_head"), host(22, None, "gpu01"), host(22, None, "gpu02"))
    seen: list[tuple[str, float | None]] = []

    def watch(
        run: Run, site: Site, *_: object, patience: float | None, more: bool
    ) -> tuple[ClusterctlError | None, OSError | None]:
        seen.append((" ".join(host.name for host in site.hosts), patience))
        status: Status = "behind" if patience else "ok"
        run.ledger.add(PlaybookStarted((), False))
        run.ledger.add(Result("gpu02", "base", "Stage", "", status, ""))
        return None, None

    monkeypatch.setattr(plays, "watch", watch)
    monkeypatch.setattr(bootstrap, "contact_phases", lambda **_: (EnsureSecrets(),))
    monkeypatch.setattr(Preflight, "run", lambda *_: None)
    monkeypatch.setattr(home, "load", lambda _: made)
    return seen


@pytest.mark.proves("faults", "The others wait for a slow node for 60 seconds in all.")
def test_run__a_slow_node__is_waited_for_a_minute_in_all(
    tmp_path: Path, patiences: list[tuple[str, float | None]]
) -> None:
    """What is left to do there is done afterwards, without a limit."""
    bootstrap.bootstrap(Options("bootstrap", tmp_path))
    assert patiences == [("head1 gpu01 gpu02", 60.0), ("head1 gpu02", None)]


def test_run__check_mode__waits_for_each_node(tmp_path: Path, patiences: list[tuple[str, float | None]]) -> None:
    bootstrap.bootstrap(Options("plan", tmp_path, planned="bootstrap"))
    assert patiences == [("head1 gpu01 gpu02", None)]
