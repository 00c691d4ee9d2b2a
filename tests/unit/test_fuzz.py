"""Inventories that nobody would write: each is an inventory or a refusal, none hangs, and nothing in them is executed.

Whatever in them could be run would make a file, the marker. What is accepted goes to Ansible too, a sample of it.
"""

import base64
import copy
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from clusterctl.inventory import addresses, hostrange, rules, schema
from clusterctl.inventory.model import Inventory
from clusterctl.nodes import known_hosts
from clusterctl.util import paths
from clusterctl.util.errors import InputError
from clusterctl.workspace import home

HANG_SECONDS = 60  # a guard, not a measurement
EXAMPLES, LONG_EXAMPLES = 400, 12_000
SAMPLE, LONG_SAMPLE = 4, 40
MARK = "@MARK@"  # stands for the marker's path

Tree = dict[str, Any]  # keys and leaves are YAML as it is written
Files = Mapping[str, bytes]

GOOD: Tree = {
    "all": {
        "vars": {"cluster_name": "aurora", "cluster_networks": "[10.0.0.0/24]"},
        "children": {
            "slurm_head": {"hosts": {"head1": {"ansible_host": "10.0.0.10"}}},
            "slurm_workers": {
                "vars": {"base_journal_max_size": "1G"},
                "hosts": {"gpu01": {"ansible_host": "10.0.0.11", "ansible_port": "2222"}},
                "children": {"a100": {"hosts": {"gpu[02:04]": {}}}},
            },
            "monitoring": {"hosts": {"head1": {}}},
        },
    }
}

# --- what could be executed, and other things that are not what they seem --------------------------------------------

PIPE = f"lookup('pipe', 'touch {MARK}')"
PAYLOADS = (
    f'"{{{{ {PIPE} }}}}"',
    f"{{{{ {PIPE} }}}}",
    f'"a{{{{ {PIPE} }}}}b"',
    f'"{{% if {PIPE} %}}x{{% endif %}}"',
    f'"{{# {PIPE} #}}"',
    f"\"#jinja2:variable_start_string:'[[',variable_end_string:']]'\\n[[ {PIPE} ]]\"",
    f"\"#jinja2: variable_start_string: '[['\" # [[ {PIPE} ]]",
    f'"\\x7b\\x7b {PIPE} \\x7d\\x7d"',
    f'"\\u007b{{ {PIPE} }}}}"',
    f"|\n{' ' * 40}{{{{ {PIPE} }}}}",
    f">-\n{' ' * 40}{{{{ {PIPE} }}}}",
    f'!unsafe "{{{{ {PIPE} }}}}"',
    f'{{__ansible_unsafe: "{{{{ {PIPE} }}}}"}}',
    '{__ansible_vault: "$ANSIBLE_VAULT;1.1;AES256"}',
    f"!!python/object/apply:os.system ['touch {MARK}']",
    f"!!python/object/new:subprocess.check_output [['touch', '{MARK}']]",
    "!!python/name:os.system",
    "!!python/tuple [a]",
    "!vault |\n                    $ANSIBLE_VAULT;1.1;AES256",
    f'"$(touch {MARK})"',
    f'"`touch {MARK}`"',
    f'"\'; touch {MARK} #"',
    f'"| touch {MARK}"',
    f'"-oProxyCommand=touch {MARK}"',
    f'"a\\ntouch {MARK}"',
    f'"@{MARK}"',
    f"{{SlurmctldParameters: '$(touch {MARK})', PrologSlurmctld: 'touch {MARK}'}}",
    f'["$(touch {MARK})", "{{{{ {PIPE} }}}}"]',
)
ODDITIES = (
    "&a [*a]", "&a x", "*a", "{<<: *a}", "{<<: {a: 1}}", "? x", "- x", "!x y", "!!str 1", "%YAML 1.1", "---", "...",
    "|", ">", "'", '"', "[", "{", "]", "}", ",", ":", "#", "\t", "@", "`", "=", "~", "null", "", "''", "{}", "[]",
    "yes", "no", "on", "22:30", "190:20:30", "010", "0o17", "0x1F", "0b1", "1e3", "1.e+3", ".inf", "-.inf", ".nan",
    "1_000", "+1", "-0", "9" * 50, "9" * 5000, "0" + "7" * 5000, "1" * 39, "1:" * 300 + "1", "2026-01-01",
    "2026-13-45", "2026-01-01T00:00:00Z", "0000-00-00", "9999-12-31 23:59:60", "[" * 19 + "]" * 19, "[" * 50,
    "{a: " * 30 + "}" * 30, "\x1b[2J", '"\\e[2J"', '"\\0"', "\u202e", "\u2028", "\ufeff", "\x85", '"\\ud800"',
    "'{{'", '"{" "{"', "../../etc/passwd", "/dev/zero", "~root/.ssh/id", "fe80::1%eth0", "10.0.0.300", "a" * 300,
    "{ansible_connection: local}", "{a: [{b: {c: [d]}}]}", "[[a, b], {c: d}]",
)  # fmt: skip
BENIGN = (
    "x", "7", "2222", "true", "false", "1.5", "Europe/Berlin", "10.0.0.77", "[10.0.0.0/24]", "[]", "{}", "aurora",
    "[{name: ada, uid: 5001}]", "[{name: main, nodes: [a100]}]", "{MaxTime: '1:00:00'}", "{net.core.somaxconn: 1024}",
    "{soft: {memlock: unlimited}}", "'http://proxy:3128'", "[strace]", "10s", "1G", "/srv/metrics", "gpu02",
    "{www: 10.0.0.99}",
)  # fmt: skip
SETTINGS = {
    "cluster_timezone": "Europe/Berlin",
    "prometheus_port": "9091",
    "slurm_head_conf_extra": f"{{Prolog: 'touch {MARK}', Epilog: '$(touch {MARK})'}}",
    "slurm_head_dbd_conf_extra": f"{{DebugLevel: '`touch {MARK}`'}}",
    "base_limits": "{soft: {memlock: unlimited}}",
    "users_accounts": f"[{{name: a, uid: 5001, comment: '$(touch {MARK})', ssh_keys: ['ssh-rsa AAAA ;touch {MARK}']}}]",
    "base_sysctl": f"{{kernel.core_pattern: '|touch {MARK}'}}",
    "slurm_head_partitions": f"[{{name: main, options: {{AllowGroups: '{{touch {MARK}}}'}}}}]",
    "ansible_user": "admin",
    "ansible_become": "true",
}
"""Variables with values that are accepted, though a shell would run some of them."""
MAGIC = (
    "ansible_connection", "ansible_ssh_common_args", "ansible_ssh_executable", "ansible_python_interpreter",
    "ansible_shell_executable", "ansible_become_exe", "ansible_become_method", "ansible_remote_tmp", "ansible_password",
    "ansible_ssh_password_mechanism", "ansible_facts", "hostvars", "groups", "inventory_dir", "inventory_file",
)  # fmt: skip
STRUCTURE = (
    "all", "hosts", "children", "vars", "plugin", "_meta", "ungrouped", "slurm_head", "slurm_workers", "monitoring",
    "kubernetes_head", "a100", "head1", "gpu01", "gpu[05:09]", "gpu[1:", "gpu[1:99999]", "localhost", "10.0.0.12",
)  # fmt: skip
KNOWN = tuple(schema.load().variables)

_written = st.text(max_size=12).map(json.dumps) | st.text(max_size=12)
_plain = st.integers() | st.floats() | st.booleans() | st.dates()
LEAVES = st.sampled_from(BENIGN) | st.sampled_from(PAYLOADS) | st.sampled_from(ODDITIES) | _written | _plain.map(str)
KEYS = (
    st.sampled_from(STRUCTURE) | st.sampled_from(KNOWN) | st.sampled_from(MAGIC) | st.sampled_from(PAYLOADS) | _written
    | st.sampled_from(ODDITIES)
)  # fmt: skip


def places(tree: Tree) -> Iterator[tuple[Tree, str]]:
    """Yield each mapping of a tree with each of its keys."""
    for key, value in tree.items():
        yield tree, key
        if isinstance(value, dict):
            yield from places(value)


def emit(tree: Tree, indent: int = 0) -> str:
    """Return a tree as text: every key and every leaf as it is."""
    lines = []
    for key, value in tree.items():
        below = f"\n{emit(value, indent + 2)}" if isinstance(value, dict) and value else f" {value or ''}\n"
        lines.append(f"{' ' * indent}{key}:{below}")
    return "".join(lines)


@st.composite
def mutated(draw: st.DrawFn, base: Tree) -> bytes:
    """Make a tree from a good one by a few changes, most of them for the worse."""
    tree = copy.deepcopy(base)
    for _ in range(draw(st.sampled_from((0, 1, 1, 2, 4)))):
        spots = list(places(tree))
        if not spots:
            break
        mapping, key = spots[draw(st.integers(0, len(spots) - 1))]
        inner = mapping[key] if isinstance(mapping[key], dict) else mapping
        match draw(st.sampled_from(("value", "key", "add", "drop", "copy", "setting", "setting"))):
            case "value":
                mapping[key] = draw(LEAVES)
            case "key":
                mapping[draw(KEYS)] = mapping.pop(key)
            case "add":
                inner[draw(KEYS)] = draw(LEAVES)
            case "drop":
                del mapping[key]
            case "copy":
                other, name = spots[draw(st.integers(0, len(spots) - 1))]
                inner[draw(KEYS)] = copy.deepcopy(other[name])
            case "setting":
                name = draw(st.sampled_from(sorted(SETTINGS)))
                owner = tree.get("all")
                if isinstance(owner, dict) and isinstance(owner.get("vars"), dict):
                    owner["vars"][name] = SETTINGS[name]
    return emit(tree).encode("utf-8", "surrogatepass")


_near = st.sampled_from(["{", "{", "%", "#", "}}", "{{", "jinja2:", "$(touch @MARK@)", "!unsafe", " ", "\\", "'", '"'])
_FREE = st.text(max_size=20) | st.lists(_near | st.text(max_size=2), max_size=6).map("".join)


@st.composite
def dressed(draw: st.DrawFn) -> bytes:
    """Give a good inventory variables whose values may be any text."""
    tree = copy.deepcopy(GOOD)
    tree["all"]["vars"] |= {name: SETTINGS[name] for name in draw(st.sets(st.sampled_from(sorted(SETTINGS))))}
    options = {name: json.dumps(draw(_FREE), ensure_ascii=False) for name in ("Prolog", "Epilog")}
    tree["all"]["vars"]["slurm_head_conf_extra"] = options
    return emit(tree).encode("utf-8", "surrogatepass")


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Cut a piece out of a good inventory and put something else there."""
    text = emit(GOOD)
    begin = draw(st.integers(0, len(text)))
    end = begin + draw(st.integers(0, 12))
    other = draw(st.sampled_from(ODDITIES) | st.sampled_from(PAYLOADS) | st.text(max_size=3))
    return (text[:begin] + other + text[end:]).encode("utf-8", "surrogatepass")


NOISE = st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass"))
INVENTORIES = st.one_of(mutated(GOOD), mutated(GOOD), dressed(), damaged(), NOISE)
VARIABLES = st.one_of(mutated({"cluster_timezone": "UTC"}), st.just(b"cluster_timezone: UTC\n"), NOISE)
NAMES = (
    "group_vars/all.yml", "group_vars/slurm_workers.yml", "group_vars/a100/site.yaml", "group_vars/slurm_wrokers.yml",
    "host_vars/gpu01.yml", "host_vars/gpu03/x.yml", "host_vars/{{ x }}.yml", "host_vars/$(x).yml",
    "host_vars/gpu02.json", "known_hosts", "hardware/gpu01.json",
)  # fmt: skip
DIRECTORIES = st.builds(
    lambda inventory, others: {"inventory.yaml": inventory, **others},
    INVENTORIES,
    st.just({}) | st.dictionaries(st.sampled_from(NAMES), VARIABLES, max_size=3),
)


# --- what must hold -------------------------------------------------------------------------------------------------


@contextmanager
def watched() -> Iterator[None]:
    """Turn a hang into a failure."""

    def hung(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done after {HANG_SECONDS} s")

    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(HANG_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def write(directory: Path, files: Files, marker: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.replace(MARK.encode(), str(marker).encode()))
    return directory / "inventory.yaml"


def texts(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from (text for pair in value.items() for item in pair for text in texts(item))
    elif isinstance(value, list | tuple):
        yield from (text for item in value for text in texts(item))
    elif isinstance(value, str):
        yield value


def judge(path: Path) -> Inventory | None:
    """Return the inventory, None where it is refused in order."""
    try:
        with watched():
            cluster = home.load(path)
    except InputError as error:
        lines = str(error).splitlines()
        assert len(lines) == len(error.problems) > 0
        assert all(line.isprintable() for line in lines)
        return None
    assert cluster.head.name
    for host in cluster.hosts:
        assert hostrange.is_host_name(host.name)
        assert 0 < (host.port or 22) < 65536
        assert addresses.is_ip(host.address) or rules.is_domain(host.address)
        assert not {name for name in host.variables if name.startswith("ansible_")} - set(schema.CONNECTION)
        for text in texts(host.variables):
            assert not re.search(r"\{[{%#]|^\s*#jinja2", text)
            assert text.removesuffix("\n").isprintable()
        known_hosts.keys(path.parent / home.KNOWN_HOSTS, host.address)
    return cluster


def ansible(path: Path, program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Have Ansible read an inventory under our settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    return subprocess.run(
        [Path(sys.executable).with_name(program), "-i", path, *arguments],
        env=environment
        | {"ANSIBLE_CONFIG": str(paths.content() / "ansible.cfg"), "ANSIBLE_HOME": str(path.parents[1] / "ansible")},
        cwd=path.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )


def template_all(path: Path) -> "subprocess.CompletedProcess[str]":
    """Have Ansible template every variable of every host."""
    return ansible(path, "ansible", "all", "-m", "debug", "-a", "var=hostvars")


def fuzz(directory: Path, examples: int, sample: int, *, same: bool) -> None:
    """Try so many directories: the same in each run, or new ones."""
    accepted: dict[str, Files] = {}
    counts = {True: 0, False: 0}
    marker = directory / "marker"

    @settings(
        max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True,
        derandomize=same, database=None,
    )  # fmt: skip
    @given(DIRECTORIES)
    def one(files: Files) -> None:
        cluster = judge(write(directory / "cluster", files, marker))
        counts[cluster is not None] += 1
        if cluster is not None:
            # Those that differ in their variables, and those in which most could be run, first.
            accepted.setdefault(str(sorted(set(texts([dict(host.variables) for host in cluster.hosts])))), files)
        assert not marker.exists()

    one()
    print(f"{counts[True]} accepted, {counts[False]} refused, {len(accepted)} kinds")
    assert counts[True] > examples // 20, "the generator makes too little that is good"
    assert counts[False] > examples // 4
    chosen = sorted(accepted, key=lambda text: text.count("touch"), reverse=True)[:sample]
    assert len(chosen) == sample
    for number, kind in enumerate(chosen):
        path = write(directory / f"accepted{number}", accepted[kind], marker)
        done = template_all(path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert not marker.exists(), accepted[kind]
        known = json.loads(ansible(path, "ansible-inventory", "--list").stdout)["_meta"]["hostvars"]
        ours = {host.name: {"ansible_local": {}, **host.variables} for host in home.load(path).hosts}
        assert ours == known, "Ansible understands it otherwise than we do"


@pytest.mark.proves(
    "untrusted", "The same 400 generated directories are each accepted or refused; none executes anything."
)
@pytest.mark.proves("inventory", "Ansible reads accepted directories as clusterctl does.")
@pytest.mark.proves("untrusted", "None of the 400 directories causes a hang or an unexpected error.")
def test_any_directory_is_a_cluster_or_a_refusal(tmp_path: Path) -> None:
    fuzz(tmp_path, EXAMPLES, SAMPLE, same=True)


@pytest.mark.proves(
    "untrusted", "12,000 new generated directories are each accepted or refused; none executes anything."
)
@pytest.mark.proves("untrusted", "None of 12,000 new directories causes a hang or an unexpected error.")
@pytest.mark.long
def test_any_directory_is_a_cluster_or_a_refusal_at_length(tmp_path: Path) -> None:
    fuzz(tmp_path, LONG_EXAMPLES, LONG_SAMPLE, same=False)


@pytest.mark.proves("untrusted", "The positive control: without the refusal Ansible runs an inventory's template.")
def test_the_marker_would_be_made(tmp_path: Path) -> None:
    """The positive control: without our refusal Ansible, asked in the same way, runs what an inventory says."""
    marker = tmp_path / "marker"
    tree = copy.deepcopy(GOOD)
    tree["all"]["vars"]["cluster_timezone"] = PAYLOADS[0]
    path = write(tmp_path / "cluster", {"inventory.yaml": emit(tree).encode()}, marker)
    assert judge(path) is None
    template_all(path)
    assert marker.exists()


_VALUES = (
    "7", "-1.5", "true", "x", "''", "null", "2026-01-01", "[7]", "[x]", "[null]", "[[x]]", "{a: 7}", "{a: x}",
    "{a: {}}", "[{a: 7}]", "[{name: 7}]", "[{name: x, uid: x, gid: [], options: 7, groups: {}}]", "{soft: 7}",
    "{debian: 7}",
)  # fmt: skip


@pytest.mark.parametrize("value", _VALUES)
def test_any_value_of_any_variable_is_judged(tmp_path: Path, value: str) -> None:
    variables = emit({name: value for name in KNOWN if name not in ("ansible_host", "cluster_address", "cluster_name")})
    files = {"inventory.yaml": emit(GOOD).encode(), "host_vars/gpu02.yml": variables.encode()}
    assert judge(write(tmp_path / "cluster", files, tmp_path)) is None


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet="abc01[]:-. ", max_size=16))
def test_any_host_pattern_gives_host_names_or_a_refusal(text: str) -> None:
    try:
        names = hostrange.expand(text)
    except ValueError as error:
        assert str(error).startswith(("bad ", "too many"))
    else:
        assert names
        assert all(hostrange.is_host_name(name) for name in names)


_BLOBS = st.binary(max_size=60) | st.sampled_from([b"ssh-ed25519", b"ssh-rsa", b"ecdsa-sha2-nistp256"]).flatmap(
    lambda kind: st.binary(max_size=80).map(lambda rest: len(kind).to_bytes(4, "big") + kind + rest)
)
_LINES = st.tuples(
    st.sampled_from(["", "@revoked ", "@cert-authority ", "@x "]),
    st.sampled_from(["10.0.0.10", "*", "*1" * 40, "10.0.0.1?,!x", "|1|x|y", "|1|AAAA|AAAA", "[10.0.0.10]:22"])
    | st.text(max_size=9),
    st.sampled_from([" ssh-ed25519 ", " ssh-rsa ", " ecdsa-sha2-nistp256 ", " ssh-dss ", " x ", "\t"]),
    _BLOBS.map(lambda blob: base64.b64encode(blob).decode()) | st.text(max_size=20),
).map("".join)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.lists(_LINES, max_size=4).map(lambda lines: "\n".join(lines).encode("utf-8", "surrogatepass"))
    | st.binary(max_size=200)
)
@example(text=b"10.0.0.10 ssh-rsa AAAAB3NzaC1yc2EAAAABgA==")  # an exponent below zero
def test_any_known_hosts_gives_keys_or_none(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "known_hosts"
    path.write_bytes(text)
    with watched():
        try:
            accepted, revoked = known_hosts.keys(path, "10.0.0.10")
        except InputError:
            assert b"@cert-authority" in text.lower()
            return
    assert all(key.get_name() for key in (*accepted, *revoked))
