"""`secret rotate`: which playbooks it plays, when the new secrets count, and which command goes on."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.ansible.events import Result
from clusterctl.commands import secret
from clusterctl.run import engine, plays, record
from clusterctl.run.context import Options, Site
from clusterctl.run.phases import Phase, Run
from clusterctl.util.errors import (
    ClusterctlError,
    HeadFailed,
    InputError,
    Interrupted,
    PreflightError,
    WorkersFailed,
)
from clusterctl.workspace import secrets

SKIPPED, STOPPED = WorkersFailed("gpu02 skipped"), Interrupted("Ctrl-C")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = tmp_path / "aurora/inventory.yaml"
    path.parent.mkdir()
    path.write_text(
        "all:\n  vars: {cluster_name: aurora}\n  children:\n"
        "    slurm_head: {hosts: {head1: {ansible_host: 10.0.0.10}}}\n"
        "    slurm_workers: {hosts: {gpu01: {ansible_host: 10.0.0.11}}}\n"
    )
    secrets.ensure(path.parent, "aurora")
    return path


Played = Callable[..., tuple[list[str], str, ClusterctlError | None]]


@pytest.fixture
def rotated(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    """Rotate secrets where each playbook ends as given; return those played, the verb that goes on, and the error."""

    runs: list[Run] = []

    def rotate(
        names: str, *ends: ClusterctlError | None, failed: str = ""
    ) -> tuple[list[str], str, ClusterctlError | None]:
        played: list[str] = []

        def play(run: Run, site: Site, **_: object) -> ClusterctlError | None:
            runs.append(run)
            played.append(site.playbook)
            if failed:
                run.ledger.add(Result(failed, "munge", "Stage", "", "failed", "broken"))
            return ends[len(played) - 1]

        errors: list[ClusterctlError | None] = []
        monkeypatch.setattr(plays, "play", play)
        monkeypatch.setattr(secret, "ENTRY", ())
        monkeypatch.setattr(record, "show", lambda _, error, closing: errors.append(error))
        secret.rotate(Options("secret", cluster, subverb="rotate", flags=tuple(names.split())))
        return played, runs[-1].resume_with, errors[0]

    rotate.runs = runs  # type: ignore[attr-defined]
    return rotate


def test_rotate__munge_key__is_staged_then_exchanged(rotated: Played, cluster: Path) -> None:
    old = secrets.values(cluster.parent)
    assert rotated("munge_key", None, None) == (["stage-munge-key", "exchange-munge-key"], "bootstrap", None)
    new = secrets.values(cluster.parent)
    assert {name for name in old if old[name] != new[name]} == {"munge_key"}
    assert old.keys() == new.keys()


def test_rotate__worker_left_out__goes_on_without_it(rotated: Played, cluster: Path) -> None:
    old = secrets.values(cluster.parent)["munge_key"]
    assert rotated("munge_key", SKIPPED, SKIPPED)[::2] == (["stage-munge-key", "exchange-munge-key"], SKIPPED)
    assert secrets.values(cluster.parent)["munge_key"] != old


@pytest.mark.parametrize(
    ("error", "failed"), [(WorkersFailed("gpu01 failed"), "gpu01"), (HeadFailed("head1"), "head1"), (STOPPED, "")]
)
def test_rotate__key_is_not_staged_everywhere__changes_nothing(
    rotated: Played, cluster: Path, error: ClusterctlError, failed: str
) -> None:
    """The same command begins anew."""
    old = secrets.values(cluster.parent)
    assert rotated("munge_key", error, failed=failed) == (["stage-munge-key"], "", error)
    new = secrets.values(cluster.parent)
    assert {name: new[name] for name in old} == old


def test_rotate__stopped_during_the_exchange__says_that_it_goes_on(rotated: Played) -> None:
    _, goes_on, error = rotated("munge_key", None, STOPPED)
    assert goes_on == "bootstrap"
    assert "complete it within two minutes" in str(error)


def test_rotate__all_of_kubernetes__has_no_munge_key_to_exchange(rotated: Played, cluster: Path) -> None:
    cluster.write_text(cluster.read_text().replace("slurm_", "kubernetes_"))
    assert rotated("all", None)[0] == ["bootstrap"]


def test_rotate__all__are_replaced_with_their_hashes(rotated: Played, cluster: Path) -> None:
    old = secrets.values(cluster.parent)
    assert rotated("all", None, None)[0] == ["stage-munge-key", "exchange-munge-key"]
    new = secrets.values(cluster.parent)
    kept = {name for name in old if old[name] == new[name]}
    fixed = {"kubernetes_head_pki_seed", "kubernetes_head_encryption_key", "login_host_key_seed"}
    assert kept == fixed, "certificates and host keys that others know depend on them"
    assert rotated("prometheus_password", None)[0] == ["bootstrap"]


@pytest.mark.proves("heads", "The munge key is not replaced while a head of Slurm does not respond.")
def test_rotate__munge_key_without_a_head__changes_nothing(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Skip(Phase):
        title, changes_nodes, announced = "Skip the head", False, False

        def run(self, run: Run) -> None:
            run.site = replace(run.site, skipped=("head1",))

    monkeypatch.setattr(secret, "ENTRY", (Skip(),))
    old = secrets.values(cluster.parent)
    with pytest.raises(PreflightError, match=r"head1.*both write the same queue"):
        secret.rotate(Options("secret", cluster, subverb="rotate", flags=("munge_key",), skip_unreachable=True))
    assert secrets.values(cluster.parent) == old


def test_rotate__unknown_name__contacts_nobody(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "execute", lambda *_, **__: pytest.fail("it began"))
    with pytest.raises(InputError, match="did you mean munge_key"):
        secret.rotate(Options("secret", cluster, subverb="rotate", flags=("mung_key",)))


def test_again__of_a_rotation__is_what_was_typed(cluster: Path) -> None:
    options = Options("secret", cluster, subverb="rotate", flags=("munge_key",), skip_unreachable=True)
    assert options.again() == f"clusterctl secret rotate {cluster} munge_key --skip-unreachable"


def test_rotate__old_and_new_secrets__are_redacted_to_the_end(rotated: Played, cluster: Path) -> None:
    """While keys are exchanged the nodes still have the old ones; a backup key protects old archives for good."""
    old = secrets.values(cluster.parent)
    rotated("munge_key backup_key", None, None)
    new = secrets.values(cluster.parent)
    said = " ".join([old["munge_key"], new["munge_key"], old["backup_key"], new["backup_key"]])
    assert rotated.runs[-1].redact(said) == " ".join(["[redacted]"] * 4)  # type: ignore[attr-defined]
