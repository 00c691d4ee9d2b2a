"""What leads up to a run."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl import converge, known_hosts, preflight
from clusterctl.errors import InputError, PreflightError
from clusterctl.known_hosts import HostKey
from clusterctl.preflight import Contact, Finding
from clusterctl.remote import Access
from clusterctl.report import Screen

from .ssh_server import host, inventory

PASSWORD = "correct horse battery"


def site(directory: Path) -> converge.Site:
    made = inventory(directory, host(22))
    options = converge.Options("verify", directory)
    return converge.Site(options, made, made.hosts, Access(directory / "known_hosts", PASSWORD))


@pytest.mark.proves("secrets", "Preflight's problems and notes show no sudo password.")
def test_what_a_node_says_before_a_run_shows_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = Finding("gpu01", "sudo", f"admin cannot become root: {PASSWORD}: not found", f"say {PASSWORD}")

    def refuse(*_: Any) -> Contact:
        raise PreflightError([finding])

    monkeypatch.setattr(preflight, "preflight", refuse)
    with pytest.raises(PreflightError, match=r"cannot become root: \[redacted\]: not found") as refused:
        converge.prepare(site(tmp_path), Screen(io.StringIO()))
    assert PASSWORD not in str(refused.value)
    monkeypatch.setattr(preflight, "preflight", lambda *_: Contact({}, (replace(finding, warning=True),), {}, ()))
    page = io.StringIO()
    converge.prepare(site(tmp_path), Screen(page))
    assert "note: gpu01: sudo" in page.getvalue()
    assert PASSWORD not in page.getvalue()


def test_host_keys_that_cannot_be_written_are_no_bug(tmp_path: Path) -> None:
    key = HostKey("gpu01", "gpu01", "ssh-ed25519", "SHA256:x", "gpu01 ssh-ed25519 AAAA")
    with pytest.raises(InputError, match="known_hosts: cannot be written: No such file"):
        known_hosts.add(tmp_path / "gone/known_hosts", [key])


@pytest.mark.parametrize(("adopt", "variables"), [(True, {"slurm_head_adopt": True}), (False, {})])
def test_adopt__of_a_run__reaches_the_role_of_the_head(tmp_path: Path, adopt: bool, variables: dict[str, bool]) -> None:
    one = site(tmp_path)
    assert replace(one, options=replace(one.options, adopt=adopt)).command().variables == variables
