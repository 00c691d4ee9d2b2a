"""Everything that reads what NVIDIA's programs and driver print, on what they printed elsewhere (tests/samples/gpu).

Where that comes from stands in tests/samples/gpu/SOURCES and in the files. Only the records of the nodes are made here,
of the same documents.
"""

import csv
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusterctl.util import paths
from tests.unit.test_gpu_config import CONFIG
from tests.unit.test_gpu_health import CHECKS, DIAGNOSIS, ERRORS, GIVEN, HEALTH, NODE, SMI, diagnose, ill, line

__all__ = ["ill"]

SAMPLES = Path(__file__).parent.parent / "samples" / "gpu"
DOCUMENTS = {path.stem: path.read_text() for path in sorted((SAMPLES / "xml").glob("*.xml"))}
DEGRADED, GB200 = "k8stestinfra-qx-gb200-fabric-degraded", "k8stestinfra-hardware-qx-gb200"
FAN = "aix-quadro-p5000-fan"
MATRICES = {path.stem: path.read_text() for path in sorted((SAMPLES / "topo").glob("*.txt"))}
LINES = (SAMPLES / "xid/lines-gpud.txt").read_text().splitlines()
OTHERS = [
    text.replace(r"\n", "\n")
    for text in (SAMPLES / "xid/lines-others.txt").read_text().splitlines()
    if not text.startswith("#")
]
DEFAULTS = yaml.safe_load((paths.content() / "roles/gpu_health/defaults/main.yml").read_text())
XIDS = DEFAULTS["gpu_health_xids"]

Find = Callable[..., list[tuple[str, str, bool]]]


def recorded(document: str) -> list[dict[str, Any]]:
    """What discovery records of the GPUs of this document."""
    return [
        {
            "index": index,
            "uuid": gpu.findtext("uuid", ""),
            "pci": gpu.get("id"),
            "links": {},
            "lanes": int(gpu.findtext("pci/pci_gpu_link_info/link_widths/current_link_width", "16x").rstrip("x")),
            "memory_mb": 1,
        }
        for index, gpu in enumerate(ET.fromstring(document).iter("gpu"))  # noqa: S314 - a file of ours
    ]


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch) -> Find:
    """What a look at a node finds of which nvidia-smi prints a document; the advice about its memory is left out."""

    def look(
        document: str, log: str = "", listing: str = "", gpus: list[dict[str, Any]] | None = None, **given: Any
    ) -> list[tuple[str, str, bool]]:
        answers = {
            ("nvidia-smi", "-q"): document,
            ("nvidia-smi", "-L"): listing,
            ("nvidia-smi", "topo"): given.pop("matrix", ""),
            ("nvidia-smi", "nvlink"): given.pop("links", ""),
            ("journalctl", "--lines=1"): json.dumps({"__CURSOR": "s=2"}),
            ("journalctl", "--quiet"): log,
            ("systemctl", "show"): "ActiveState=inactive\nUnitFileState=\n",
        }
        monkeypatch.setattr(NODE, "run", lambda *argv, **_: answers[argv[:2]])
        state = given.pop("state", {"cursor": "", "xids": {}, "stuck": 0})
        known = {"xids": XIDS, "skip": ["advice"], "gpus": gpus or recorded(document), **given}
        return [(one.check, one.text, one.drains) for one in CHECKS.Checks(GIVEN | known, state).run()]

    return look


@pytest.mark.proves("health", "Real documents of healthy GPUs, T4 in x8 slots to GB200, report nothing.")
@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name not in (DEGRADED, FAN)])
def test_look__real_document_of_healthy_gpus__finds_nothing(find: Find, name: str) -> None:
    assert find(DOCUMENTS[name]) == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_gpu_config__real_document__is_read(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(NODE, "run", lambda *argv, **_: DOCUMENTS[name] if "-q" in argv else "")
    assert [gpu.uuid for gpu in SMI.read_gpus()] == [gpu["uuid"] for gpu in recorded(DOCUMENTS[name])]


@pytest.mark.proves("health", "An unhealthy NVLink fabric of a real GB200 is reported.")
def test_look__fabric_of_a_real_gb200_is_degraded__names_the_gpu(find: Find) -> None:
    assert find(DOCUMENTS[DEGRADED]) == [
        ("fabric", "GPU 1: fabric health: unhealthy", True),
        ("fabric", "GPU 1: fabric route is unhealthy", True),
    ]


def test_look__gb200_outside_its_domain__is_advised(find: Find) -> None:
    uuid = "00000001-0000-0000-0000-000000000001"
    alone = DOCUMENTS[GB200].replace(uuid, "00000000-0000-0000-0000-000000000000", 1)
    assert alone != DOCUMENTS[GB200]
    assert find(alone) == [("fabric", "GPU 0: in no NVLink domain of its rack", False)]


def test_look__lanes_of_the_slot_are_lost__drains(find: Find) -> None:
    """A T4 in a slot of 8 lanes, as all of a large cloud are, of which 4 are in use now."""
    t4 = DOCUMENTS["telegraf-tesla-t4"]
    less = t4.replace("<current_link_width>8x<", "<current_link_width>4x<")
    assert find(less, gpus=recorded(t4)) == [("pcie", "GPU 0: 4 PCIe lanes, 8 recorded", True)]
    before = [gpu | {"lanes": None} for gpu in recorded(t4)]
    assert find(t4, gpus=before) == [], "recorded by an older clusterctl, which had the card's own lanes alone"


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("channel_repair_pending", "a part waits to be repaired by a reset"),
        ("tpc_repair_pending", "a part waits to be repaired by a reset"),
        ("unrepairable_memory", "memory that cannot be repaired"),
    ],
)
def test_look__repair_is_pending__drains(find: Find, place: str, text: str) -> None:
    bad = DOCUMENTS[GB200].replace(f"<{place}>No<", f"<{place}>Yes<", 1)
    assert find(bad) == [("ecc", f"GPU 0: {text}", True)]


@pytest.mark.proves("health", "`GPU requires reset` and `Unknown Error` in any place are reported.")
@pytest.mark.parametrize(
    "value", ["GPU requires reset", "[GPU requires reset]", "Unknown Error", "GPU is lost", "ERR!"]
)
@pytest.mark.parametrize("place", ["fan_speed", "gpu_temp", "current_ecc", "uuid"])
def test_look__driver_has_lost_a_part__drains(find: Find, place: str, value: str) -> None:
    b200 = DOCUMENTS["k8stestinfra-hardware-qx-b200"]
    bad = re.sub(rf"<{place}>[^<]*<", f"<{place}>{value}<", b200, count=1)
    found = find(bad, gpus=recorded(b200))
    if place == "fan_speed" and value in ("Unknown Error", "ERR!"):
        assert found == [("count", "GPU 0: its fan cannot be read", False)]
        return
    assert ("count", "GPU 0: the driver has lost it", True) in found
    assert not any("GPU 1" in text for _, text, _ in found)


@pytest.mark.proves("health", "A card under load of which only the fan cannot be read stays in service.")
def test_look__fan_alone_cannot_be_read__is_advice(find: Find) -> None:
    p5000 = DOCUMENTS[FAN]
    assert "<gpu_util>100 %</gpu_util>" in p5000 and p5000.count("Unknown Error") == 1
    assert find(p5000) == [("count", "GPU 0: its fan cannot be read", False)]
    bad = re.sub(r"<power_draw>[^<]*<", "<power_draw>Unknown Error<", p5000)
    assert find(bad) == [("count", "GPU 0: the driver has lost it", True)]


def test_gpu_config__gpu_in_the_midst_is_lost__numbers_the_others_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    b200 = DOCUMENTS["k8stestinfra-hardware-qx-b200"]
    gpus = recorded(b200)
    less = re.sub(rf"<gpu id=\"{gpus[3]['pci']}\">.*?</gpu>", "", b200, flags=re.DOTALL)
    listing = "".join(f"GPU {gpu['index']}: NVIDIA B200 (UUID: {gpu['uuid']})\n" for gpu in gpus if gpu["index"] != 3)
    monkeypatch.setattr(NODE, "run", lambda *argv, **_: less if "-q" in argv else listing)
    assert [(gpu.index, gpu.uuid) for gpu in SMI.read_gpus()] == [
        (gpu["index"], gpu["uuid"]) for gpu in gpus if gpu["index"] != 3
    ]


@pytest.mark.proves("health", "No GPU gets the MIG layout that is meant for a lost one.")
def test_gpu_config__a_gpu_is_missing__divides_none_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart nvidia-smi numbers the GPUs without the lost one."""
    b200 = DOCUMENTS["k8stestinfra-hardware-qx-b200"]
    gpus = recorded(b200)
    less = re.sub(rf"<gpu id=\"{gpus[3]['pci']}\">.*?</gpu>", "", b200, flags=re.DOTALL)
    monkeypatch.setattr(NODE, "run", lambda *argv, **_: less if "-q" in argv else "")
    given = {"mig_gpus": {"4": "1g.23gb"}, "uuids": [gpu["uuid"] for gpu in gpus]}
    with pytest.raises(NODE.NodeError, match=f"{gpus[3]['uuid']} is missing"):
        CONFIG.configure(given, {}, check=True)


# As nvidia-smi prints a process, here in a document that has none.
PROCESS = "<processes><process_info><process_name>{}</process_name></process_info></processes>"


@pytest.mark.proves("health", "No process name that a user chooses drains a node.")
@pytest.mark.parametrize(
    "name", ["\x1b[31m", "a\x01b", "\x00", "\uffff", "GPU is lost", "Unknown Error", "GPU requires reset", "ERR!"]
)
def test_look__user_names_a_process__finds_nothing(find: Find, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    h100 = re.sub(r"<processes>.*?</processes>", PROCESS.format(name), DOCUMENTS[GB200], count=1, flags=re.DOTALL)
    assert name in h100
    assert find(h100, gpus=recorded(DOCUMENTS[GB200])) == []
    monkeypatch.setattr(NODE, "run", lambda *argv, **_: h100 if "-q" in argv else "")
    assert len(SMI.read_gpus()) == 4


def places_of(*texts: str) -> list[dict[str, Any]]:
    """Records of GPUs at all the places that lines name."""
    found = sorted({place for text in texts for place in re.findall(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}", text)})
    return [
        {"index": number, "uuid": "", "pci": f"{place}.0", "links": {}, "lanes": 0}
        for number, place in enumerate(found)
    ]


def codes(log: str, gpus: list[dict[str, Any]] | None = None) -> list[str]:
    """The codes of the errors that are found in a journal on a node with these GPUs."""
    look = CHECKS.Checks(GIVEN | {"gpus": gpus or places_of(log), "xids": XIDS}, {"cursor": "", "xids": {}, "stuck": 0})
    return [
        code
        for text in map(json.loads, log.splitlines())
        for place, code in [ERRORS.parse_line(ERRORS.message_of(text), XIDS) or ("", "")]
        if look.is_known(place)
    ]


@pytest.mark.proves("health", "Real kernel lines: XIDs by NVIDIA's catalog, NVLink 5 by its severity word.")
@pytest.mark.parametrize("text", LINES)
def test_errors__real_line__counts_by_the_catalog(text: str) -> None:
    """Some of gpud's own are broken on purpose, and have no number."""
    number = (re.findall(r"\): (\d+), ", text) or [""])[0]
    counts = number and (int(number) in XIDS or (144 <= int(number) <= 150 and " Fatal " in text))
    assert codes(line(text)) == ([number] if counts else [])


NVLINK_5 = [line for line in (SAMPLES / "xid/lines-nvlink5.txt").read_text().splitlines() if not line.startswith("#")]


@pytest.mark.proves("health", "A fatal NVLink 5 error drains, whatever its process is called.")
@pytest.mark.parametrize("row", NVLINK_5)
def test_errors__nvlink_5_with_a_process__counts_by_the_last_severity(row: str) -> None:
    expected, text = row.split(" ", 1)
    assert codes(line(text)) == ([] if expected == "-" else [expected])


@pytest.mark.proves("health", "Every XID that NVIDIA answers with a reset or restart drains.")
def test_xids__by_default__are_those_that_a_reset_or_restart_ends() -> None:
    rows = csv.reader(row for row in (SAMPLES / "xid/catalog.csv").read_text().splitlines() if not row.startswith("#"))
    action = {int(number): what for number, what in rows}
    ends = {"RESET_GPU", "RESTART_BM", "RESTART_VM", "CHECK_MECHANICALS", "WORKFLOW_XID_48", "WORKFLOW_NVLINK_ERR"}
    assert {*XIDS} == {number for number, what in action.items() if what in ends} | {63, 92}
    assert {number for number, what in action.items() if what == "WORKFLOW_NVLINK5_ERR"} == {*ERRORS.NVLINK_XIDS}
    assert not {*ERRORS.NEW_XIDS} & {number for number, what in action.items() if what}
    assert {*ERRORS.MEANINGS} == {*XIDS}


@pytest.mark.proves("health", "Fatal errors of NVSwitch and GPUs that could not start are reported.")
def test_errors__real_lines_of_others__are_those_that_are_fatal() -> None:
    found = {text: codes(line(text)) for text in OTHERS}
    assert [code for each in found.values() for code in each] == ["20034", "start", "start", "start", "start"]
    assert ERRORS.describe("nvidia-nvswitch0", "20034") == "SXid 20034, fatal"


@pytest.mark.proves("health", "A crash of a program that is named like the driver's line drains nothing.")
@pytest.mark.parametrize("text", [text for text in OTHERS if "segfault" in text])
def test_errors__crash_of_a_program_with_such_a_name__is_none(text: str) -> None:
    everywhere = places_of("0000:07:00 0000:05:00", text)
    assert codes(line(text), everywhere) == []


@pytest.mark.proves("health", "An XID in the kernel's own log is reported where the journal cannot be read.")
def test_look__journal_cannot_be_read__xid_of_the_kernels_log_drains(
    find: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    t4 = DOCUMENTS["telegraf-tesla-t4"]
    place = recorded(t4)[0]["pci"].partition(".")[0]
    monkeypatch.setattr(ERRORS, "kernel_records", lambda: iter([f"4,7,1,-;NVRM: Xid (PCI:{place}): 79, pid=1"]))

    def journal(state: dict[str, Any], seconds: float) -> Any:
        raise NODE.CommandError(("journalctl",), ["no response within 10 s"])

    monkeypatch.setattr(ERRORS, "_journal", journal)
    state: dict[str, Any] = {"cursor": "", "xids": {}, "stuck": 0}
    expected = ("xid", "GPU 0: XID 79, GPU has fallen off the bus", True)
    assert find(t4, state=state) == [expected, ("xid", "check failed: journalctl: no response within 10 s", False)]
    assert find(t4, state=state)[0] == expected, "it is not read twice, and remembered"


def test_errors__place_without_a_record__is_none() -> None:
    """Nothing is known of a GPU there: no job gets it."""
    text = "NVRM: Xid (PCI:0000:65:00): 79, pid=1"
    assert codes(line(text)) == ["79"]
    assert codes(line(text), places_of("0000:66:00")) == []


def test_errors__wide_domain__is_that_of_its_record() -> None:
    assert codes(line("NVRM: Xid (PCI:10000:01:00): 79, pid=1"), places_of("00010000:01:00")) == ["79"]


@pytest.mark.proves("health", "A name that is not UTF-8 hides no XID.")
def test_errors__name_that_is_not_utf8__is_seen(find: Find) -> None:
    """The journal has such a line as numbers (https://systemd.io/JOURNAL_EXPORT_FORMATS/)."""
    t4 = DOCUMENTS["telegraf-tesla-t4"]
    place = recorded(t4)[0]["pci"].removeprefix("0000").partition(".")[0].lower()
    text = f"NVRM: Xid (PCI:{place}): 79, pid=1, name=".encode() + b"\xff\xfe"
    entry = json.dumps({"MESSAGE": list(text), "__REALTIME_TIMESTAMP": "1800000000000000", "__CURSOR": "s=1"})
    assert find(t4, log=entry + "\n") == [("xid", "GPU 0: XID 79, GPU has fallen off the bus", True)]


def test_look__xid_that_nvidia_says_nothing_of__is_advice(find: Find) -> None:
    t4 = DOCUMENTS["telegraf-tesla-t4"]
    place = recorded(t4)[0]["pci"].partition(".")[0]
    state: dict[str, Any] = {"cursor": "", "xids": {}, "stuck": 0}
    expected = [("xid", "GPU 0: XID 167, not in NVIDIA's catalog", False)]
    assert find(t4, log=line(f"NVRM: Xid (PCI:{place}): 167, PCIE_FATAL_TIMEOUT"), state=state) == expected
    assert state["xids"] == {}, "no alert of it, and no reset"
    assert find(t4, state=state) == expected, "each later check reports it again, until a diagnosis passes"


@pytest.mark.parametrize("name", MATRICES)
def test_topology__real_matrix__is_the_same_both_ways(name: str) -> None:
    found = SMI.topology(MATRICES[name])
    assert len([part for part in found if part.startswith("GPU")]) in (4, 8)
    assert all(
        found[other][one] == link for one, links in found.items() for other, link in links.items() if other in found
    )


def test_active__real_status__counts_the_links() -> None:
    assert SMI.active_nvlinks((SAMPLES / "nvlink/good_nvlink_status.txt").read_text()) == {
        "GPU-c7e253b0-c227-6f10-e860-7482c85e7ce8": 12
    }


@pytest.mark.proves("health", "A lost GPU is named; its healthy neighbours are not.")
@pytest.mark.parametrize("renumbered", [False, True])
def test_look__gpu_in_the_midst_is_lost__blames_no_other(find: Find, renumbered: bool) -> None:
    """nvidia-smi leaves its number out, and calls the others as before.

    That of branch 550 does so in `nvlink -s` alone, not in `-L` and `topo -m` (seen on the simulated library).
    """
    b200 = DOCUMENTS["k8stestinfra-hardware-qx-b200"]
    gpus = recorded(b200)
    for gpu in gpus:
        gpu["links"] = {str(other["index"]): "NV18" for other in gpus if other is not gpu}
    here = [gpu for gpu in gpus if gpu["index"] != 3]
    less = re.sub(rf"<gpu id=\"{gpus[3]['pci']}\">.*?</gpu>", "", b200, flags=re.DOTALL)
    assert less.count("<gpu id") == 7
    numbers = [*range(len(here))] if renumbered else [gpu["index"] for gpu in here]
    names = [f"GPU{number}" for number in numbers]
    rows = ["\t".join([one, *(" X " if other == one else "NV18" for other in names)]) for one in names]
    found = find(
        less,
        gpus=gpus,
        listing="".join(
            f"GPU {number}: NVIDIA B200 (UUID: {gpu['uuid']})\n" for number, gpu in zip(numbers, here, strict=True)
        ),
        matrix="\t" + "\t".join(names) + "\n" + "\n".join(rows) + "\n",
        links="".join(
            f"GPU {gpu['index']}: NVIDIA B200 (UUID: {gpu['uuid']})\n" + "\t Link 0: 50 GB/s\n" * 18 for gpu in here
        ),
    )
    assert found == [("count", f"GPU 3 is missing ({gpus[3]['uuid']})", True)]


@pytest.mark.parametrize(
    ("action", "drains"), [("Recover IMEX Domain", False), ("Reset", True), ("Drain and Reset", True)]
)
def test_look__driver_asks_for_an_action__drains_unless_it_is_the_domains(
    find: Find, action: str, drains: bool
) -> None:
    asked = re.sub(r"<gpu_recovery_action>[^<]*<", f"<gpu_recovery_action>{action}<", DOCUMENTS[GB200], count=1)
    assert action in asked
    assert find(asked) == [("reset", f"GPU 0: the driver asks for: {action}", drains)]


@pytest.mark.parametrize(
    ("architecture", "groups"), [("Volta", [["a", "b"], ["c"]]), ("Ampere", [["a"], ["b"], ["c"]])]
)
def test_together__joined_by_nvlink__is_reset_at_once_before_ampere(architecture: str, groups: list[list[str]]) -> None:
    """nvidia-smi(1), --gpu-reset: GPUs that NVLink connects have to be reset in one command before Ampere."""
    places = {"a": "0000:01:00", "b": "0000:02:00", "c": "0000:03:00"}
    links = [{"1": "NV2"}, {"0": "NV2"}, {}]
    gpus = [{"index": n, "pci": f"{place}.0", "links": links[n]} for n, place in enumerate(places.values())]
    seen = SMI.Gpu(ET.fromstring(f"<gpu><product_architecture>{architecture}</product_architecture></gpu>"))  # noqa: S314
    asked = [*places.values()] if architecture == "Ampere" else [places["a"], places["c"]]
    found = DIAGNOSIS.reset_groups({"gpus": gpus}, asked, [seen])
    assert found == [[places[name] for name in group] for group in groups]


def test_diagnosis__error_of_a_switch__asks_for_a_reboot(ill: list[tuple[str, ...]]) -> None:
    state = HEALTH.load_state() | {"xids": {"nvidia-nvswitch0": {"20034": 1.0}}}
    found, _ = diagnose(state)
    assert [one.text for one in found] == ["nvidia-nvswitch0 had a fatal error, so the node has to be rebooted"]
    assert ill == []


def dcgm(status: str, severity: int | None) -> str:
    """What `dcgmi diag -r 1 -j` of DCGM 4 prints of a node with two GPUs, the second of which may fail.

    The form is that of a real document of 2026-08, of which persistence mode was off (find_string id 68950605039).
    """
    warning = {"error_category": 8, "error_id": 29, "warning": "Persistence Mode: ..."}
    failed = {"warnings": [warning | ({} if severity is None else {"error_severity": severity})]}
    results = [
        {"entity_group": "GPU", "entity_id": gpu, "status": status if gpu else "Pass", **(failed if gpu else {})}
        for gpu in range(2)
    ]
    return json.dumps(
        {
            "DCGM Diagnostic": {
                "test_categories": [{"category": "Deployment", "tests": [{"name": "software", "results": results}]}]
            }
        }
    )


# Of DCGM's own unit test of 3.2 (find_string id 43597584485): it writes null between tests, and may warn before them.
DCGM_3 = """\tWARNING: something\n{"DCGM GPU Diagnostic": {"test_categories": [{"category": "Deployment", "tests": [
{"name": "Denylist", "results": [{"gpu_ids": "0,1", "status": "PASS"}]}, null,
{"name": "NVML Library", "results": [{"gpu_ids": "0,1", "status": "STATUS"}]}]}], "version": "3.2.0"}}"""


@pytest.mark.proves("health", "A diagnosis of DCGM that cannot start is no verdict.")
@pytest.mark.parametrize(
    ("answer", "text", "drains"),
    [
        (dcgm("Pass", None), "", None),
        (dcgm("Fail", 2), "DCGM: software has failed", True),
        (dcgm("Fail", None), "DCGM: software has failed", True),
        (dcgm("Fail", 5), "DCGM: software has failed", False),
        (DCGM_3.replace("STATUS", "PASS"), "", None),
        (DCGM_3.replace("STATUS", "FAIL"), "DCGM: NVML Library has failed", True),
        (
            "Error: Cannot load plugins. Unable to change to the plugin dir",
            "DCGM could not run: Error: Cannot load",
            False,
        ),
        ('{"DCGM GPU Diagnostic": {"version": "4.2.3"}}', "DCGM could not run: ", False),
        ("", "DCGM could not run: dcgmi: exit status 226", False),
    ],
)
def test_run_dcgm__what_it_prints__is_judged(
    ill: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, answer: str, text: str, drains: bool | None
) -> None:
    def ask(*argv: str, seconds: float, accept_failure: bool = False) -> str:
        if argv[0] != "dcgmi":
            return ""
        assert accept_failure
        if not answer:
            raise NODE.CommandError(argv, ["exit status 226"])
        return answer

    monkeypatch.setattr(NODE, "run", ask)
    found = DIAGNOSIS.run_dcgm()
    assert [one.drains for one in found] == ([] if drains is None else [drains])
    assert all(one.text.startswith(text) for one in found)


def test_run__program_fails_within_its_xml__its_first_line_is_the_reason() -> None:
    with pytest.raises(NODE.CommandError) as failed:
        NODE.run("sh", "-c", "echo '<?xml ?>'; echo '  <a>'; echo 'Unable to determine it: GPU requires reset'; exit 3")
    assert failed.value.brief == "sh: Unable to determine it: GPU requires reset"


CAPTURES = {path.stem: path.read_text() for path in sorted((SAMPLES / "captures").glob("*.txt"))}


def printed(capture: str, command: str) -> str:
    """What a command printed on a server, of a capture of many."""
    found = re.search(rf"\n# \$ nvidia-smi {re.escape(command)}\n#+\n(.*?)(?=\n#{{20}}|\Z)", capture, re.DOTALL)
    assert found, command
    return found[1] + "\n"


@pytest.mark.proves("health", "Lists, matrices and link states of real servers are read by every parser.")
@pytest.mark.parametrize("name", CAPTURES)
def test_capture__of_a_real_server__is_read(name: str) -> None:
    listing, links = printed(CAPTURES[name], "-L"), printed(CAPTURES[name], "nvlink -s")
    numbers = SMI.gpu_numbers(listing)
    assert [*numbers.values()] == [0]
    layout = list(SMI.mig_profiles(listing).get(0, {}).values())
    assert layout == (["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"] if "mig" in name else [])
    assert SMI.topology(printed(CAPTURES[name], "topo -m")) == {"GPU0": {}}
    up = SMI.active_nvlinks(links)
    assert up.keys() <= numbers.keys()
    assert sum(up.values()) == links.count(" GB/s")
    has_links = "h100-80gb" in name and "-vm" not in name
    assert (sum(up.values()) == 18) is has_links, "a divided GPU uses none, one in a virtual machine may have none"


def test_capture__profiles_of_a_real_h100__are_placed() -> None:
    capture = CAPTURES["own__nvidia-h100-80gb-hbm3-vm__580.159.04"]
    found = SMI.mig_placements(printed(capture, "mig -lgip"), printed(capture, "mig -lgipp"))
    assert list(found) == ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]
    assert found["1g.20gb"] == [range(start, start + 2) for start in (0, 2, 4, 6)]
    assert found["7g.80gb"] == [range(8)]


@pytest.mark.proves("health", "A real H100 under full load, at its power limit, stays in service.")
def test_look__real_h100_at_its_power_limit__finds_nothing(find: Find) -> None:
    busy = DOCUMENTS["own-h100-80gb-hbm3-driver-580.159.04-busy"]
    assert "<gpu_util>100 %</gpu_util>" in busy
    assert "<clocks_event_reason_sw_power_cap>Active<" in busy
    assert find(busy) == []
