"""The metrics of disks and sensors, from outputs of smartctl and FreeIPMI on servers elsewhere.

Where they come from is in tests/samples/hardware/SOURCES. Tests change single fields of them, and say so.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.labs import REPOSITORY
from tests.unit.head_programs import load

PROGRAM = load("hardware-metrics")
SAMPLES = REPOSITORY / "tests/samples/hardware"
NO_DISKS = '{"json_format_version": [1, 0], "smartctl": {"exit_status": 0}}'
"""What smartctl 7.3 prints where it finds no disk, shortened."""


def smart(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SAMPLES / f"smart/{name}.json").read_text())
    return found


def of_disk(answer: dict[str, Any], device: str = "/dev/sda", kind: str = "auto") -> dict[str, Any]:
    """Return the series of one disk, with names and labels as text."""
    scan = json.dumps({"devices": [{"name": device, "type": kind}]})

    def ask(argv: Sequence[str], _seconds: int) -> str:
        return scan if "--scan" in argv else json.dumps(answer)

    return series(PROGRAM.count(ask, False, ""))


def of_sensors(text: str, power: str = "", events: str = "") -> dict[str, Any]:
    def ask(argv: Sequence[str], _seconds: int) -> str:
        return {"smartctl": NO_DISKS, "ipmi-sensors": text, "ipmi-dcmi": power, "ipmi-sel": events}[argv[0]]

    return series(PROGRAM.count(ask, True, "/cache"))


def series(metrics: dict[str, dict[tuple[tuple[str, str], ...], float]]) -> dict[str, Any]:
    return {
        name + "".join(f" {value}" for _, value in labels): number
        for name, values in metrics.items()
        for labels, number in values.items()
    }


def shortened(found: dict[str, Any]) -> dict[str, Any]:
    """Return the series of a disk without the prefix that most have."""
    return {name.removeprefix("smartctl_device_"): value for name, value in found.items()}


@pytest.mark.proves("monitoring", "Each kind of disk has its health, from real outputs of smartctl.")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "hdd-sata",
            {
                "smart_status sda": 1,
                "temperature sda current": 32,
                "power_on_seconds sda": 1730 * 3600,
                "attribute sda 5 Reallocated_Sector_Ct raw": 0,
                "attribute sda 197 Current_Pending_Sector raw": 0,
                "attribute sda 198 Offline_Uncorrectable raw": 0,
            },
        ),
        ("hdd-pending", {"smart_status sda": 1, "attribute sda 197 Current_Pending_Sector raw": 10}),
        (
            "hdd-failed-usb",
            {
                "smart_status sda": 0,
                "smartctl_exit_status sda": 216,
                "attribute sda 5 Reallocated_Sector_Ct raw": 1975,
                "attribute sda 197 Current_Pending_Sector raw": 8,
            },
        ),
        ("ssd-sata", {"smart_status sda": 1, "attribute sda 5 Reallocated_Sector_Ct raw": 4}),
        (
            "nvme",
            {
                "smart_status sda": 1,
                "critical_warning sda": 0,
                "media_errors sda": 0,
                "percentage_used sda": 3,
                "available_spare sda": 100,
                "available_spare_threshold sda": 10,
            },
        ),
        ("nvme-failed", {"smart_status sda": 0, "critical_warning sda": 16}),
        (
            "sas",
            {
                "smart_status sda": 1,
                "smartctl_scsi_grown_defect_list sda": 0,
                "smartctl_read_total_uncorrected_errors sda": 0,
                "smartctl_write_total_uncorrected_errors sda": 0,
            },
        ),
        ("megaraid-disk", {"smart_status sda": 1, "attribute sda 5 Reallocated_Sector_Ct raw": 387}),
    ],
)
def test_disk__of_each_kind__has_its_health(name: str, expected: dict[str, float]) -> None:
    found = shortened(of_disk(smart(name)))
    assert {key: found.get(key) for key in expected} == expected
    assert found["smartctl_devices"] == 1


def test_disk__of_a_sample__has_a_bounded_number_of_series() -> None:
    """docs/monitoring.md states 15."""
    numbers = {path.stem: len(of_disk(smart(path.stem))) - 1 for path in SAMPLES.glob("smart/[!s]*.json")}
    assert len(numbers) > 5
    assert max(numbers.values()) <= 15, numbers


@pytest.mark.parametrize("name", ["raid-volume", "open-failed"])
def test_disk__that_has_no_health__has_no_verdict(name: str) -> None:
    """The volume of a RAID controller and a disk that cannot be opened: neither healthy nor failing."""
    found = shortened(of_disk(smart(name)))
    assert found["smartctl_exit_status sda"] in (2, 4)
    assert not [key for key in found if key.startswith(("smart_status", "critical", "attribute"))]


def test_disk__behind_a_usb_bridge_that_smartctl_does_not_know__has_no_verdict() -> None:
    """The message is of smartmontools/smartmontools#419, in the envelope that smartctl 7.3 prints for errors."""
    answer = smart("open-failed")
    text = "/dev/sdg: Unknown USB bridge [0x1e91:0xa3a5 (0x100)]"
    answer["smartctl"]["messages"] = [{"string": text, "severity": "error"}]
    answer["smartctl"]["exit_status"] = 1
    assert shortened(of_disk(answer)) == {"smartctl_devices": 1, "smartctl_exit_status sda": 1}


def test_disk__in_standby__is_not_woken_and_has_no_verdict() -> None:
    """The text is that of ataprint.cpp; the exit status is 2."""
    assert "--nocheck=standby" in PROGRAM.SMART
    answer = {key: smart("hdd-sata")[key] for key in ("json_format_version", "smartctl", "device")}
    answer["smartctl"] |= {"exit_status": 2, "messages": [{"string": "Device is in STANDBY mode, exit(2)"}]}
    assert shortened(of_disk(answer)) == {"smartctl_devices": 1, "smartctl_exit_status sda": 2}


@pytest.mark.parametrize(
    ("name", "added"),
    [
        ("sas", {"scsi_percentage_used_endurance_indicator": 7}),
        ("ssd-sata", {"endurance_used": {"current_percent": 7}}),
        (
            "ssd-sata",
            {
                "ata_device_statistics": {
                    "pages": [{"number": 7, "table": [{"offset": 8, "value": 7, "flags": {"valid": True}}]}]
                }
            },
        ),
    ],
    ids=["sas", "sata-of-smartctl-7.5", "sata"],
)
def test_disk__with_its_wear_in_another_field__has_it(name: str, added: dict[str, Any]) -> None:
    """No sample has these fields, of scsiprint.cpp and ataprint.cpp, so they are added."""
    assert shortened(of_disk({**smart(name), **added}))["percentage_used sda"] == 7


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("scan-simple", [(f"/dev/sd{letter}", "auto") for letter in "abcdefg"]),
        ("scan-nvme", [("/dev/nvme0", "nvme")]),
        ("scan-megaraid", [("/dev/bus/0", "megaraid,0"), ("/dev/bus/0", "megaraid,1")]),
    ],
)
def test_scan__of_a_server__has_its_disks(name: str, expected: list[tuple[str, str]]) -> None:
    assert PROGRAM.disks(smart(name)) == expected
    assert len({PROGRAM.disk_label(*disk) for disk in expected}) == len(expected)
    assert PROGRAM.disk_label("/dev/bus/0", "megaraid,1") == "bus_0_megaraid_1"


@pytest.mark.proves("monitoring", "Sensors of servers by several vendors have their values and states.")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "huawei",
            {
                "ipmi_temperature_celsius 1 Inlet Temp": 19,
                "ipmi_power_watts 7 Power": 294,
                "ipmi_voltage_volts 18 PS1 VIN": 220,
                "ipmi_current_amperes 19 PS1 IIn": 0.6,
                "ipmi_sensor_state 146 NIC1-1 Link Down Slot/Connector": 1,
                "ipmi_sensor_state 123 Sec. Log Full Event Logging Disabled": None,
            },
        ),
        (
            "hpe",
            {
                "ipmi_temperature_celsius 38 38-Battery Zone": 34,
                "ipmi_temperature_state 38 38-Battery Zone": 0,
                "ipmi_temperature_state 39 39-P/S 1 Inlet": None,
            },
        ),
        ("hpe-ilo", {"ipmi_fan_speed_ratio 6 Fan Meter": 0.61, "ipmi_fan_speed_state 6 Fan Meter": 0}),
        (
            "dell",
            {
                "ipmi_sensor_state 165 PSU2 Status Power Supply": 0,
                "ipmi_sensor_state 168 PS Redundancy Power Supply": 0,
                "ipmi_sensor_state 170 Power On Status OEM Reserved": None,
            },
        ),
        ("supermicro", {"ipmi_fan_speed_rpm 339 FAN1": 3800, "ipmi_fan_speed_state 339 FAN1": 0}),
        (
            "supermicro-h8dgu",
            {"ipmi_voltage_volts 808 +12 V": 12.19, "ipmi_sensor_state 1813 PS Status Power Supply": None},
        ),
    ],
)
def test_sensors__of_a_vendor__have_values_and_states(name: str, expected: dict[str, float | None]) -> None:
    found = of_sensors((SAMPLES / f"ipmi/{name}.csv").read_text())
    assert {key: found.get(key) for key in expected} == expected
    assert found["ipmi_up ipmi"] == 1


@pytest.mark.parametrize(
    "event", ["'Redundancy Lost'", "'Presence detected' 'Power Supply input out-of-range, but present'"]
)
def test_sensor__of_a_power_supply_that_failed__is_critical(event: str) -> None:
    """No public output has one, so a state is changed as freeipmi_interpret_sensor.conf has it. Events have commas."""
    text = (SAMPLES / "ipmi/dell.csv").read_text().replace("Nominal,N/A,N/A,'Fully", f"Critical,N/A,N/A,{event}'Fully")
    assert of_sensors(text)["ipmi_sensor_state 168 PS Redundancy Power Supply"] == 2


def test_power__that_the_bmc_does_not_measure__is_not_written() -> None:
    text = (SAMPLES / "ipmi/dcmi-not-available.txt").read_text()
    assert "ipmi_dcmi_power_consumption_watts" not in of_sensors("", text)
    active = text.replace("Not Available", "Active")
    assert of_sensors("", active)["ipmi_dcmi_power_consumption_watts"] == 105


def test_event_log__of_freeipmi__has_entries_and_space() -> None:
    """The titles are those of ipmi-sel.c of FreeIPMI 1.6."""
    text = "Number of log entries                  : 493\nFree space remaining                   : 8528 bytes\n"
    found = of_sensors("", "", text)
    assert (found["ipmi_sel_logs_count"], found["ipmi_sel_free_space_bytes"]) == (493, 8528)


def test_count__a_bmc_that_does_not_answer__is_said_and_disks_are_counted() -> None:
    found = series(PROGRAM.count(lambda argv, _: NO_DISKS if argv[0] == "smartctl" else None, True, "/cache"))
    assert found == {"smartctl_devices": 0, "ipmi_up ipmi": 0, "ipmi_up dcmi": 0, "ipmi_up sel": 0}


def test_count__without_a_bmc__asks_for_no_sensors() -> None:
    asked: list[str] = []

    def ask(argv: Sequence[str], _seconds: int) -> str:
        asked.append(argv[0])
        return NO_DISKS

    PROGRAM.count(ask, False, "/cache")
    assert asked == ["smartctl"]


def test_count__more_disks_and_sensors_than_any_server__is_bounded() -> None:
    scan = json.dumps({"devices": [{"name": f"/dev/sd{n}", "type": "scsi"} for n in range(1000)]})
    sensors = "".join(f"{n},T{n},Temperature,Nominal,1.00,C,'OK'\n" for n in range(1000))
    answers = {"ipmi-sensors": sensors, "ipmi-dcmi": "", "ipmi-sel": ""}
    answer = json.dumps(smart("nvme"))
    found = PROGRAM.count(lambda argv, _: answers.get(argv[0], scan if "--scan" in argv else answer), True, "/cache")
    assert found["smartctl_devices"] == {(): PROGRAM.DISKS}
    assert len(found["smartctl_device"]) == PROGRAM.DISKS
    assert len(found["ipmi_temperature_celsius"]) == PROGRAM.SENSOR_SERIES


def test_run__commands_that_fail__are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """smartctl also fails with an answer, whose exit status has the reason."""
    assert PROGRAM.run([sys.executable, "-c", "print('{}'); raise SystemExit(4)"], 60) == "{}\n"
    assert PROGRAM.run([sys.executable, "-c", "raise SystemExit('no BMC')"], 60) is None
    assert PROGRAM.run(["/nonexistent/smartctl"], 60) is None
    assert PROGRAM.run([sys.executable, "-c", "import time; time.sleep(60)"], 0.1) is None
    said = capsys.readouterr().err
    assert "no BMC" in said and "No such file" in said and "timed out" in said


def test_render__of_a_server__is_text_that_prometheus_reads(tmp_path: Path) -> None:
    scan = json.dumps({"devices": [{"name": "/dev/nvme0", "type": "nvme"}]})
    sensors = (SAMPLES / "ipmi/huawei.csv").read_text()
    answers = {"ipmi-sensors": sensors, "ipmi-dcmi": "", "ipmi-sel": ""}
    answer = json.dumps(smart("nvme"))
    found = PROGRAM.count(lambda argv, _: answers.get(argv[0], scan if "--scan" in argv else answer), True, "/cache")
    text = PROGRAM.metrics_file.render(found, PROGRAM.DESCRIPTIONS)
    assert "# TYPE smartctl_device_smart_status gauge\n" in text
    assert 'smartctl_device_smart_status{device="nvme0"} 1\n' in text
    assert 'ipmi_temperature_celsius{id="1",name="Inlet Temp"} 19.0\n' in text
