"""Hardware: what a node reports is data, a record is whole or refused, and what a record says is what was found."""

import ast
import copy
import http.server
import json
import os
import platform
import pwd
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.nodes import probe
from clusterctl.nodes.probe import common as probe_common
from clusterctl.nodes.probe import gpus as probe_gpus
from clusterctl.nodes.probe import machine as probe_machine
from clusterctl.nodes.probe import packages as probe_packages
from clusterctl.nodes.probe import services as probe_services
from clusterctl.util import paths
from clusterctl.util.errors import InputError
from clusterctl.util.text import printable
from clusterctl.util.untrusted import Malformed
from clusterctl.workspace import hardware
from clusterctl.workspace.hardware import Hardware

NOW = datetime(2026, 11, 21, 1, 2, 3, tzinfo=UTC)
TEMPLATE = "{{ lookup('pipe','touch MARKER') }}"
Path_ = tuple[str | int, ...]


def gpu(index: int, model: str = "NVIDIA A100-SXM4-80GB") -> dict[str, Any]:
    return {
        "index": index,
        "model": model,
        "memory_mb": 81920,
        "uuid": f"GPU-0000000{index}-aaaa-bbbb-cccc-0123456789ab",
        "pci": f"00000000:0{index}:00.0",
        "device": f"/dev/nvidia{index}",
        "cpus": "0-15,32",
        "links": {str(1 - index): "NV12"},
        "pcie_generation": 4,
        "pcie_width": 16,
    }


def reply() -> dict[str, Any]:
    """Return what the probe says of a good node with two GPUs."""
    return {
        "os": {
            "id": "debian",
            "version": "13",
            "codename": "trixie",
            "family": "Debian",
            "architecture": "x86_64",
            "kernel": "6.12.48+deb13-amd64",
        },
        "cpu": {"model": "AMD EPYC 9654", "sockets": 2, "cores_per_socket": 8, "threads_per_core": 2, "cpus": 32},
        "memory_mb": 515_000,
        "gpus": [gpu(0), gpu(1)],
        "driver_version": "550.163.01",
        "nics": [{"name": "eth0", "mac": "7e:f0:45:b9:96:de", "speed_mbps": None, "addresses": ["10.0.0.11/24"]}],
        "disks": [{"name": "nvme0n1", "size_gb": 3840, "rotational": False}],
        "cgroup": {"version": 2, "controllers": ["cpu", "cpuset", "devices", "memory"]},
        "nameservers": ["10.0.0.1", "fe80::1%eth0"],
        "resolver": "plain",
        "cloud_init": False,
        "machine_id": "246dccc5b84622da1c916af7d1ce93ae",
    }


def changed(path: Path_, value: object) -> dict[str, Any]:
    """Return that reply with one value replaced."""
    data: Any = reply()
    inner = data
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    result: dict[str, Any] = copy.deepcopy(data)
    return result


def node(path: Path_ = (), value: object = None, name: str = "gpu01") -> Hardware:
    return hardware.from_reply(name, changed(path, value) if path else reply(), NOW)


# --- what a node says -------------------------------------------------------------------------------------------------


def test_a_good_reply_becomes_a_record() -> None:
    record = node()
    assert record.recorded == "2026-11-21T01:02:03Z"
    assert [g.type for g in record.gpus] == ["a100", "a100"]
    assert record.gpus[0].links == {"1": "NV12"}
    assert record.nameservers == ("10.0.0.1", "fe80::1")


def test_the_zone_of_an_address_is_a_text_of_the_nodes_and_goes_nowhere() -> None:
    record = node(("nics", 0, "addresses"), [f"fe80::1%{TEMPLATE.replace('/', '')}\nState=DOWN/64"])
    assert record.nics[0].addresses == ("fe80::1/64",)


@pytest.mark.proves("untrusted", "A wrong value in a node's hardware report is refused by name.")
@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("memory_mb",), -1),
        (("memory_mb",), True),
        (("memory_mb",), 1.5),
        (("memory_mb",), "24105"),
        (("memory_mb",), 10**30),
        (("memory_mb",), 1 << 29),
        (("gpus", 0, "memory_mb"), 1 << 22),
        (("cpu", "sockets"), 0),
        (("cpu", "cpus"), None),
        (("cpu",), []),
        (("os", "id"), TEMPLATE),
        (("os", "id"), ""),
        (("os", "kernel"), "6.1; reboot"),
        (("gpus",), {"0": {}}),
        (("gpus",), [gpu(0)] * 65),
        (("gpus", 0), "gpu"),
        (("gpus", 0, "index"), -1),
        (("gpus", 0, "model"), None),
        (("gpus", 0, "uuid"), "GPU-$(reboot)"),
        (("gpus", 0, "device"), "/dev/nvidia0\nGresTypes=x"),
        (("gpus", 0, "device"), "/dev/sda"),
        (("gpus", 0, "cpus"), "0-1 State=DOWN"),
        (("gpus", 0, "cpus"), "0-99999999999"),
        (("gpus", 0, "cpus"), "15-0"),
        (("gpus", 0, "cpus"), "0,,1"),
        (("gpus", 0, "index"), 1),
        (("gpus", 0, "device"), "/dev/nvidia1"),
        (("gpus", 0, "uuid"), "GPU-00000001-aaaa-bbbb-cccc-0123456789ab"),
        (("gpus", 0, "links"), {"1": "NV12 or so"}),
        (("gpus", 0, "links"), {"../1": "NV12"}),
        (("nics", 0, "name"), "eth0;reboot"),
        (("nics", 0, "addresses"), ["10.0.0.300/24"]),
        (("nics", 0, "addresses"), "10.0.0.1/24"),
        (("disks", 0, "rotational"), 1),
        (("cgroup", "version"), 3),
        (("cgroup", "controllers"), ["cpu\nx=1"]),
        (("nameservers",), [TEMPLATE]),
        (("nameservers",), ["10.0.0.1"] * 9),
        (("resolver",), "dhcpcd"),
        (("cloud_init",), "no"),
        (("machine_id",), "../../etc/passwd"),
        (("driver_version",), "550;x"),
    ],
)
def test_what_is_not_what_it_should_be_is_refused_by_name(path: Path_, value: object) -> None:
    with pytest.raises(Malformed) as caught:
        node(path, value)
    assert str(path[0]) in str(caught.value)
    assert len(str(caught.value)) < 300


def test_hostile_text_is_only_text() -> None:
    record = node(("gpus", 0, "model"), f"\x1b[2J{TEMPLATE}\r\n\u202e")
    assert record.gpus[0].model == f"[2J{TEMPLATE}"
    assert record.gpus[0].type == "2j_lookup_pipe_touch_marker"


def test_ten_megabytes_are_cut() -> None:
    record = node(("gpus", 0, "model"), "A" * 10_000_000)
    assert record.gpus[0].model == "A" * 128
    assert len(record.gpus[0].type) <= 32


def test_unknown_keys_go_nowhere(tmp_path: Path) -> None:
    record = node(("os", "ansible_connection"), "local")
    assert "ansible_connection" not in hardware.save(tmp_path, record).read_text()


def test_the_name_is_ours_and_not_the_nodes() -> None:
    assert hardware.from_reply("gpu01", {**reply(), "name": "head1", "schema": 99}, NOW).name == "gpu01"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*reply(), "x"]), inner, max_size=4),
    max_leaves=12,
)


@given(JSON, st.sampled_from([*reply()]))
def test_no_reply_does_more_than_be_refused(value: object, key: str) -> None:
    for data in (value, {**reply(), key: value}):
        try:
            record = hardware.from_reply("gpu01", data, NOW)
        except Malformed:
            continue
        assert all(len(text) <= 128 and text.isprintable() for text in texts(json.loads(as_json(record))))


def as_json(record: Hardware) -> str:
    from dataclasses import asdict

    return json.dumps(asdict(record))


def texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in (*value, *value.values()) for text in texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in texts(item)]
    return [value] if isinstance(value, str) else []


@given(st.text(max_size=600))
def test_printable_is_printable(text: str) -> None:
    shown = printable(text)
    assert len(shown) <= 128
    assert shown.isprintable()


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA A10G", "a10g"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("Tesla T4", "t4"),
        ("NVIDIA RTX A6000", "rtx_a6000"),
        ("NVIDIA GeForce RTX 4090", "rtx_4090"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx_6000_ada_generation"),
        ("NVIDIA TITAN V", "titan_v"),
        ("unknown", "unknown"),
        ("", "unknown"),
        ("\N{SLIGHTLY SMILING FACE}", "unknown"),
    ],
)
def test_types_are_short_and_a_part_of_what_slurm_reads_from_nvml(model: str, expected: str) -> None:
    assert hardware.gpu_type(model) == expected
    if expected != "unknown":
        assert expected in model.lower().replace(" ", "_")


# --- the record -------------------------------------------------------------------------------------------------------


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    mask = os.umask(0o077)
    try:
        path = hardware.save(tmp_path, node())
    finally:
        os.umask(mask)
    assert path == tmp_path / "hardware" / "gpu01.json"
    assert hardware.load_all(tmp_path) == {"gpu01": node()}
    assert path.stat().st_mode & 0o777 == 0o644
    assert [p.name for p in path.parent.iterdir()] == ["gpu01.json"]


def test_a_record_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hardware.save(tmp_path, node())

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        hardware.save(tmp_path, node(("memory_mb",), 1))
    assert hardware.load(path).memory_mb == 515_000
    assert [p.name for p in path.parent.iterdir()] == ["gpu01.json"]


def _edit(edit: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        data = json.loads(content)
        edit(data)
        return json.dumps(data).encode()

    return change


@pytest.mark.proves("faults", "A damaged or newer hardware record is refused with path and remedy.")
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda content: content[: len(content) // 2], "not a hardware record"),
        (lambda content: b"", "not a hardware record"),
        (lambda content: b"\xff\xfe\x00", "not a hardware record"),
        (lambda content: b"[" * 100_000, "not a hardware record"),
        (lambda content: b"[]", "got [], expected an object"),
        (lambda content: b" " * 2_000_000, "is too big"),
        (_edit(lambda data: data.update(schema=2)), "written by a newer clusterctl"),
        (_edit(lambda data: data.update(name="gpu02")), "the record of gpu02"),
        (_edit(lambda data: data.pop("cpu")), "cpu: got None"),
        (_edit(lambda data: data["gpus"][1].update(type="a100 State=DOWN")), "gpus[1].type"),
        (_edit(lambda data: data.update(memory_mb=-5)), "memory_mb: got -5"),
    ],
)
def test_a_damaged_record_is_refused_with_its_path_and_the_cure(
    tmp_path: Path, damage: Callable[[bytes], bytes], said: str
) -> None:
    path = hardware.save(tmp_path, node())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError) as caught:
        hardware.load_all(tmp_path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    assert "clusterctl bootstrap" in str(caught.value)


def test_every_bad_record_is_named(tmp_path: Path) -> None:
    for name in ("gpu01", "gpu02"):
        hardware.save(tmp_path, node(name=name)).write_text("{")
    hardware.save(tmp_path, node(name="gpu03"))
    with pytest.raises(InputError) as caught:
        hardware.load_all(tmp_path)
    assert len(caught.value.problems) == 2


def test_no_record_is_no_error(tmp_path: Path) -> None:
    assert hardware.load_all(tmp_path) == {}


# --- record and reality -----------------------------------------------------------------------------------------------


def test_what_changes_by_itself_is_no_difference() -> None:
    later = reply()
    later["os"]["kernel"] = "6.12.99"
    later["memory_mb"] = int(515_000 * 0.985)
    later["driver_version"] = "570.1"
    later["nics"][0]["addresses"] = ["10.0.0.99/24"]
    later["nameservers"] = []
    later["disks"] = []
    assert hardware.compare(node(), hardware.from_reply("gpu01", later, NOW)) == []


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("gpus",), [gpu(0)], "GPUs: recorded 2, found 1"),
        (("gpus",), [], "GPUs: recorded 2, found none"),
        (("gpus", 1, "model"), "Tesla T4", "GPU 1 model: recorded NVIDIA A100-SXM4-80GB, found Tesla T4"),
        (("gpus", 1, "uuid"), "GPU-ffff", "GPU 1 UUID"),
        (("gpus", 1, "device"), "/dev/nvidia3", "GPU 1 device"),
        (("memory_mb",), 500_000, "memory: recorded 515000 MB, found 500000 MB"),
        (("cpu", "threads_per_core"), 1, "CPUs: recorded 32 (2 x 8 cores x 2 threads)"),
        (("os", "version"), "12", "operating system: recorded debian 13, found debian 12"),
        (("cgroup", "version"), 1, "cgroup version"),
        (("cgroup", "controllers"), ["cpu"], "cgroup controllers"),
    ],
)
def test_a_difference_is_said_in_one_line(path: Path_, value: object, said: str) -> None:
    lines = hardware.compare(node(), node(path, value))
    assert any(line.startswith(said) for line in lines)


def test_the_gpu_that_is_gone_is_named() -> None:
    lines = hardware.compare(node(), node(("gpus",), [gpu(0)]))
    assert "GPU 1 (NVIDIA A100-SXM4-80GB, 00000000:01:00.0) is missing" in lines


# --- the probe --------------------------------------------------------------------------------------------------------


def run_probe(options: dict[str, Any]) -> dict[str, Any]:
    """Run the probe as a node does, on this machine."""
    done = subprocess.run(
        [sys.executable, "-"], input=probe.program(options), capture_output=True, text=True, check=True
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(probe_common.MARK)]
    assert len(lines) == 1
    answer: dict[str, Any] = json.loads(lines[0][len(probe_common.MARK) :])
    return answer


def test_the_probe_describes_this_machine() -> None:
    answer = run_probe({"services": ["no-such-unit"]})
    record = hardware.from_reply("here", answer["hardware"], NOW)
    assert record.cpu.cpus == os.sysconf("SC_NPROCESSORS_ONLN")
    assert record.memory_mb == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    assert record.os.architecture == platform.machine()
    assert answer["node"]["network"] is None
    assert answer["node"]["services"] == {}
    assert answer["started"] <= answer["ended"]


def test_the_probe_is_python_3_6_and_stands_alone() -> None:
    tree = ast.parse(probe.text(), feature_version=(3, 6))
    imported = {name.name.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for name in n.names}
    imported |= {str(n.module).split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert imported <= set(sys.stdlib_module_names)


def test_cpus_are_counted_by_socket_core_and_thread(tmp_path: Path) -> None:
    """Two sockets of two cores of two threads; core ids repeat in the second socket, CPU 8 is offline."""
    (tmp_path / "online").write_text("0-7\n")
    for cpu in range(9):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{cpu // 2 % 2}\n")
        (topology / "core_cpus_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    found = probe_machine.cpu(str(tmp_path))
    assert {k: found[k] for k in ("sockets", "cores_per_socket", "threads_per_core", "cpus")} == {
        "sockets": 2,
        "cores_per_socket": 2,
        "threads_per_core": 2,
        "cpus": 8,
    }


@pytest.mark.parametrize(("numbers", "written"), [([], None), ([3], "3"), ([0, 1, 2, 8, 10, 11], "0-2,8,10-11")])
def test_ranges_are_written_and_read(numbers: list[int], written: str | None) -> None:
    assert probe_machine.ranges(numbers) == written
    assert probe_machine.members(written or "") == numbers


def test_gpus_on_a_switch_are_joined_as_nvidia_smi_shows_them() -> None:
    gpus: list[dict[str, Any]] = [{"index": n, "pci": f"0000000{n}:00:00.0", "links": {}} for n in range(3)]
    probe_gpus.Nvml.name_links(gpus, {0: 12, 1: 12, 2: 0})
    assert [g["links"] for g in gpus] == [{"1": "NV12"}, {"0": "NV12"}, {}]


def test_gpus_joined_directly_are_found_by_their_address() -> None:
    gpus: list[dict[str, Any]] = [{"index": 0, "pci": "00000000:AF:00.0", "links": {"00000000:d8:00.0": 2, "x": 1}}]
    gpus.append({"index": 1, "pci": "00000000:D8:00.0", "links": {"00000000:af:00.0": 2}})
    probe_gpus.Nvml.name_links(gpus, {0: 0, 1: 0})
    assert [g["links"] for g in gpus] == [{"1": "NV2"}, {"0": "NV2"}]


def test_both_notations_of_apt_are_read(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(
        "# deb http://off/debian x main\n"
        "deb [arch=amd64 signed-by=/k.asc] http://one/debian trixie main contrib # why\n"
        "deb-src http://one/debian trixie main\n"
    )
    (tmp_path / "sources.list.d" / "flat.list").write_text("deb https://flat/cuda ./\n")
    (tmp_path / "sources.list.d" / "two.sources").write_text(
        "Types: deb deb-src\nURIs: http://two/debian\n http://three/debian\n# a comment\nSuites: a a-updates\n"
        "Components: main\nSigned-By:\n -----BEGIN\n .\n\nTypes: deb\nURIs: http://off\nSuites: b\nEnabled: no\n\n"
        "Types: deb-src\nURIs: http://source\nSuites: c\n"
    )
    assert probe_packages.apt_sources(str(tmp_path)) == [
        ("http://one/debian", "trixie"),
        ("https://flat/cuda", "./"),
        ("http://two/debian", "a"),
        ("http://two/debian", "a-updates"),
        ("http://three/debian", "a"),
        ("http://three/debian", "a-updates"),
    ]


def test_repositories_of_dnf_are_read(tmp_path: Path) -> None:
    (tmp_path / "yum.repos.d").mkdir()
    (tmp_path / "dnf" / "vars").mkdir(parents=True)
    (tmp_path / "dnf" / "vars" / "contentdir").write_text("pub/rocky\n")
    (tmp_path / "yum.repos.d" / "rocky.repo").write_text(
        "[base]\nmirrorlist=https://m/list?arch=$basearch&dir=$contentdir\n#baseurl=http://x/\n"
        "[direct]\nbaseurl=https://one/${contentdir}/\n https://two/os\nenabled=1\n"
        "[off]\nbaseurl=https://off/\nenabled=0\n[unknown]\nbaseurl=https://x/$nobody/\n"
        "[rhel]\nbaseurl=https://cdn/\nsslclientcert=/etc/pki/entitlement/1.pem\n"
    )
    (tmp_path / "yum.repos.d" / "broken.repo").write_text("no section\n")
    assert probe_packages.dnf_urls(str(tmp_path)) == [
        [f"https://m/list?arch={platform.machine()}&dir=pub/rocky"],
        ["https://one/pub/rocky/repodata/repomd.xml", "https://two/os/repodata/repomd.xml"],
    ]


@pytest.mark.parametrize(
    ("target", "manager", "kind"),
    [
        ("../run/systemd/resolve/stub-resolv.conf", False, "resolved"),
        ("/run/NetworkManager/resolv.conf", True, "networkmanager"),
        (None, True, "networkmanager"),
        (None, False, "plain"),
    ],
)
def test_who_writes_resolv_conf_and_the_networks_own_servers(
    tmp_path: Path, target: str | None, manager: bool, kind: str
) -> None:
    for folder in ("etc", "run/systemd/resolve", "run/NetworkManager"):
        (tmp_path / folder).mkdir(parents=True)
    written = tmp_path / "etc/resolv.conf"
    written.symlink_to(target) if target else written.write_text("nameserver 10.0.0.1\n")
    (tmp_path / "run/systemd/resolve/resolv.conf").write_text("nameserver 10.0.0.2\n")
    if manager:
        (tmp_path / "run/NetworkManager/resolv.conf").write_text("nameserver 10.0.0.3\n")
    assert probe_machine.resolver(str(tmp_path)) == kind
    if kind == "resolved":
        assert probe_machine.nameservers(str(tmp_path)) == ["10.0.0.2"]
    elif not target:
        assert probe_machine.nameservers(str(tmp_path)) == ["10.0.0.1"]


@pytest.mark.parametrize(
    ("answers", "told", "asked"),
    [
        ([200], None, 1),
        ([503, 503, 200], None, 3),
        ([500] * 3, "HTTP 500 Internal Server Error", 3),
        ([404], "HTTP 404 Not Found", 1),
    ],
)
def test_a_servers_passing_error_is_asked_about_again(answers: list[int], told: str | None, asked: int) -> None:
    left = list(answers)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(left.pop(0))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            assert probe_packages.fetch(opener, [f"http://127.0.0.1:{server.server_port}/InRelease"]) == told
        finally:
            server.shutdown()
    assert len(answers) - len(left) == asked


def test_a_password_in_a_url_stays_on_the_node() -> None:
    assert probe_packages.without_password("http://me:secret@proxy:3128/x") == "http://proxy:3128/x"


# --- in Ansible -------------------------------------------------------------------------------------------------------


@pytest.mark.proves("untrusted", "A GPU name that is a template is never run on the controller.")
def test_records_reach_templates_and_are_never_templated(tmp_path: Path) -> None:
    """What ran on the control machine when it was tried: a GPU's name that is a template."""
    hostile = TEMPLATE.replace("MARKER", str(tmp_path / "marker"))
    hardware.save(tmp_path, node(("gpus", 0, "model"), hostile))
    hardware.save(tmp_path, node(name="left"))
    (tmp_path / "inventory.yaml").write_text("all: {hosts: {gpu01: {ansible_connection: local}, gpu02: {}}}\n")
    (tmp_path / "out.j2").write_text(
        "{% set all = lookup('cluster_hardware') %}{{ all | list }} {{ all.gpu01.gpus[0].model }} "
        "{{ all.gpu01.gpus | map(attribute='type') | list }}"
    )
    (tmp_path / "play.yml").write_text(
        "- hosts: gpu01\n  gather_facts: false\n  tasks:\n"
        "    - ansible.builtin.set_fact: {kept: \"{{ lookup('cluster_hardware').gpu01.gpus[0].model }}\"}\n"
        "    - ansible.builtin.debug: {msg: '{{ kept }}'}\n"
        f"    - ansible.builtin.template: {{src: {tmp_path}/out.j2, dest: {tmp_path}/out}}\n"
    )
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("ANSIBLE_")},
        "ANSIBLE_LOOKUP_PLUGINS": str(paths.content() / "plugins/lookup"),
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        "ANSIBLE_LOCAL_TEMP": str(tmp_path / "local"),
    }
    playbook = Path(sys.executable).with_name("ansible-playbook")
    done = subprocess.run(
        [playbook, "-i", tmp_path / "inventory.yaml", tmp_path / "play.yml"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    written = (tmp_path / "out").read_text()
    assert written.startswith("['gpu01'] ")
    assert hostile in written
    assert written.endswith("'a100']")
    assert not (tmp_path / "marker").exists()


def test_what_slurm_has_left_on_a_node_is_noticed(tmp_path: Path) -> None:
    assert probe_services.slurm(str(tmp_path)) == []
    for sign in ("slurmctld/clustername", "slurmd/conf-cache/slurm.conf"):
        (tmp_path / "var/lib/slurm" / sign).parent.mkdir(parents=True)
        (tmp_path / "var/lib/slurm" / sign).touch()
    assert probe_services.slurm(str(tmp_path)) == ["controller", "worker"]
    (tmp_path / "etc/slurm").mkdir(parents=True)
    (tmp_path / "etc/slurm/slurm.conf").write_text("ClusterName=aurora\nStateSaveLocation=/srv/state\n")
    assert probe_services.slurm(str(tmp_path)) == ["worker"]


POLICY = """\
slurmd:
  Installed: (none)
  Candidate: 24.11.5-4+lab1
  Version table:
     1:25.05.1-1 -1
         -1 http://10.0.0.2:36573 ./ Packages
     24.11.5-4+lab1 500
        500 http://10.0.0.1:36573 ./ Packages
     24.11.5-4 500
        500 http://deb.debian.org/debian trixie/main amd64 Packages
"""


@pytest.mark.proves("preflight", "The Slurm versions that apt offers are read, the candidate first.")
@pytest.mark.parametrize(
    ("said", "offered"),
    [
        ("", []),  # no index
        ("slurmd:\n  Installed: (none)\n  Candidate: (none)\n  Version table:\n", []),
        (POLICY, ["24.11.5-4+lab1", "1:25.05.1-1", "24.11.5-4"]),
        (
            "slurm-smd-slurmd:\n  Installed: (none)\n  Candidate: (none)\n  Version table:\n" + POLICY,
            ["24.11.5-4+lab1", "1:25.05.1-1", "24.11.5-4"],
        ),
    ],
)
def test_slurm_packages__apt_offers_some__are_read_candidate_first(
    monkeypatch: pytest.MonkeyPatch, said: str, offered: list[str]
) -> None:
    monkeypatch.setattr(probe_packages, "output", lambda *argv: said if argv[0] == "apt-cache" else "")
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/apt-cache")
    monkeypatch.setattr(pwd, "getpwnam", dict[str, object]().__getitem__)
    asked = {"daemons": ["slurmctld", "slurmd"], "worker": ["slurm-smd-slurmd", "slurmd"]}
    assert probe_packages.slurm_packages(asked) == {"installed": {}, "offered": offered, "user": None}


@pytest.mark.proves("preflight", "Installed versions of Slurm, munge and the toolkit are read, by dpkg or rpm.")
@pytest.mark.parametrize(
    ("program", "listed"),
    [
        (
            "dpkg-query",
            "munge 0.5.16-1 installed\nslurmd 24.11.5-4 installed\nslurmctld 24.11.5-4 config-files\n",
        ),
        (
            "rpm",
            "bash 5.1-9.el9 installed\nmunge 0.5.16-1 installed\nslurmd 24.11.5-4 installed\ngpg-pubkey (none) x\n",
        ),
    ],
)
def test_installed_packages__by_dpkg_or_rpm__are_read(
    monkeypatch: pytest.MonkeyPatch, program: str, listed: str
) -> None:
    monkeypatch.setattr(probe_packages, "output", lambda *argv: listed if argv[0] == program else "")
    assert probe_packages.installed_packages(probe_common.WATCHED) == {"munge": "0.5.16-1"}
    told = probe_packages.slurm_packages({"daemons": ["slurmctld", "slurmd"], "worker": ["slurmd"]})
    assert told["installed"] == {"munge": "0.5.16-1", "slurmd": "24.11.5-4"}


def test_installed_packages__of_this_machine__are_read() -> None:
    assert list(probe_packages.installed_packages(("bash", "no-such-package"))) == ["bash"]


@pytest.mark.parametrize(
    ("files", "age"),
    [
        ({}, None),
        ({"var/lib/apt/periodic/upgrade-stamp": 10}, None),  # somebody else's doing
        ({"etc/apt/apt.conf.d/60clusterctl-security": 9000}, 9000),
        ({"etc/apt/apt.conf.d/60clusterctl-security": 9000, "var/lib/apt/periodic/upgrade-stamp": 300}, 300),
        ({"etc/dnf/automatic.conf": 9000, "var/lib/systemd/timers/stamp-dnf-automatic.timer": 300}, 300),
    ],
)
def test_security_updates__by_their_stamp__have_an_age(tmp_path: Path, files: dict[str, int], age: int | None) -> None:
    for name, seconds in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        os.utime(path, (time.time() - seconds,) * 2)
    found = probe_packages.security_updates(str(tmp_path))
    assert found is None if age is None else found is not None and 0 <= found - age < 60


def test_jobs_are_known_by_their_slurmstepd(tmp_path: Path) -> None:
    titles = {
        "10": b"slurmstepd: [7.batch]\0",
        "11": b"slurmstepd: [7.extern]\0",
        "12": b"slurmstepd: [123.0]",
        "13": b"sh\0slurmstepd: [9.0]",
        "14": b"",
    }
    for pid, title in titles.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_bytes(title)
        (tmp_path / pid / "exe").symlink_to("/usr/sbin/slurmstepd")
        (tmp_path / pid / "status").write_text("Uid:\t0\t0\t0\t0\n")
    assert probe_services.jobs(str(tmp_path)) == ["7", "123"]


def test_a_firewall_of_others_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "etc/ufw").mkdir(parents=True)
    (tmp_path / "etc/ufw/ufw.conf").write_text("ENABLED=yes\n")
    assert probe_services.firewall(str(tmp_path)) is None  # its configuration stays when it is removed
    (tmp_path / "usr/sbin").mkdir(parents=True)
    (tmp_path / "usr/sbin/ufw").touch()
    assert probe_services.firewall(str(tmp_path)) == "ufw"
    (tmp_path / "etc/ufw/ufw.conf").write_text("# on with ufw enable\nENABLED=no\n")
    assert probe_services.firewall(str(tmp_path)) is None


THREE = ("2g.20gb", "2g.20gb", "3g.40gb")


def test_renewed__record_of_an_older_clusterctl__gets_the_lanes_once() -> None:
    """They were not recorded; what is in use at the next contact is, and stays."""
    old, now = hardware.from_reply("gpu01", reply(), NOW), reply()
    assert [gpu.pcie_lanes for gpu in old.gpus] == [None, None]
    for lanes in (8, 4):
        for gpu in now["gpus"]:
            gpu["pcie_lanes"] = lanes
        old = hardware.renewed(old, hardware.from_reply("gpu01", now, NOW)) or old
        assert [gpu.pcie_lanes for gpu in old.gpus] == [8, 8]


@pytest.mark.parametrize(
    ("said", "means"),
    [
        ({}, THREE),
        ({"1": "none"}, THREE),
        ({"0": "none"}, None),
        ({"0": "4g.40gb,1g.10gb+me"}, ("1g.10gb+me", "4g.40gb")),
        ({"0": "7g.80gb\nPartitionName=x"}, THREE),
        ({"0": TEMPLATE}, THREE),
        ({"0": None}, THREE),
        ({"0": {}}, THREE),
        ({"0": ",".join(["1g.5gb"] * 65)}, THREE),
        ({"0": ",".join(["1g.5gb"] * 20_000)}, THREE),
        (["x"], THREE),
        ("none", THREE),
        (7, THREE),
        (None, THREE),
    ],
)
def test_what_a_node_says_of_its_layout_counts_where_it_is_one(said: Any, means: tuple[str, ...] | None) -> None:
    given = reply()
    given["gpus"][0]["mig"] = list(THREE)
    assert hardware.learned(hardware.from_reply("gpu01", given, NOW), said).gpus[0].mig == means
