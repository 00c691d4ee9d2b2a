"""The inventory: what it becomes, everything that is refused with its place, and that nothing else ever comes out."""

import re
import socket
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible.plugins.inventory import detect_range, expand_hostname_range
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterctl import document, hostrange, inventory, paths, reading, schema
from clusterctl.errors import InputError
from clusterctl.schema import Schema

from . import small_content

GOOD = """\
all:
  vars:
    cluster_name: aurora
    ansible_user: admin
  children:
    slurm_head:
      hosts:
        head1: {ansible_host: 10.0.0.10}
    slurm_workers:
      vars: {demo_level: high}
      hosts:
        gpu01: {ansible_host: 10.0.0.11, ansible_port: 2222}
      children:
        a100:
          hosts:
            gpu[02:04]: {}
    monitoring:
      hosts:
        head1: {}
"""


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Schema:
    return schema.load(small_content.make(tmp_path_factory.mktemp("content")))


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here may resolve a name or connect."""

    def refuse(*_: object) -> None:
        raise AssertionError("an inventory is judged without the network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


def write(directory: Path, text: str | bytes, name: str = "inventory.yaml") -> Path:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def problems(path: Path, known: Schema) -> list[str]:
    """Return each problem as printed, with the directory cut off."""
    with pytest.raises(InputError) as caught:
        inventory.load(path, known)
    assert caught.value.exit_code == 2
    lines = str(caught.value).splitlines()
    assert len(lines) == len(caught.value.problems), "a message of more than one line"
    assert all(line.isprintable() for line in lines)
    return [line.replace(f"{path.parent}/", "") for line in lines]


# --- what is accepted -----------------------------------------------------------------------------------------------


def test_hosts_groups_and_variables(tmp_path: Path, known: Schema) -> None:
    write(tmp_path, "cluster_timezone: Europe/Berlin\n", "group_vars/all.yml")
    write(tmp_path, "demo_port: 1\n", "group_vars/slurm_workers/ports.yaml")
    write(tmp_path, "demo_port: 2\n", "group_vars/a100.yml")
    write(tmp_path, "demo_port: 3\n", "host_vars/gpu03.yml")
    cluster = inventory.load(write(tmp_path, GOOD), known)
    assert (cluster.cluster_name, cluster.directory, cluster.head.name) == ("aurora", tmp_path, "head1")
    assert [host.name for host in cluster.hosts] == ["head1", "gpu01", "gpu02", "gpu03", "gpu04"]
    assert dict(cluster.groups) == {
        "slurm_head": ("head1",),
        "slurm_workers": ("gpu01", "gpu02", "gpu03", "gpu04"),
        "a100": ("gpu02", "gpu03", "gpu04"),
        "monitoring": ("head1",),
    }
    assert dict(cluster.variables) == {
        "cluster_name": "aurora",
        "cluster_timezone": "Europe/Berlin",
        "ansible_user": "admin",
    }
    gpu01, gpu02 = cluster.host("gpu01"), cluster.host("gpu02")
    assert (gpu01.address, gpu01.port, gpu01.user, gpu01.become) == ("10.0.0.11", 2222, "admin", True)
    assert (gpu02.address, gpu02.port, set(gpu02.groups)) == ("gpu02", 22, {"slurm_workers", "a100"})
    assert [host.variables.get("demo_port") for host in cluster.hosts] == [None, 1, 2, 3, 2]
    assert (gpu02.variables["demo_level"], gpu02.position.line) == ("high", 16)
    assert [host.name for host in cluster.in_group("monitoring")] == ["head1"]
    with pytest.raises(InputError, match=r'no host "gpu1" \(did you mean gpu01\?\)'):
        cluster.host("gpu1")


def test_hosts_may_be_described_once_under_all_and_only_named_in_their_groups(tmp_path: Path, known: Schema) -> None:
    text = """\
    all:
      hosts:
        head1: {ansible_host: 10.0.0.1}
        gpu01: {ansible_host: 10.0.0.2}
      vars: {cluster_name: aurora}
      children:
        slurm_head: {hosts: {head1: }}
        slurm_workers: {hosts: {gpu01: {}}}
    """
    cluster = inventory.load(write(tmp_path, textwrap.dedent(text)), known)
    assert [host.address for host in cluster.hosts] == ["10.0.0.1", "10.0.0.2"]


def test_hosts_behind_one_address_differ_by_port(tmp_path: Path, known: Schema) -> None:
    hosts = "gpu01: {ansible_host: nat, ansible_port: 1, cluster_address: 10.0.0.1}"
    text = GOOD.replace("gpu01: {ansible_host: 10.0.0.11, ansible_port: 2222}", hosts)
    text = text.replace("gpu[02:04]: {}", "gpu02: {ansible_host: nat, ansible_port: 2, cluster_address: 10.0.0.2}")
    cluster = inventory.load(write(tmp_path, text), known)
    assert cluster.host("gpu02").variables["cluster_address"] == "10.0.0.2"


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path, known: Schema) -> None:
    assert inventory.load(write(tmp_path, b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode()), known).hosts


def test_editors_copies_and_hidden_files_are_skipped_as_ansible_does(tmp_path: Path, known: Schema) -> None:
    write(tmp_path, "nonsense: [", "group_vars/.all.yml.swp")
    write(tmp_path, "nonsense: [", "host_vars/gpu01.yml~")
    assert inventory.load(write(tmp_path, GOOD), known).hosts


def test_keys_are_private_files(tmp_path: Path, known: Schema, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path, "a key", ".ssh/id").chmod(0o600)
    text = GOOD.replace("ansible_user: admin", "ansible_ssh_private_key_file: ~/.ssh/id")
    assert inventory.load(write(tmp_path, text), known).head.private_key_file == tmp_path / ".ssh/id"


def test_certificates_are_files_of_the_cluster(tmp_path: Path, known: Schema) -> None:
    write(tmp_path, "-----BEGIN CERTIFICATE-----\n", "ca/site.pem")
    write(tmp_path, b"\x30\x82", "ca/der.pem")
    text = in_vars("cluster_ca_certificates: [ca/site.pem]")
    assert inventory.load(write(tmp_path, text), known).variables["cluster_ca_certificates"] == ["ca/site.pem"]
    text = in_vars("cluster_ca_certificates: [ca/site.pem, ca/der.pem, ca/none.pem, ca, ../x.pem, /etc/x.pem]")
    assert [line.split("certificates", 1)[1] for line in problems(write(tmp_path, text), known)] == [
        '[1]: the file "ca/der.pem" holds no certificate in PEM form',
        '[2]: the file "ca/none.pem" cannot be read: No such file or directory',
        '[3]: the file "ca" is a directory, expected a file',
        '[4]: bad value, got "../x.pem", expected a file below the cluster\'s directory',
        '[5]: bad value, got "/etc/x.pem", expected a file below the cluster\'s directory',
    ]


@pytest.mark.parametrize("pattern", ["gpu01", "gpu[01:04]", "gpu[8:11]", "r[a:c]n[1:9:4]", "n[0:0]", "x[001:100:33]y"])
def test_ranges_mean_what_they_mean_to_ansible(pattern: str) -> None:
    expected = expand_hostname_range(pattern) if detect_range(pattern) else [pattern]
    assert list(hostrange.expand(pattern)) == expected


# --- what is refused ------------------------------------------------------------------------------------------------


def replaced(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def in_vars(line: str) -> str:
    """Return an inventory with one more variable, on line 4."""
    return replaced("    ansible_user: admin\n", f"    {line}\n")


def on_host(variables: str) -> str:
    """Return an inventory with other variables on gpu01, in line 12 from column 17 on."""
    return replaced("ansible_host: 10.0.0.11, ansible_port: 2222", variables)


BOMB = "a: &a [x]\nb: &b [*a, *a]\nc: [*b, *b]\n"

FILES: dict[str, tuple[str | bytes, str, str]] = {
    "empty": ("", "inventory.yaml: ", "is empty"),
    "comments only": ("# nothing\n", "inventory.yaml: ", "is empty"),
    "binary": (b"all:\n  \x00\x01", ":2:3: ", "control character, got \\x00"),
    "not UTF-8": (b"all:\n  name: caf\xe9", ":2:12: ", "not UTF-8"),
    "UTF-16": (GOOD.encode("utf-16"), "inventory.yaml: ", "is UTF-16, expected UTF-8"),
    "terminal escape": ("all: {}  # \x1b[2J", ":1:12: ", "control character, got \\x1b"),
    "turned text": ("all: {}  # \u202e", ":1:12: ", "control character, got \\u202e"),
    "escape by escape": ('all: {vars: {cluster_name: "\\e[2J"}}', ":1:28: all.vars.cluster_name: ", "\\x1b"),
    "tab": ("all:\n\tvars: {}\n", ":2:1: ", "a tab in the indentation"),
    "bracket": ("all: {vars: {cluster_name: a}\n", ":2:1: ", "not valid YAML"),
    "quote": ("all: {vars: {cluster_name: 'a}\n", ":2:1: ", "not valid YAML"),
    "list": ("- all\n", ":1:1: ", "got a list, expected a mapping"),
    "text": ("hello\n", ":1:1: ", 'got "hello", expected a mapping'),
    "number": ("7\n", ":1:1: ", "got 7, expected a mapping"),
    "duplicate key": (
        GOOD.replace("monitoring", "slurm_head"),
        ":17:5: all.children: ",
        "a second time (first on line 6)",
    ),
    "python tag": ("all: !!python/object/apply:os.system [id]", ":1:6: all: ", "a YAML tag"),
    "ordinary tag": ("all: {vars: {cluster_name: !!str 7}}", ":1:28: all.vars.cluster_name: ", "a YAML tag"),
    "vault tag": ("all: {vars: {cluster_name: !vault x}}", ":1:28: all.vars.cluster_name: ", "a YAML tag (!vault)"),
    "alias bomb": (BOMB, ":2:8: b: ", "an alias (*a)"),
    "anchor": ("all: &x {}", ":1:6: all: ", "an anchor (&x)"),
    "recursion": ("all: &x {vars: *x}", ":1:16: all.vars: ", "an alias"),
    "merge key": ("all: {<<: {}}", ":1:7: all: ", "got <<, which YAML cannot read"),
    "undefined alias": ("all: *x", ":1:6: all: ", "an alias"),
    "huge": (GOOD + "#" * (5 << 20), "inventory.yaml: ", "is too big"),
    "deep": ("[" * 100_000, ":1:22: ", "nested too deep"),
    "deep mapping": ("{a: " * 100_000, ":1:82: ", "nested too deep"),
    "two documents": (GOOD + "---\n" + GOOD, ":20:1: ", "a second document"),
    "directive": ("%TAG ! tag:x,2000:\n--- !y {}", ":2:5: ", "a YAML tag"),
    "INI": ("[slurm_head]\nhead1 ansible_host=10.0.0.1\n[slurm_workers]\n", ":2:1: ", "looks like an INI inventory"),
    "INI line": ("[slurm_head]\n", ":1:1: ", "looks like an INI inventory"),
    "plugin": ("plugin: constructed\n", ":1:1: plugin: ", "names an inventory plugin"),
    "encrypted": ("$ANSIBLE_VAULT;1.1;AES256\n3132", "inventory.yaml: ", "is encrypted"),
    "too much": ("all: [" + "1," * 400_000, ":1:120", "too much in one file"),
    "huge number": (in_vars("demo_port: " + "9" * 5000), ":4:16: all.vars.demo_port: ", "cannot read"),
    "huge octal number": (in_vars("demo_port: 0" + "7" * 9999), ":4:16: all.vars.demo_port: ", "cannot read"),
    "impossible date": (in_vars("demo_any: 2026-13-45"), ":4:15: all.vars.demo_any: ", "cannot read"),
}

STRUCTURE: dict[str, tuple[str, str, str]] = {
    "top level": ("al: {}\n", ":1:1: al: ", 'unknown key "al", expected all (did you mean all?)'),
    "group on top": ("slurm_head: {}\n", ":1:1: slurm_head: ", "move it to all.children.slurm_head"),
    "all is a list": ("all: [a]\n", ":1:6: all: ", "got a list, expected a mapping"),
    "key of a group": (
        replaced("  children:\n    slurm", "  chidren:\n    slurm"),
        ":5:3: all.chidren: ",
        "mean children?",
    ),
    "group as key": ("all: {slurm_head: {}}\n", ":1:7: all.slurm_head: ", "move it below children"),
    "group": (
        replaced("slurm_workers", "slurm_worker"),
        ":9:5: all.children.slurm_worker: ",
        "did you mean slurm_workers?",
    ),
    "group of no role": (replaced("monitoring", "backup"), ":17:5: all.children.backup: ", "known groups: slurm_head"),
    "group key": (
        replaced("monitoring:", "no:"),
        ":17:5: all.children: ",
        "got no, which YAML reads as false as a key",
    ),
    "hosts is a list": (
        replaced("gpu[02:04]: {}", "- gpu02"),
        ":16:13: all.children.slurm_workers.children.a100.hosts: ",
        "got a list, expected a mapping (each on a line",
    ),
    "hosts is text": (replaced("gpu[02:04]: {}", "gpu02"), ":16:13: ", 'got "gpu02", expected a mapping'),
    "host is text": (replaced("gpu[02:04]: {}", "gpu02: 10.0.0.1"), ":16:20: ", 'got "10.0.0.1", expected a mapping'),
    "vars is a list": (
        in_vars("demo_extra: {}").replace("vars:", "vars: []\n  hosts:", 1),
        ":2:9: all.vars: ",
        "got a list",
    ),
    "no hosts": ("all: {vars: {cluster_name: a}}", ":1:1: all.children: ", "no head and no workers"),
    "no head": (
        replaced("    slurm_head:\n      hosts:\n        head1: {ansible_host: 10.0.0.10}\n", ""),
        ":1:1: all.children.slurm_head: ",
        "no head, expected one host",
    ),
    "two heads": (
        replaced("head1: {ansible_host: 10.0.0.10}", "head[1:2]: {}"),
        ":8:9: all.children.slurm_head: ",
        "more than one head, got head1, head2",
    ),
    "no workers": (
        "all: {vars: {cluster_name: a}, children: {slurm_head: {hosts: {h: }}}}",
        ":1:1: all.children.slurm_workers: ",
        "no workers, expected at least one host",
    ),
    "two schedulers": (
        GOOD + "    kubernetes_head: {hosts: {k1: }}\n    kubernetes_workers: {hosts: {gpu01: }}\n",
        ":12:9: gpu01: ",
        "in two schedulers, got slurm, kubernetes",
    ),
    "no group": (
        replaced("  children:\n    slurm_h", "  hosts: {spare: }\n  children:\n    slurm_h"),
        ":5:11: spare: ",
        "in no group",
    ),
    "host twice": (
        replaced("gpu[02:04]: {}", "gpu[02:04]: {}\n            gpu03: {}"),
        ":17:13: ",
        'the host "gpu03" a second',
    ),
    "host as group": (replaced("gpu[02:04]", "a100"), ":16:13: a100: ", "a host with the name of a group"),
    "address twice": (on_host("ansible_host: 10.0.0.10"), ":12:31: gpu01.ansible_host: ", "10.0.0.10, which head1 has"),
    "IPv6 twice": (
        on_host('ansible_host: "fd00::1"').replace("10.0.0.10", '"FD00:0::1"'),
        ":12:31: gpu01.ansible_host: ",
        "got fd00::1, which head1 has",
    ),
    "name is an address": (on_host("ansible_host: gpu02"), ":16:13: gpu02.ansible_host: ", "gpu02, which gpu01 has"),
    "address inside": (
        on_host("ansible_host: 10.0.0.10, ansible_port: 3"),
        ":12:9: gpu01.cluster_address: ",
        "duplicate address inside the cluster",
    ),
    "sub-group of the head": (
        replaced("        head1: {ansible_host: 10.0.0.10}\n", "        head1: {}\n      children: {x: }\n"),
        ":9:18: all.children.slurm_head.children.x: ",
        "a sub-group, which only workers can have",
    ),
    "role in a group": (
        replaced("a100:", "monitoring:"),
        ":14:9: all.children.slurm_workers.children.monitoring: ",
        "expected it in all.children",
    ),
    "sub-group twice": (
        replaced("a100:", "x: {children: {x: }}\n        a100:"),
        ":14:24: ",
        'the group "x" a second time',
    ),
    "sub-group name": (replaced("a100:", "A-100:"), ":14:9: ", 'bad group name, got "A-100"'),
    "sub-group all": (replaced("a100:", "all:"), ":14:9: ", 'the group "all" a second time'),
    "too many hosts": (replaced("[02:04]", "[1:999999]"), ":16:13: ", "too many hosts"),
    "ranges of ranges": (replaced("[02:04]", "[1:9999][1:9999][1:9999]"), ":16:13: ", "too many hosts"),
}

NAMES = {
    "GPU05": "(write gpu05)",
    "GPU[05:06]": "(write gpu[05:06])",
    "gpu_05": "bad host name",
    "-gpu": "bad host name",
    "gpu-": "bad host name",
    "gpu05.example.com": "write gpu05: {ansible_host: gpu05.example.com}",
    "10.0.0.5": "name the host and give its address",
    "localhost": "bad host name",
    '"gpu05\\nPartitionName=x"': "a line break",
    "$(reboot)": "bad host name",
    "'gpu05;id'": "bad host name",
    "../gpu05": "bad host name",
    "x" * 64: "bad host name",
    "gpü": "bad host name",
    "gpu[01:4]": "two numbers of the same length",
    "gpu[4:1]": "the smaller one first",
    "gpu[1:9:0]": "a step above 0",
    "gpu[a:4]": "two numbers or two letters",
    "gpu[1-4]": "bad range",
    "gpu[1:4": "bad range",
    "gpu[:4]": "bad range",
    "gpu[1:4]]": "bad range",
    "010": "as a key",
    "no": "as a key",
    "22:30": "as a key",
    "'{{ 7 * 7 }}'": "a template",
}

VARIABLES: dict[str, tuple[str, str]] = {
    # what stands on line 4 from column 5 on: the rest of the place, and what is said
    "demo_levle: low": (":4:5: all.vars.demo_levle: ", 'unknown variable "demo_levle" (did you mean demo_level?)'),
    "demo_level: lo": (":4:17: all.vars.demo_level: ", 'got "lo", expected one of low, high (did you mean low?)'),
    "demo_level: [low]": (":4:17: ", "wrong type, got a list, expected text"),
    "demo_level:": (":4:16: ", "got nothing, expected text (leave the line out"),
    "cluster_timezone: 22:30": (":4:23: ", 'got 22:30, which YAML reads as 1350, expected text (write "22:30" with'),
    "cluster_timezone: 010": (":4:23: ", "got 010, which YAML reads as 8, expected text"),
    "cluster_timezone: no": (":4:23: ", "got no, which YAML reads as false, expected text"),
    "cluster_timezone: 1.e+3": (":4:23: ", "got 1.e+3, which YAML reads as 1000.0, expected text"),
    "cluster_timezone: 2026-01-01": (":4:23: ", "got 2026-01-01, expected text"),
    "cluster_timezone: Europe/../../etc": (":4:23: ", "expected a time zone"),
    "demo_port: 1e3": (":4:16: ", 'got "1e3", expected a whole number'),
    "demo_port: 0o17": (":4:16: ", 'got "0o17", expected a whole number'),
    "demo_port: 022": (":4:16: ", "got 022, which YAML reads as 18, expected a whole number"),
    "demo_port: 22:30": (":4:16: ", "got 22:30, which YAML reads as 1350, expected a whole number"),
    'demo_port: "22"': (":4:16: ", 'got "22", expected a whole number (write it without quotes)'),
    "demo_port: true": (":4:16: ", "got true, expected a whole number"),
    "demo_port: 65536": (":4:16: ", "got 65536, expected 1 to 65535"),
    "demo_port: 0": (":4:16: ", "got 0, expected 1 to 65535"),
    "demo_port: -1": (":4:16: ", "got -1, expected 1 to 65535"),
    "demo_ratio: .nan": (":4:17: ", "got .nan, which YAML reads as nan, expected a number"),
    "demo_ratio: 1:30.5": (":4:17: ", "which YAML reads as 90.5, expected a number"),
    "demo_on: 1": (":4:14: ", "got 1, expected true or false"),
    'demo_on: "yes"': (":4:14: ", 'got "yes", expected true or false'),
    "demo_extra: {MaxTime: 22:30}": (":4:27: all.vars.demo_extra.MaxTime: ", "which YAML reads as 1350"),
    "demo_extra: {Root: [no]}": (":4:25: all.vars.demo_extra.Root[0]: ", "which YAML reads as false"),
    "demo_extra: {1: a}": (":4:18: all.vars.demo_extra: ", "got 1 as a key"),
    "demo_any: 1_000": (":4:15: ", "which YAML reads as 1000"),
    "demo_any: 2026-01-01": (":4:15: ", "expected a value that can be read in one way only"),
    'demo_token: "hunter2"': (":4:17: ", "got a value that is not shown, expected a whole number"),
    "cluster_networks: 10.0.0.0/8": (":4:23: ", "expected a list (write [10.0.0.0/8])"),
    "cluster_networks: [10.0.0.1]": (":4:24: all.vars.cluster_networks[0]: ", "expected a network such as"),
    "cluster_networks: [10.0.0.1/24]": (":4:24: ", "expected a network such as"),
    "cluster_domain: a..b": (":4:21: ", "expected a DNS domain"),
    "demo_users: {name: ada}": (":4:17: ", "wrong type, got a mapping, expected a list"),
    "demo_users: [ada]": (":4:18: all.vars.demo_users[0]: ", 'wrong type, got "ada", expected a mapping'),
    "demo_users: [{uid: 1000}]": (":4:18: all.vars.demo_users[0]: ", 'expected the key "name" in it'),
    "demo_users: [{name: ada, uuid: 1}]": (
        ":4:30: all.vars.demo_users[0].uuid: ",
        'unknown key "uuid" (did you mean uid?)',
    ),
    "demo_users: [{name: ada, uid: 0}]": (":4:35: all.vars.demo_users[0].uid: ", "expected 500 to 2147483647"),
    "demo_users: [{name: ada, groups: [on]}]": (
        ":4:39: all.vars.demo_users[0].groups[0]: ",
        "got on, which YAML reads as true",
    ),
    'demo_file: \'{{ lookup("pipe", "id") }}\'': (":4:16: all.vars.demo_file: ", "got a template"),
    "demo_file: '{% set x = 1 %}'": (":4:16: ", "got a template"),
    "demo_file: '{# x #}'": (":4:16: ", "got a template"),
    "demo_extra: {'{{ x }}': 1}": (":4:18: ", "got a template"),
    'demo_file: "a\\nb"': (":4:16: ", "a line break or tab inside a text"),
    "demo_file: '#jinja2: x'": (":4:16: ", "a template"),
    "ansible_connection: local": (":4:5: all.vars.ansible_connection: ", "not allowed here"),
    "ansible_ssh_common_args: -o ProxyCommand=id": (":4:5: all.vars.ansible_ssh_common_args: ", "not allowed here"),
    "ansible_ssh_user: root": (":4:5: ", "did you mean ansible_user?"),
    "ansible_password: hunter2": (":4:5: ", "a password does not belong in an inventory"),
    "ansible_become_password: hunter2": (":4:5: ", "a password does not belong in an inventory"),
    "ansible_host: 10.0.0.1": (":4:5: ", "stands in the wrong place, expected it on a host"),
    "ansible_port: [22]": (":4:19: ", "wrong type, got a list, expected a whole number"),
    "ansible_ssh_private_key_file: {a: b}": (":4:35: ", "wrong type, got a mapping, expected text"),
    "cluster_ca_certificates: [[a], {}]": (":4:31: ", "wrong type, got a list, expected text"),
    "ansible_port: 99999": (":4:19: ", "expected 1 to 65535"),
    "ansible_user: -oProxyCommand=id": (":4:19: ", "expected a user name"),
    "ansible_become: maybe": (":4:21: ", 'got "maybe", expected true or false'),
    "ansible_ssh_private_key_file: id": (":4:35: ", "expected a path that starts with / or ~/"),
    "ansible_ssh_private_key_file: /no/such": (":4:35: ", "cannot be read: No such file or directory"),
    "ansible_ssh_private_key_file: /dev/null": (":4:35: ", "is not a regular file"),
    "ansible_ssh_private_key_file: /proc/version": (":4:35: ", "is open to others, got mode 0444"),
}

ADDRESSES = (
    "[a]",
    "{a: b}",
    "7",
    "null",
    "-oProxyCommand=id",
    "10.0.0.300",
    "10.0.0",
    "a b",
    "$(id)",
    "a;b",
    "1.2.3.4/24",
    "fe80::1%eth0",
    "''",
    "x:22",
)
CLUSTER_NAMES = ("../aurora", "Aurora", "a" * 31, "a_b", "-a", "a.b", "'a b'", '"a\\nb"', "''")


def cases() -> Iterator[object]:
    for name, (text, place, said) in FILES.items():
        yield pytest.param(text, place, said, id=f"file: {name}")
    for name, (text, place, said) in STRUCTURE.items():
        yield pytest.param(text, place, said, id=f"structure: {name}")
    for name, said in NAMES.items():
        yield pytest.param(replaced("gpu[02:04]", name), ":16:13: ", said, id=f"host: {name}")
    for line, (place, said) in VARIABLES.items():
        yield pytest.param(in_vars(line), place, said, id=line)
    for address in ADDRESSES:
        key = ":12:31: all.children.slurm_workers.hosts.gpu01.ansible_host: "
        yield pytest.param(on_host(f"ansible_host: {address}"), key, "expected ", id=f"address: {address}")
    for name in CLUSTER_NAMES:
        text = replaced("cluster_name: aurora", f"cluster_name: {name}")
        yield pytest.param(text, ":3:19: all.vars.cluster_name: ", "", id=f"cluster: {name}")


@pytest.mark.parametrize(("text", "place", "said"), list(cases()))
def test_bad_input_is_refused_with_its_place(
    tmp_path: Path, known: Schema, text: str | bytes, place: str, said: str
) -> None:
    found = problems(write(tmp_path, text), known)
    assert any(place in line and said in line for line in found), "\n".join(found)
    assert not re.search("hunter2|Traceback", "\n".join(found))


def test_every_problem_is_reported_at_once_in_the_order_of_the_files(tmp_path: Path, known: Schema) -> None:
    write(tmp_path, "demo_port: x\n", "group_vars/slurm_workers.yml")
    write(tmp_path, "demo_port: y\n", "host_vars/gpu01.yml")
    text = in_vars("demo_on: 1").replace("demo_level: high", "demo_levl: high").replace("10.0.0.11", "10.0.0.10")
    assert [line.split(": ")[0] for line in problems(write(tmp_path, text), known)] == [
        "inventory.yaml:4:14",
        "inventory.yaml:10:14",
        "inventory.yaml:12:9",
        "group_vars/slurm_workers.yml:1:12",
        "host_vars/gpu01.yml:1:12",
    ]


def test_a_flood_of_problems_ends(tmp_path: Path, known: Schema) -> None:
    found = problems(write(tmp_path, in_vars("\n    ".join(f"x{i}: 1" for i in range(9999)))), known)
    assert len(found) == reading.MAX_PROBLEMS + 1
    assert found[-1] == "inventory.yaml: too much is wrong, the rest was not judged"


def test_cluster_name_is_missing(tmp_path: Path, known: Schema) -> None:
    text = replaced("    cluster_name: aurora\n", "")
    assert problems(write(tmp_path, text), known) == [
        "inventory.yaml:1:1: all.vars.cluster_name: missing, expected a value"
    ]


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        (
            "group_vars/slurm_worker.yml",
            "",
            'group_vars/slurm_worker.yml: no group "slurm_worker" (did you mean slurm_workers?)',
        ),
        ("group_vars/slurm_worker/x.yml", "", 'group_vars/slurm_worker: no group "slurm_worker"'),
        ("host_vars/gpu1.yml", "", 'host_vars/gpu1.yml: no host "gpu1" (did you mean gpu0'),
        ("group_vars/all.json", "{}", "group_vars/all.json: bad file name"),
        ("group_vars/all", "{}", "group_vars/all: bad file name"),
        ("group_vars/all/x", "{}", "group_vars/all/x: bad file name"),
        ("group_vars/all/x/y.yml", "{}", "group_vars/all/x: bad file name"),
        ("group_vars/all.yml", "- a", "group_vars/all.yml:1:1: got a list, expected a mapping"),
        (
            "group_vars/all.yml",
            "cluster_name: b",
            "group_vars/all.yml:1:15: cluster_name: given a second time, first at",
        ),
        (
            "group_vars/slurm_workers.yml",
            "cluster_name: b",
            "cluster_name: stands in the wrong place, expected it in all.vars",
        ),
        ("host_vars/gpu01.yml", "ansible_host: '{{ x }}'", "host_vars/gpu01.yml:1:15: ansible_host: got a template"),
        (
            "host_vars/gpu01.yml",
            "ansible_connection: local",
            "host_vars/gpu01.yml:1:1: ansible_connection: not allowed",
        ),
        ("host_vars/gpu01.yml", "demo_users: [{nme: a}]", 'demo_users[0].nme: unknown key "nme" (did you mean name?)'),
        ("host_vars/gpu01.yml", "$ANSIBLE_VAULT;1.1;AES256\n", "host_vars/gpu01.yml: is encrypted"),
    ],
)
def test_variable_files_are_judged_too(tmp_path: Path, known: Schema, file: str, text: str, said: str) -> None:
    write(tmp_path, text, file)
    found = problems(write(tmp_path, GOOD), known)
    assert any(said in line for line in found), found


def test_two_files_for_one_group_are_refused_because_ansible_reads_one_of_them(tmp_path: Path, known: Schema) -> None:
    write(tmp_path, "demo_port: 1", "group_vars/all.yaml")
    write(tmp_path, "demo_port: 2", "group_vars/all.yml")
    assert problems(write(tmp_path, GOOD), known) == ["group_vars/all.yml: a second file for all, besides all.yaml"]


def test_a_host_with_two_values_is_refused(tmp_path: Path, known: Schema) -> None:
    found = problems(write(tmp_path, replaced("        head1: {}", "        head1: {ansible_host: 10.0.0.9}")), known)
    assert found[0].startswith("inventory.yaml:19:31: all.children.monitoring.hosts.head1.ansible_host: given a second")


def test_what_is_no_file(tmp_path: Path, known: Schema) -> None:
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)
    executable = write(tmp_path, GOOD, "run.yaml")
    executable.chmod(0o755)
    for path, said in {
        tmp_path / "none.yaml": "none.yaml: cannot be read: No such file or directory",
        tmp_path / "x" / "y": "y: cannot be read: No such file or directory",
        tmp_path / ("n" * 300): "cannot be read: File name too long",
        tmp_path / "nul\0": "cannot be read: ",
        tmp_path: "is a directory, expected a file",
        loop: "loop.yaml: cannot be read: Too many levels of symbolic links",
        executable: "run.yaml: is executable, expected a plain text file",
        Path("/dev/null"): "null: is not a regular file",
        Path("/proc/self/mem"): "mem: cannot be read: Input/output error",
    }.items():
        assert said in problems(path, known)[0]


# --- nothing else ever comes out ------------------------------------------------------------------------------------

_WORDS = st.sampled_from(
    re.split(
        r"\s+",
        """all hosts children vars slurm_head slurm_workers monitoring kubernetes_head gpu01 head1 gpu[01:04] gpu[1:
    cluster_name demo_users demo_extra ansible_host ansible_connection no 010 22:30 {{x}} &a *a << --- ... - ? | %YAML
    !!python/object:os.system 10.0.0.1""",
    )
)
_TREES = st.recursive(
    _WORDS | st.none() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_WORDS | st.text(max_size=5), inner, max_size=5),
    max_leaves=30,
)
_BYTES = st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass"))
_DAMAGED = st.tuples(st.integers(0, len(GOOD)), st.integers(0, 12), _WORDS | st.text(max_size=3)).map(
    lambda cut: (GOOD[: cut[0]] + cut[2] + GOOD[cut[0] + cut[1] :]).encode("utf-8", "surrogatepass")
)


def _dump(tree: object) -> bytes:
    import yaml

    return yaml.safe_dump({"all": tree}, allow_unicode=True).encode("utf-8", "surrogatepass")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=_BYTES | _DAMAGED | _TREES.map(_dump))
def test_any_bytes_give_an_inventory_or_a_refusal(tmp_path: Path, known: Schema, data: bytes) -> None:
    path = write(tmp_path, data)
    try:
        cluster = inventory.load(path, known)
    except InputError as error:
        assert str(error)
        assert str(error).replace("\n", "").isprintable()
    else:
        assert cluster.head.name
        assert all(host.address and 0 < host.port < 65536 for host in cluster.hosts)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet="abc01[]:-. ", max_size=16))
def test_any_host_pattern_gives_host_names_or_a_refusal(text: str) -> None:
    try:
        names = hostrange.expand(text)
    except ValueError as error:
        assert str(error).startswith(("bad ", "too many"))
    else:
        assert names
        assert all(hostrange.is_host_name(name) for name in names)


def test_messages_show_at_most_a_line_of_what_was_written() -> None:
    assert len(document.shown("x" * 1000)) == 60
    assert document.shown("a\x1bb\n") == "a\\x1bb\\n"


@pytest.mark.parametrize("example", sorted(paths.content().glob("inventory/*/inventory.yaml")), ids=str)
def test_the_examples_hold(example: Path) -> None:
    cluster = inventory.load(example)
    assert len(cluster.hosts) == 3
    assert cluster.variables["users_accounts"]
