"""`clusterctl lab fault`: what each fault changes, the kernel's words, and what is refused untouched."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from clusterctl.lab import fault
from clusterctl.lab.cli import app
from clusterctl.lab.lab import Lab, Settings, gpu_models
from clusterctl.lab.podman import LabError
from tests.unit.test_nvml_symbols import SOURCE

A100, V100 = fault.read_profile("a100-sxm4-80gb"), fault.read_profile("v100-sxm2-32gb")
NAMES = sorted(fault.FAULTS.keys() - {"clear"})


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A lab that has been described and has no containers."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    lab = Lab("described")
    lab.directory.mkdir(parents=True)
    (lab.directory / ".lab").mkdir()
    lab._write_private(Settings("described", workers=1, subnet="10.213.0.0/24"), [])
    return lab


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("model", gpu_models())
def test_a_fault_sets_only_what_clear_takes_away_and_the_library_reads(name: str, model: str) -> None:
    try:
        made = fault.change(name, None, fault.read_profile(model), 1)
    except LabError as error:
        assert "has no part that could fail so" in str(error)
        assert name in ("row-remap", "nvlink-down", "fabric-down")
        return
    changed = made.state.keys() | made.kept.keys()
    assert changed
    assert changed <= set(fault.KEYS)
    assert all(f'"{key}"' in SOURCE for key in changed)


def test_what_depends_on_the_model() -> None:
    assert "remapped_uncorrected" in fault.change("ecc", None, A100, 1).kept
    assert "retired_pages" in fault.change("ecc", None, V100, 1).kept
    assert fault.change("hot", None, A100, 7).state == {"temperature": 90, "violation_thermal_since": 7}


def test_xids() -> None:
    assert fault.change("gpu-xid", 79, A100, 1) == fault.change("gpu-lost", None, A100, 1)
    assert fault.change("gpu-xid", 13, A100, 1) == fault.Change(xids=(13,))
    assert fault.change("gpu-xid", 119, A100, 1) == fault.Change({"reset_required": 1}, xids=(119,))
    lost = "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    assert fault.kernel_line(79, 2, A100) == f"NVRM: Xid (PCI:0000:47:00): 79, {lost}"
    assert fault.kernel_line(999, 9, A100) == "NVRM: Xid (PCI:0001:0f:00): 999, pid='<unknown>', name=<unknown>"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gpu01", "gpu-xit", "79"], "gpu-xit: no such fault; did you mean gpu-xid?"),
        (["gpu01", "frobnicate"], "frobnicate: no such fault; choose from gpu-xid, gpu-lost, ecc"),
        (["gpu1", "hot"], "lab described has no node gpu1; did you mean gpu01?"),
        (["gpu01", "hot", "--gpu", "4"], "gpu01 has no GPU 4; its GPUs: 0, 1, 2, 3"),
        (["head1", "hot"], "head1 has no GPUs"),
        (["gpu01", "gpu-xid"], "gpu-xid: which XID? for instance 79"),
        (["gpu01", "hot", "79"], "hot: takes no number"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_is_refused_with_the_nearest_name(lab: Lab, arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["fault", "--name", lab.name, *arguments])
    assert isinstance(done.exception, LabError)
    assert done.exception.exit_code == 2
    assert said in str(done.exception)


def test_a_lab_that_is_not_there_is_named() -> None:
    with pytest.raises(LabError, match="`clusterctl lab up --name nowhere` makes the lab"):
        Lab("nowhere").fault("gpu01", "hot", None, None)
