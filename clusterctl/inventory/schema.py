"""What an inventory may say, read from the content itself: groups from the playbook, variables from the roles.

A group is known when playbooks/bootstrap.yml names it; a variable when a role's meta/argument_specs.yml declares it.
Types are judged more strictly than Ansible does: a value must be written as what it is, because YAML reads `22:30` as
1350, `010` as 8 and `no` as false, and Ansible would convert each of them in silence.
"""

import ipaddress
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from clusterctl.inventory import bootstrap_plays
from clusterctl.inventory.document import Key, Node, Report, shown
from clusterctl.util import paths
from clusterctl.util.errors import ClusterctlError, Position, Problem
from clusterctl.util.text import did_you_mean

# Of MIG: compute slices, memory, and what it has besides, such as 1g.10gb+me; parts of one such as 1c.3g.40gb.
PROFILE = r"([1-9]c\.)?[1-9]g\.[1-9]\d{0,2}gb([+-][a-z]+(\.[a-z]+)?)*"

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Option:
    """One variable, or one key of a variable: a role's argument spec."""

    name: str
    role: str
    type: str = "str"
    elements: str = "raw"
    choices: tuple[Any, ...] = ()
    required: bool = False
    secret: bool = False
    description: tuple[str, ...] = ()
    options: Mapping[str, "Option"] = field(default_factory=dict)

    @property
    def number(self) -> bool:
        """Whether a value, or each element of it, is a number."""
        return not {"int", "float"}.isdisjoint((self.type, self.elements))


CONNECTION: Mapping[str, Option] = {
    option.name: option
    for option in (
        Option("ansible_host", "", description=("Address or name by which SSH reaches the host; default: its name.",)),
        Option("ansible_port", "", type="int", description=("Port of its SSH server; default 22.",)),
        Option("ansible_user", "", description=("User who logs in; default: yours.",)),
        Option("ansible_ssh_private_key_file", "", type="path", description=("Key to log in with, absolute or ~/.",)),
        Option("ansible_become", "", type="bool", description=("Whether that user needs sudo; default true.",)),
        Option(
            "cluster_jump_host",
            "",
            description=("Host of this inventory through which SSH reaches the others, such as the head.",),
        ),
        Option(
            "cluster_host_key",
            "",
            description=("Fingerprint of the host's SSH key, C(SHA256:...), as C(ssh-keygen -l) prints it.",),
        ),
    )
}
"""The only variables of Ansible's own that an inventory may set: whom to reach and as whom."""


@dataclass(frozen=True)
class Schema:
    """The groups and variables that the content knows. Made by `load`."""

    groups: Mapping[str, tuple[str, ...]]
    """Each known group in the playbook's order, with the roles that its hosts get."""
    common: tuple[str, ...]
    """The roles that every host gets besides."""
    variables: Mapping[str, Option]
    """Each known variable, connection variables included."""
    defaults: Mapping[str, Any]
    """The default of each variable that has one."""
    optional: tuple[str, ...] = ()
    """The roles that a host in service may lose, in the playbook's order; the others are Slurm's, GPUs' or the base."""

    def check(self, name: str, node: Node, key: str, at: Position, report: Report) -> None:
        """Report everything that is wrong with `name: node`, where `name` stands at `at` and is called `key`."""
        option = self.variables.get(name)
        if option is None:
            report(Problem(at, key, *self._unknown(name)))
        else:
            _check(option, node, key, report, _rule(name, option.number))

    def required(self) -> Iterator[str]:
        """Yield the variables that must be set because nothing else gives them a value."""
        return (name for name, option in self.variables.items() if option.required and name not in self.defaults)

    def _unknown(self, name: str) -> tuple[str, str]:
        if re.search("pass(word|wd)?$", name):
            return "a password does not belong in an inventory", "log in with a key: ansible_ssh_private_key_file"
        if name.startswith("ansible_"):
            known = did_you_mean(_OLD_NAMES.get(name, name), CONNECTION)
            return "not allowed here, an inventory says which hosts there are and not how Ansible works", known
        return f'unknown variable "{shown(name)}"', did_you_mean(name, self.variables)


_OLD_NAMES = {f"ansible_ssh_{name}": f"ansible_{name}" for name in ("host", "port", "user")}


# --- types ----------------------------------------------------------------------------------------------------------


def _is_decimal(node: Node) -> bool:
    is_int = isinstance(node.value, int) and not isinstance(node.value, bool)
    return is_int and re.fullmatch(r"-?(0|[1-9][0-9]*)", node.text) is not None


def _is_number(node: Node) -> bool:
    plain = isinstance(node.value, float) and math.isfinite(node.value) and not set(node.text) & set(":_")
    return plain or _is_decimal(node)


def _is_plain(node: Node) -> bool:
    """Tell whether YAML reads this value as a person does: no sexagesimal, octal, date or yes/no."""
    match node.value:
        case dict() | list() | str() | None:
            return True
        case bool():
            return node.text.lower() in ("true", "false")
    return _is_number(node)


_TYPES: Mapping[str, tuple[Callable[[Node], bool], str]] = {
    "bool": (lambda node: isinstance(node.value, bool), "true or false"),
    "dict": (lambda node: isinstance(node.value, dict), "a mapping"),
    "float": (_is_number, "a number"),
    "int": (_is_decimal, "a whole number"),
    "list": (lambda node: isinstance(node.value, list), "a list"),
    "path": (lambda node: isinstance(node.value, str), "text"),
    "raw": (_is_plain, "a value that can be read in one way only"),
    "str": (lambda node: isinstance(node.value, str), "text"),
}


def _hint(node: Node, wanted: str) -> str:
    if node.value is None:
        return "leave the line out for the default"
    if isinstance(node.value, str):
        if wanted == "a list":
            return f"write [{shown(node.value)}]"
        return "write it without quotes" if re.fullmatch(r"[0-9.]+|true|false", node.value) else ""
    meant_as_text = wanted in ("text", _TYPES["raw"][1]) and not isinstance(node.value, (dict, list))
    return f'write "{shown(node.text)}" with the quotes' if meant_as_text else ""


# --- values that argument specs cannot describe ---------------------------------------------------------------------

_FREE_KEY = "[A-Za-z0-9_.*/:-]{1,253}"  # an option of somebody else's program, a host, a kernel setting
_LABEL = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_LABEL_ANY = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"


def is_label(text: str) -> bool:
    """Tell whether `text` is a host name's label in lower case (RFC 1123, section 2.1)."""
    return re.fullmatch(_LABEL, text) is not None


def is_domain(text: str) -> bool:
    """Tell whether `text` is a DNS domain; the last label is no number, so that 10.0.0.300 is none (RFC 1123, 2.1)."""
    labels = text.split(".")
    return len(text) <= 253 and not labels[-1].isdigit() and all(re.fullmatch(_LABEL_ANY, label) for label in labels)


def is_ip(text: str) -> bool:
    """Tell whether `text` is an IPv4 or IPv6 address without a zone."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return "/" in text and "%" not in text


def _is_url(text: str) -> bool:
    # In shells' and package managers' files it stands as it is: no quote, blank or sign of theirs; and no password.
    if not re.fullmatch(r"[A-Za-z0-9._~:/?%+=,\[\]-]+", text):
        return False
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and (url.port is None or url.port > 0)
    except ValueError:
        return False


def _matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


# Users and groups that distributions and our own packages make; an account of such a name would change theirs.
_SYSTEM_NAMES = frozenset(
    """root daemon bin sys adm sync games man lp mail news uucp proxy www-data backup list irc nobody nogroup sudo wheel
    sshd messagebus polkitd dbus chrony _chrony ntp dnsmasq munge slurm mysql mariadb prometheus shadow systemd-network
    systemd-resolve systemd-timesync systemd-coredump docker video render""".split()  # noqa: SIM905 - a text to read
)


def _is_account(text: str) -> bool:
    return re.fullmatch("[a-z_][a-z0-9_.-]{0,31}", text) is not None and text not in _SYSTEM_NAMES


def _rises(text: str) -> bool:
    clocks = [int(part) for part in text.split(",") if part]
    return clocks == sorted(clocks)


# As Slurm's time_str2secs reads it (src/common/parse_time.c).
TIME_LIMIT = re.compile(r"(\d+-)?\d+(:\d+){0,2}|-1|INFINITE|UNLIMITED", re.IGNORECASE)
# Of the eight slices of memory and seven of computing that GPUs have, what an instance takes by its compute slices.
_MEMORY_SLICES = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}


def _is_division(text: str) -> bool:
    """Tell whether some GPU can be divided like this; the card itself knows what its own profiles need."""
    if text in ("", "none"):
        return True
    names = text.replace(" ", "").split(",")
    if not all(re.fullmatch(PROFILE, name) and "c." not in name for name in names):
        return False
    sizes = [int(name[0]) for name in names]
    return {*sizes} <= {*_MEMORY_SLICES} and sum(sizes) <= 7 and sum(_MEMORY_SLICES[size] for size in sizes) <= 8


@dataclass(frozen=True)
class _Rule:
    names: str  # a pattern for the end of a variable's name
    holds: Callable[[Any], bool]
    expected: str
    hint: Callable[[Any], str] = lambda value: ""
    number: bool = False  # whether it is for numbers; else for texts


_RULES = (
    _Rule("^cluster_name", lambda v: is_label(v) and len(v) <= 30, "1 to 30 lower-case letters, digits and hyphens"),
    _Rule("^ansible_user", _matches("[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}"), "a user name"),
    _Rule("^cluster_host_key", _matches("SHA256:[A-Za-z0-9+/]{43}"), "SHA256: and 43 characters"),
    # OpenSSH takes it through two shells when a jump host has one.
    _Rule(
        "^ansible_ssh_private_key_file",
        _matches(r"""(/|~/)[^"'\\%$`\x00-\x1f]+"""),
        "a path that starts with / or ~/, without quotes, \\ % $ and `",
    ),
    _Rule("^cluster_jump_host", lambda v: is_domain(v) or is_ip(v), "the name of a host of this inventory"),
    _Rule("^ansible_host|_address", lambda v: is_ip(v) or is_domain(v), "an IP address or a host name"),
    _Rule("_ntp_servers", lambda v: is_ip(v) or is_domain(v), "an IP address or a host name"),
    _Rule("_nameservers|_extra_hosts", is_ip, "an IP address"),
    _Rule("_domain", is_domain, "a DNS domain"),
    _Rule("_networks", _is_network, "a network such as 10.0.0.0/24"),
    _Rule("_no_proxy", _matches(r"[\w.*:/-]+"), "a name, a domain or a network"),
    # A key server's query has it; a key is fetched by Python and stands in no file of a shell.
    _Rule("_key_url", lambda v: v == "" or _is_url(v.replace("&", "")), "a URL such as https://example.com/key.asc"),
    _Rule(
        "_proxy|_url|_mirrors",
        lambda v: v == "" or _is_url(v),
        "a URL without user or password such as http://proxy.example.com:3128",
        lambda v: (
            "everybody on the nodes could read the password: have the nodes admitted by address" if "@" in v else ""
        ),
    ),
    _Rule("_timezone", _matches(r"[A-Za-z][\w+-]*(/[\w+-]+)*"), "a time zone such as Europe/Berlin"),
    _Rule("_sha256", _matches("([0-9a-f]{64})?"), "64 hexadecimal digits in lower case, or nothing"),
    _Rule(
        "_certificates",
        lambda v: v[:1] not in ("", "/", "~") and ".." not in v.split("/"),
        "a file below the cluster's directory",
    ),
    _Rule(
        "_interfaces", _matches(r"[A-Za-z0-9][A-Za-z0-9._-]{0,14}[*]?"), "an interface's name, or its beginning and *"
    ),
    # The driver is asked first, the rest all at once; Slurm ends a program that takes 60 s for all.
    _Rule(r"gpu_health_timeouts\.driver", lambda v: 1 <= v <= 40, "1 to 40", number=True),
    _Rule(r"gpu_health_timeouts\.\w+", lambda v: 1 <= v <= 15, "1 to 15", number=True),
    _Rule("_seconds", lambda v: 1 <= v <= 86_400, "1 to 86400", number=True),
    _Rule("(^|_)port", lambda v: 1 <= v <= 65535, "1 to 65535", number=True),
    _Rule(
        r"(^|[_.])uid",
        lambda v: 500 <= v <= 2**31 - 1 and v != 65534,
        "500 to 2147483647, not the system's own",
        number=True,
    ),
    _Rule(r"(^|[_.])gid", lambda v: 1 <= v <= 2**31 - 1, "1 to 2147483647", number=True),
    _Rule("_keep|_max_files", lambda v: 1 <= v <= 1000, "1 to 1000", number=True),
    _Rule("_interval|_mb", lambda v: 1 <= v <= 2**31 - 1, "1 to 2147483647", number=True),
    _Rule(
        r"users_(accounts|groups)\.name|users_verify_user|_common_group|\.groups|docker_users",
        _is_account,
        "up to 32 of a-z 0-9 . _ -, and not a name of the system's own",
    ),
    _Rule(
        r"(_|\.slurm_)account|_partitions\.(name|nodes)|prometheus_user",
        _matches("(?!(?i:default)$)[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"),  # slurm.conf has a meaning of its own for that
        "a name of letters, digits, . _ -, and not default",
    ),
    _Rule("_database_(name|user)", _matches("[A-Za-z0-9_]{1,64}"), "a name of letters, digits and _"),
    _Rule("_database_host", lambda v: is_ip(v) or is_domain(v), "an IP address or a host name"),
    _Rule(r"[._]shell|_home|_directory", _matches(r"(/[\w.+-]+)+"), "an absolute path of letters, digits, . _ + -"),
    _Rule(r"\.comment", _matches(r"[^:,=\n]*"), "text without colon, comma and equals sign"),
    _Rule(r"\.ssh_keys", _matches(r"\s*[a-z][\w@.-]+ [\w+/=]+( [^\n]*)?\n?"), "a public key: type, key, comment"),
    _Rule("_units|_packages?|_locale", _matches("[A-Za-z0-9@:_.+-]*"), "a name of letters, digits, @ : _ . + -"),
    _Rule(
        "_version",
        lambda v: v == "" or (v != "latest" and _matches("[A-Za-z0-9*][A-Za-z0-9.+~:*?^-]*")(v)),
        "a version such as 24.11.5-4, 24.11.5 or 24.11.*, never latest",
    ),
    _Rule("_cuda_(toolkits|compat)", _matches("[1-9][0-9][.][0-9]"), "a release such as 12.8"),
    _Rule("_driver_branch", _matches("([1-9][0-9]{2})?"), "a release branch such as 580"),
    _Rule("_driver_kernel", _matches("([0-9][A-Za-z0-9.+_~-]*)?"), "a kernel's release, as uname -r names it"),
    _Rule(
        "gpu_config_power_limit",
        _matches("([1-9][0-9]{1,3}( ?W)?|[1-9][0-9]{1,2}%)?"),
        "watts such as 300, or per cent of the card's default such as 85%",
    ),
    _Rule(
        "gpu_config_(graphics|memory)_clock",
        lambda v: _matches("([1-9][0-9]{1,4}(,[1-9][0-9]{1,4})?)?")(v) and _rises(v),
        "MHz such as 1410, or a lowest and a highest such as 210,1410",
    ),
    _Rule(
        "gpu_config_application_clocks",
        _matches("([1-9][0-9]{1,4},[1-9][0-9]{1,4})?"),
        "MHz of memory and graphics such as 1593,1275",
    ),
    _Rule("gpu_config_mig(_gpus)?", _is_division, "profiles that fit on a GPU, 3g.40gb,2g.20gb,2g.20gb, or none"),
    _Rule("_fingerprint", _matches("([0-9A-Fa-f]{40})?"), "40 hexadecimal digits"),
    _Rule("_imex_nodes", is_ip, "an IP address"),
    _Rule("_default_time", lambda v: v == "" or bool(TIME_LIMIT.fullmatch(v)), "a time limit such as 1-12:00:00"),
    _Rule("_time|_interval|_age|_size", _matches("[0-9]+[A-Za-z]*"), "a number with its unit"),
)


@cache
def _rule(name: str, number: bool) -> _Rule | None:
    return next((rule for rule in _RULES if rule.number == number and re.search(f"({rule.names})$", name)), None)


# --- checks ---------------------------------------------------------------------------------------------------------


def _check(option: Option, node: Node, key: str, report: Report, rule: _Rule | None) -> None:
    """Check a value against its spec; `rule` is what its own or its parents' names ask for beyond that."""

    def refuse(what: str, expected: str, hint: str = "") -> None:
        got = "a value that is not shown" if option.secret else node.describe()
        report(Problem(node.position, key, f"{what}, got {got}, expected {expected}", hint))

    fits, expected = _TYPES[option.type]
    if not fits(node):
        refuse("wrong type", expected, _hint(node, expected))
    elif option.choices and not isinstance(node.value, list) and node.value not in option.choices:
        near = did_you_mean(node.text, [str(choice) for choice in option.choices])
        refuse("bad value", "one of " + ", ".join(str(choice) for choice in option.choices), near)
    elif isinstance(node.value, dict):
        for name, wanted in option.options.items():
            if wanted.required and name not in node.value:
                refuse("incomplete", f'the key "{name}" in it')
        for name, value in node.value.items():
            _check_key(option, name, value, f"{key}.{shown(name)}", report, rule)
    elif isinstance(node.value, list):
        element = Option(
            option.name,
            option.role,
            option.elements,
            choices=option.choices,  # of a list, Ansible holds each element against them
            options=option.options,
            secret=option.secret,
        )
        for index, item in enumerate(node.value):
            _check(element, item, f"{key}[{index}]", report, rule)
    elif rule and isinstance(node.value, int | float if rule.number else str) and not rule.holds(node.value):
        refuse("bad value", rule.expected, rule.hint(node.value))


def _check_key(option: Option, name: Key, value: Node, key: str, report: Report, rule: _Rule | None) -> None:
    if not option.options:
        if not re.fullmatch(_FREE_KEY, name):
            expected = "a name of letters, digits, . _ / : * -"
            report(Problem(name.position, key, f'bad name, got "{shown(name)}", expected {expected}'))
        _check(Option(name, option.role, "raw", secret=option.secret), value, key, report, rule)
    elif name in option.options:
        inner = option.options[name]
        _check(inner, value, key, report, _rule(f"{option.name}.{name}", inner.number) or rule)
    else:
        report(Problem(name.position, key, f'unknown key "{shown(name)}"', did_you_mean(name, option.options)))


# --- reading the content --------------------------------------------------------------------------------------------


@cache
def load(content: Path | None = None) -> Schema:
    """Return the schema of the Ansible content at `content` (default: ours).

    Raises ClusterctlError where the content itself is wrong, which is a bug of ours.
    """
    content = content or paths.content()
    try:
        variables = dict(CONNECTION)
        defaults: dict[str, Any] = {}
        for spec in sorted(content.glob("roles/*/meta/argument_specs.yml")):
            for entry in _yaml(spec)["argument_specs"].values():
                role = spec.parent.parent.name
                variables |= {name: _option(name, role, raw) for name, raw in entry.get("options", {}).items()}
        for file in (content / "playbooks/group_vars/all.yml", *sorted(content.glob("roles/*/defaults/main.yml"))):
            defaults |= (_yaml(file) or {}) if file.exists() else {}
        plays = _yaml(content / "playbooks/bootstrap.yml")
        groups = bootstrap_plays.groups(plays)
        common = groups.pop("all", ())
        return Schema(groups, common, variables, defaults, bootstrap_plays.optional(plays, groups, common))
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ClusterctlError(f"the content in {content} is damaged: {type(error).__name__}: {error}") from error


def _yaml(path: Path) -> Any:
    return yaml.load(path.read_bytes(), Loader=_Loader)  # noqa: S506 - a safe loader, the C one where there is one


def _option(name: str, role: str, raw: Mapping[str, Any]) -> Option:
    description = raw.get("description", ())
    kind, elements = raw.get("type", "str"), raw.get("elements", "raw")
    if unknown := {kind, elements} - _TYPES.keys():
        raise ValueError(f"{role}: {name}: unknown type {unknown}")
    return Option(
        name,
        role,
        kind,
        elements,
        tuple(raw.get("choices", ())),
        raw.get("required", False),
        raw.get("no_log", False),
        (description,) if isinstance(description, str) else tuple(description),
        {key: _option(key, role, value) for key, value in raw.get("options", {}).items()},
    )
