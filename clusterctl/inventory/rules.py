"""Rules for values of an inventory, in addition to the types in argument specs."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from clusterctl.inventory.addresses import is_ip, is_network

# A MIG profile: compute slices, memory and extensions (1g.10gb+me), or a part of an instance (1c.3g.40gb).
PROFILE = r"([1-9]c\.)?[1-9]g\.[1-9]\d{0,2}gb([+-][a-z]+(\.[a-z]+)?)*"


FREE_KEY = "[A-Za-z0-9_.*/:-]{1,253}"  # an option of another program, a host, a kernel setting
_LABEL = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_LABEL_ANY = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"


def is_label(text: str) -> bool:
    """Return whether `text` is a host name's label in lower case (RFC 1123, section 2.1)."""
    return re.fullmatch(_LABEL, text) is not None


def is_domain(text: str) -> bool:
    """Return whether `text` is a DNS domain; the last label must not be a number, as in 10.0.0.300 (RFC 1123, 2.1)."""
    labels = text.split(".")
    return len(text) <= 253 and not labels[-1].isdigit() and all(re.fullmatch(_LABEL_ANY, label) for label in labels)


def _is_url(text: str) -> bool:
    # Written unquoted into files of shells and package managers: no quotes, blanks or special characters; no password.
    if not re.fullmatch(r"[A-Za-z0-9._~:/?%+=,\[\]-]+", text):
        return False
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and (url.port is None or url.port > 0)
    except ValueError:
        return False


def _matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


def _is_below_root(path: str) -> bool:
    plain = re.fullmatch(r"(/[A-Za-z0-9_.+-]+)+", path) is not None
    return plain and {".", ".."}.isdisjoint(path.split("/"))


# Directories of the system and everything in them, and directories that a system has itself.
_SYSTEM_TREES = frozenset(
    """bin boot dev etc lib lib32 lib64 libx32 proc root run sbin sys tmp usr var/run var/tmp
    """.split()  # noqa: SIM905 - a text to read
)
_SYSTEM_DIRECTORIES = frozenset({"var"} | {f"var/{name}" for name in ("cache", "lib", "lock", "log", "mail", "spool")})


def _is_for_data(path: str) -> bool:
    """Return whether a directory is not the system's: a mount would hide it, and scratch would change its mode."""
    parts = path.strip("/").split("/")
    above = {"/".join(parts[:end]) for end in (1, 2)}
    return _is_below_root(path) and _SYSTEM_TREES.isdisjoint(above) and "/".join(parts) not in _SYSTEM_DIRECTORIES


# Types of file systems that mount(8) does not start a program of the inventory for, as it does for type fuse.
_MOUNT_TYPES = frozenset(
    """nfs nfs4 lustre beegfs ceph cifs smb3 gpfs wekafs glusterfs orangefs pvfs2 virtiofs 9p none ext4 xfs btrfs zfs
    """.split()  # noqa: SIM905 - a text to read
)

# Users and groups of distributions and installed packages; an account of the same name would change them.
_SYSTEM_NAMES = frozenset(
    """root daemon bin sys adm sync games man lp mail news uucp proxy www-data backup list irc nobody nogroup sudo wheel
    sshd messagebus polkitd dbus chrony _chrony ntp dnsmasq haproxy munge slurm slurmrestd mysql mariadb prometheus
    shadow systemd-network systemd-resolve systemd-timesync systemd-coredump docker video render""".split()  # noqa: SIM905 - a text to read
)


def _is_account(text: str) -> bool:
    return re.fullmatch("[a-z_][a-z0-9_.-]{0,31}", text) is not None and text not in _SYSTEM_NAMES


def _rises(text: str) -> bool:
    clocks = [int(part) for part in text.split(",") if part]
    return clocks == sorted(clocks)


# The syntax of Slurm's time_str2secs (src/common/parse_time.c).
TIME_LIMIT = re.compile(r"(\d+-)?\d+(:\d+){0,2}|-1|INFINITE|UNLIMITED", re.IGNORECASE)
# An instance's memory slices by its compute slices; a GPU has eight memory slices and seven compute slices.
_MEMORY_SLICES = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}


def _is_division(text: str) -> bool:
    """Return whether some GPU supports this layout; the node checks its own profiles."""
    if text in ("", "none"):
        return True
    names = text.replace(" ", "").split(",")
    if not all(re.fullmatch(PROFILE, name) and "c." not in name for name in names):
        return False
    sizes = [int(name[0]) for name in names]
    return {*sizes} <= {*_MEMORY_SLICES} and sum(sizes) <= 7 and sum(_MEMORY_SLICES[size] for size in sizes) <= 8


@dataclass(frozen=True)
class Rule:
    """A rule for the texts or numbers of some variables."""

    names: str  # a pattern of the end of a variable's name
    holds: Callable[[Any], bool]
    expected: str
    hint: Callable[[Any], str] = lambda value: ""
    number: bool = False  # whether the rule is for numbers; else for texts


_RULES = (
    Rule("^cluster_name", lambda v: is_label(v) and len(v) <= 30, "1 to 30 lower-case letters, digits and hyphens"),
    Rule("^ansible_user", _matches("[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}"), "a user name"),
    Rule("^cluster_host_key", _matches("SHA256:[A-Za-z0-9+/]{43}"), "SHA256: and 43 characters"),
    # With a jump host, OpenSSH passes the path through two shells.
    Rule(
        "^ansible_ssh_private_key_file",
        _matches(r"""(/|~/)[^"'\\%$`\x00-\x1f]+"""),
        "a path that starts with / or ~/, without quotes, \\ % $ and `",
    ),
    Rule("^cluster_jump_host", lambda v: is_domain(v) or is_ip(v), "the name of a host of this inventory"),
    # Empty: a name in the cluster's domain.
    Rule("_api_address", lambda v: v == "" or is_ip(v) or is_domain(v), "an IP address or a host name, or nothing"),
    Rule("^ansible_host|_address", lambda v: is_ip(v) or is_domain(v), "an IP address or a host name"),
    Rule("_ntp_servers", lambda v: is_ip(v) or is_domain(v), "an IP address or a host name"),
    Rule("_nameservers|_extra_hosts", is_ip, "an IP address"),
    Rule("_domain", is_domain, "a DNS domain"),
    Rule("_networks?", is_network, "a network such as 10.0.0.0/24"),
    Rule("_senders", lambda v: is_ip(v) or is_network(v), "an address, or a network such as 10.0.0.0/24"),
    Rule("_no_proxy", _matches(r"[\w.*:/-]+"), "a name, a domain or a network"),
    # A key server's query has an &; Python fetches the key, so the URL is not in a shell's file.
    Rule("_key_url", lambda v: v == "" or _is_url(v.replace("&", "")), "a URL such as https://example.com/key.asc"),
    Rule(
        "_proxy|_url|_mirrors",
        lambda v: v == "" or _is_url(v),
        "a URL without user or password such as http://proxy.example.com:3128",
        lambda v: (
            "all users of the nodes could read the password: allow the nodes by address instead" if "@" in v else ""
        ),
    ),
    Rule(
        "_image_registry",
        _matches("[a-z0-9.-]+(:[0-9]{1,5})?(/[a-z0-9._-]+)*"),
        "a registry such as registry.example.com:5000/kubernetes",
    ),
    Rule("_timezone", _matches(r"[A-Za-z][\w+-]*(/[\w+-]+)*"), "a time zone such as Europe/Berlin"),
    Rule("_sha256", _matches("([0-9a-f]{64})?"), "64 hexadecimal digits in lower case, or nothing"),
    Rule(
        "_certificates",
        lambda v: v[:1] not in ("", "/", "~") and ".." not in v.split("/"),
        "a file below the cluster's directory",
    ),
    Rule(
        "_interfaces", _matches(r"[A-Za-z0-9][A-Za-z0-9._-]{0,14}[*]?"), "an interface's name, or its beginning and *"
    ),
    # The driver is checked first, the rest in parallel; Slurm ends a health check after 60 s.
    Rule(r"gpu_health_timeouts\.driver", lambda v: 1 <= v <= 40, "1 to 40", number=True),
    Rule(r"gpu_health_timeouts\.\w+", lambda v: 1 <= v <= 15, "1 to 15", number=True),
    Rule("gpu_health_commands", lambda v: v.strip() != "", "a shell script"),
    Rule("_seconds", lambda v: 1 <= v <= 86_400, "1 to 86400", number=True),
    Rule("(^|_)port", lambda v: 1 <= v <= 65535, "1 to 65535", number=True),
    Rule(
        r"(^|[_.])uid",
        lambda v: 500 <= v <= 2**31 - 1 and v != 65534,
        "500 to 2147483647, except 65534",
        number=True,
    ),
    Rule(r"(^|[_.])gid", lambda v: 1 <= v <= 2**31 - 1, "1 to 2147483647", number=True),
    Rule("_keep|_max_files", lambda v: 1 <= v <= 1000, "1 to 1000", number=True),
    Rule(
        "_retention_(days|gb)|logging_shards|package_cache_(days|size_gb)",
        lambda v: 1 <= v <= 100_000,
        "1 to 100000",
        number=True,
    ),
    # Slurm counts at most 1024 of a GRES with device files on a node (gres.conf(5)).
    Rule("slurm_head_token_lifetime", lambda v: 60 <= v <= 31536000, "60 to 31536000 seconds", number=True),
    Rule("slurm_head_sleep_after", lambda v: v == 0 or 60 <= v <= 31_536_000, "0, or 60 to 31536000", number=True),
    # uint16_t in src/common/read_config.c
    Rule("slurm_head_(resume|suspend)_timeout", lambda v: 10 <= v <= 65_533, "10 to 65533", number=True),
    Rule(
        "slurm_head_power_mac", _matches("([0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5})?"), "six bytes such as 02:00:5e:10:00:01"
    ),
    Rule("slurm_head_power_command", _matches("(/[A-Za-z0-9_.+-]+)*"), "an absolute path"),
    Rule("slurm_head_power_bmc", lambda v: v == "" or is_ip(v) or is_domain(v), "an IP address or a host name"),
    Rule("slurm_head_power_bmc_user", _matches("[A-Za-z0-9_.@-]{0,16}"), "up to 16 of letters, digits, _ . @ -"),
    Rule("slurm_head_shards", lambda v: 0 <= v <= 64, "0 to 64", number=True),
    # One part of one would be a whole GPU, and less than a hundredth is rounded up (gres_mps.c).
    Rule("slurm_head_mps", lambda v: v == 0 or 2 <= v <= 100, "0, or 2 to 100", number=True),
    Rule("_topology.block_sizes", lambda v: 1 <= v <= 65536, "1 to 65536", number=True),
    Rule("elasticsearch_heap_mb", lambda v: v == 0 or 256 <= v <= 31744, "0, or 256 to 31744", number=True),
    Rule("_interval|_mb", lambda v: 1 <= v <= 2**31 - 1, "1 to 2147483647", number=True),
    Rule(
        r"users_(accounts|groups)\.name|users_verify_user|_common_group|\.groups|docker_users",
        _is_account,
        "up to 32 of a-z 0-9 . _ -, and not a system account",
    ),
    Rule(
        r"switches\.(name|nodes|switches)|blocks\.(name|nodes)|"
        r"(_|\.slurm_)account|_partitions\.(name|nodes)|_head_(qos|reservations)\.name|_head_accounts\.(name|parent)|(alertmanager|landing_page|logging|prometheus)_user",
        _matches("(?!(?i:default)$)[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"),  # "default" is special in slurm.conf
        "a name of letters, digits, . _ -, and not default",
    ),
    Rule(
        r"_partitions\.gpu",
        _matches("[A-Za-z0-9][A-Za-z0-9._+-]{0,63}"),
        "a type of GPU such as h100, as sinfo -o %G shows it",
    ),
    Rule(
        r"_mounts\.path|_exports\.path",
        _is_for_data,
        "an absolute path of letters, digits, . _ + -, and no directory of the system such as /, /usr or /tmp/a",
    ),
    Rule(
        "slurm_worker_scratch",
        lambda v: v == "" or (_is_for_data(v) and v.strip("/") not in ("home", "media", "mnt", "opt", "srv")),
        "an absolute path of letters, digits, . _ + -, and no directory of the system such as /var, or nothing",
    ),
    Rule(r"_mounts\.type", _MOUNT_TYPES.__contains__, f"one of {', '.join(sorted(_MOUNT_TYPES))}"),
    Rule(
        r"_mounts\.(source|options)|_exports\.options|nfs_(client|server)_options",
        _matches(r"[A-Za-z0-9_.,:/@=+\[\]-]+"),
        "letters, digits, . _ , : / @ = + - [ ]",
    ),
    Rule(r"home_quota\.(soft|hard)", _matches("0|[1-9][0-9]{0,5}[KMGT]"), "a size such as 400G, or 0"),
    Rule("nfs_server_threads", lambda v: 0 <= v <= 1024, "0 to 1024", number=True),
    Rule(
        "sssd_uris",
        lambda v: _matches(r"ldaps?://[A-Za-z0-9.:\[\]-]+")(v) and _is_url(v.replace("ldap", "http", 1)),
        "a server such as ldaps://ldap1.example.org; ldap:// uses StartTLS",
    ),
    Rule(
        "sssd_(base|bind_dn)", _matches(r"([A-Za-z]+=[^\x00-\x1f]+)?"), "an entry such as dc=example,dc=org, or nothing"
    ),
    Rule("sssd_ssh_key_attribute", _matches("[A-Za-z][A-Za-z0-9;-]*"), "an attribute such as sshPublicKey"),
    Rule("sssd_home_pattern", _matches(r"((/([\w.+-]|%u)+)+)?"), "a path such as /home/%u, or nothing"),
    Rule("sssd_(lowest|highest)_id", lambda v: 500 <= v <= 2**31 - 1, "500 to 2147483647", number=True),
    Rule(
        "sssd_login_groups|sssd_slurm_accounts",
        _matches("[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"),
        "a name of letters, digits, . _ -",
    ),
    Rule("_database_(name|user)", _matches("[A-Za-z0-9_]{1,64}"), "a name of letters, digits and _"),
    Rule("_database_host", lambda v: is_ip(v) or is_domain(v), "an IP address or a host name"),
    Rule(
        "_(images|state)_directory|_override_shell",
        _matches(r"((/[\w.+-]+)+)?"),
        "an absolute path of letters, digits, . _ + -, or nothing",
    ),
    Rule(r"[._]shell|_home|_directory", _matches(r"(/[\w.+-]+)+"), "an absolute path of letters, digits, . _ + -"),
    Rule(r"\.comment", _matches(r"[^:,=\n]*"), "text without colon, comma and equals sign"),
    Rule(r"\.ssh_keys", _matches(r"\s*[a-z][\w@.-]+ [\w+/=]+( [^\n]*)?\n?"), "a public key: type, key, comment"),
    Rule("_units|_packages?|_locale", _matches("[A-Za-z0-9@:_.+-]*"), "a name of letters, digits, @ : _ . + -"),
    Rule(
        "_version",
        lambda v: v == "" or (v != "latest" and _matches("[A-Za-z0-9*][A-Za-z0-9.+~:*?^-]*")(v)),
        "a version such as 24.11.5-4, 24.11.5 or 24.11.*, never latest",
    ),
    Rule("_cuda_(toolkits|compat)", _matches("[1-9][0-9][.][0-9]"), "a release such as 12.8"),
    Rule("_driver_branch", _matches("([1-9][0-9]{2})?"), "a release branch such as 580"),
    Rule("_driver_kernel", _matches("([0-9][A-Za-z0-9.+_~-]*)?"), "a kernel's release, as uname -r prints it"),
    Rule(
        "gpu_config_power_limit",
        _matches("([1-9][0-9]{1,3}( ?W)?|[1-9][0-9]{1,2}%)?"),
        "watts such as 300, or per cent of the card's default such as 85%",
    ),
    Rule(
        "gpu_config_(graphics|memory)_clock",
        lambda v: _matches("([1-9][0-9]{1,4}(,[1-9][0-9]{1,4})?)?")(v) and _rises(v),
        "MHz such as 1410, or a lowest and a highest such as 210,1410",
    ),
    Rule(
        "gpu_config_application_clocks",
        _matches("([1-9][0-9]{1,4},[1-9][0-9]{1,4})?"),
        "MHz of memory and graphics such as 1593,1275",
    ),
    Rule(
        "gpu_config_mig(_gpus)?",
        _is_division,
        "profiles that fit on a GPU, for example 3g.40gb,2g.20gb,2g.20gb, or none",
    ),
    Rule("_fingerprint", _matches("([0-9A-Fa-f]{40})?"), "40 hexadecimal digits"),
    Rule("_cpu", _matches("[1-9][0-9]{0,4}%"), "per cent of a CPU such as 50%"),
    Rule("_imex_nodes", is_ip, "an IP address"),
    Rule("_default_time", lambda v: v == "" or bool(TIME_LIMIT.fullmatch(v)), "a time limit such as 1-12:00:00"),
    # A larger share would raise DiskNearlyFull, which fires below 10 % of free space, by itself.
    Rule(
        "_retention_size",
        _matches("[1-9][0-9]*[KMGTPE]?B|([1-9]|[1-7][0-9]|80)%"),
        "a size such as 20GB, or a share from 1% to 80%",
    ),
    Rule("_time|_interval|_age|_size", _matches("[0-9]+[A-Za-z]*"), "a number with its unit"),
)


@cache
def rule_of(name: str, number: bool) -> Rule | None:
    return next((rule for rule in _RULES if rule.number == number and re.search(f"({rule.names})$", name)), None)


# --- checks ---------------------------------------------------------------------------------------------------------
