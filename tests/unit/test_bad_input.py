"""The catalogue of bad input, each line of it given to the program as a user would, where no network is.

A text has the sign § where the message must point. Lines that a program can judge in one go share a start of it, which
also shows that all errors are told at once.
"""

import os
import re
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from ansible.parsing.vault import VaultLib, VaultSecret

from . import arena, small_content
from .arena import End

GOOD = small_content.INVENTORY
GPU01 = "        gpu01: {ansible_host: 10.0.0.11, ansible_port: 2222}\n"
USER = "    ansible_user: admin\n"

MARKER = "executed"
RUN = f"touch {MARKER}"
CANARY = "hunter2-hunter2-hunter2"
PASSWORD = "the vault password of this cluster"

Make = str | bytes | Callable[[Path], object]
"""What lies at a path: its content, or what makes it."""


@dataclass(frozen=True)
class Given:
    """A cluster's directory and a command line; `says` has what must be printed, by the line of the catalogue."""

    says: Mapping[str, tuple[str, str]]
    files: Mapping[str, Make] = field(default_factory=dict)
    argv: tuple[str, ...] = ("bootstrap", ".")
    environment: Mapping[str, str | None] = field(default_factory=dict)
    judged: bool = True
    """Whether the input was judged as a whole, and not only the command line."""


GIVEN: list[Given] = []
NOTHING: Mapping[str, Make] = {}


def marked(text: str | bytes, name: str = "inventory.yaml") -> tuple[bytes, list[str]]:
    """Return the content without its §, and the place of each as a message begins with it; the file's where none is."""
    first, *others = (text if isinstance(text, bytes) else text.encode()).split("§".encode())
    content, places = first, []
    for part in others:
        lines = content.split(b"\n")
        places.append(f"{name}:{len(lines)}:{len(lines[-1].decode(errors='replace')) + 1}: ")
        content += part
    return content, places or [f"{name}: "]


def inventory(lines: Mapping[str, str], text: str | bytes, files: Mapping[str, Make] = NOTHING) -> None:
    """Add lines of the catalogue that stand in one inventory, each with what is said of it, in the order of the §."""
    content, places = marked(text)
    says = {line: (place, said) for (line, said), place in zip(lines.items(), places, strict=True)}
    GIVEN.append(Given(says, {"inventory.yaml": content, **files}))


def together(
    catalogue: str,
    lines: Sequence[tuple[str, str, str]],
    template: str,
    after: str,
    text: str = GOOD,
    files: Mapping[str, Make] = NOTHING,
) -> None:
    """Add lines (name, what is wrong, what is said), each in a copy of the template; these stand behind `after`.

    In a template %d is a number and %s what is wrong.
    """
    assert after in text
    wrong = (template.replace("%d", f"{number:02}").replace("%s", line[1]) for number, line in enumerate(lines))
    text = text.replace(after, after + "".join(wrong))
    inventory({f"{catalogue}: {line[0]}": line[2] for line in lines}, text, files)


def beside(lines: Mapping[str, tuple[str, Make, str]], inventory: str = GOOD) -> None:
    """Add lines of the catalogue that are files beside one good inventory: path, what lies there, what is said."""
    says, files = {}, dict[str, Make]()
    for line, (name, make, said) in lines.items():
        files[name], [place] = marked(make, name) if isinstance(make, str | bytes) else (make, [f"{name}: "])
        says[line] = (place, said)
    GIVEN.append(Given(says, {"inventory.yaml": inventory, **files}))


def command(
    line: str, said: str, *argv: str, inventory: Make = GOOD, judged: bool = False, **environment: str | None
) -> None:
    """Add a line of the catalogue that is a command line."""
    GIVEN.append(Given({line: ("", said)}, {"inventory.yaml": inventory}, argv, environment, judged))


def good(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def link(target: str) -> Callable[[Path], object]:
    return lambda path: path.symlink_to(target)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as it:
        os.chdir(path.parent)  # a socket's path is short
        it.bind(path.name)


def with_mode(mode: int, content: str) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        path.write_text(content)
        path.chmod(mode)

    return make


def directory_with_mode(mode: int) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        path.mkdir()
        path.chmod(mode)

    return make


def in_a_directory_that_cannot_be_searched(path: Path) -> None:
    path.write_text("")
    path.parent.chmod(0o400)


def sealed(label: str, password: str = PASSWORD, plain: str = f"munge_key: {CANARY}\n") -> bytes:
    return bytes(VaultLib([(label, VaultSecret(password.encode()))]).encrypt(plain.encode(), vault_id=label))


# --- File -----------------------------------------------------------------------------------------------------------

BOMB = "a: §&a [x]\nb: &b [*a, *a]\nc: [*b, *b]\n"

for _line, _text, _said in (
    ("empty", "", "is empty"),
    ("binary", b"all:\n  \xc2\xa7\x00\x01", "holds a control character, got \\x00"),
    ("not UTF-8", b"all:\n  name: caf\xc2\xa7\xe9", "is not UTF-8 text, got the byte \\xe9"),
    ("UTF-16", GOOD.encode("utf-16"), "is UTF-16, expected UTF-8 (save it as UTF-8)"),
    ("tabs", "all:\n§\tvars: {}\n", "a tab in the indentation, expected spaces"),
    ("unclosed bracket", "all: {vars: {cluster_name: a}\n§", "not valid YAML"),
    ("list at top level", "§- all\n", "got a list, expected a mapping"),
    ("duplicate key", good("monitoring", "§slurm_head"), 'the key "slurm_head" a second time (first on line 6)'),
    ("YAML tag", f"all: §!!python/object/apply:os.system [{RUN}]", "got a YAML tag"),
    ("YAML tag of Ansible", "all: {vars: {cluster_name: §!vault x}}", "got a YAML tag (!vault)"),
    ("alias bomb", BOMB, "got an anchor (&a)"),
    ("huge", GOOD + "#" * (5 << 20), "is too big, got 5243"),
    ("deep", "[" * 21 + "§[" + "[" * 500, "nested too deep, expected at most 20 levels"),
    ("several documents", GOOD + "§---\n" + GOOD, "a second document, expected one"),
    ("INI", "[slurm_head]\n§head1 ansible_host=10.0.0.1\n[slurm_workers]\n", "looks like an INI inventory"),
    ("an inventory plugin", "§plugin: constructed\nstrict: false\n", "is an inventory plugin"),
    ("encrypted", "$ANSIBLE_VAULT;1.1;AES256\n3132", "is encrypted, expected readable YAML"),
    ("terminal escape", "all: {}  # §\x1b[2J", "holds a control character, got \\x1b"),
):
    inventory({f"File: {_line}": _said}, _text)

_variants: tuple[tuple[str, str | bytes, str], ...] = (
    ("comments alone", "# nothing\n", "is empty"),
    ("UTF-16 without a mark", "a§".encode() + GOOD.encode("utf-16-be"), "holds a control character, got \\x00"),
    ("unclosed quote", "all: {vars: {cluster_name: 'a}\n§", "not valid YAML"),
    ("text at top level", "§hello\n", 'got "hello", expected a mapping'),
    ("number at top level", "§7\n", "got 7, expected a mapping"),
    ("YAML tag of an ordinary type", "all: {vars: {cluster_name: §!!str 7}}", "got a YAML tag"),
    ("YAML tag by a directive", "%TAG ! tag:x,2000:\n--- §!y {}", "got a YAML tag"),
    ("alias bomb's alias", "a: &a [x]\nb: [§*a, *a]\n", "got an alias (*a)"),
    ("alias of itself", "all: &x {vars: §*x}", "got an alias (*x)"),
    ("merge key", "all: {§<<: {}}", "got <<, which YAML cannot read"),
    ("too many values", "all: [" + "1," * 59_997 + "§1," * 1 + "1," * 400_000, "too much in one file"),
    ("deep mapping", "{a: " * 20 + "{§a: " + "{a: " * 100_000, "nested too deep"),
    ("huge number", "ansible_port: §" + "9" * 5000, "which YAML cannot read"),
    ("huge octal number", "ansible_port: §0" + "7" * 9999, "which YAML cannot read"),
    ("impossible date", "cluster_timezone: §2026-13-45", "which YAML cannot read"),
    ("INI of one line", "§[slurm_head]\n", "looks like an INI inventory"),
    ("text that turns", "all: {}  # §\u202e", "holds a control character, got \\u202e"),
    (
        "terminal escape written as one",
        'all: {vars: {cluster_name: §"\\e[2J"}}',
        "got the character \\x1b, expected printable text",
    ),
    ("line separator", "all: {}  # §\u2028", "holds a control character, got \\u2028"),
    *(
        (f"cluster named {name}", f"cluster_name: §{name}", "bad value, got")
        for name in ("Aurora", "a" * 31, "a_b", "-a", "a.b", "'a b'", "''")
    ),
)
beside(
    {
        f"File: {_line}": (f"host_vars/n{_number:02}.yml", _text, _said)
        for _number, (_line, _text, _said) in enumerate(_variants)
    },
    good("gpu[02:04]", "n[00:99]"),
)

for _line, _make, _said in (
    ("directory", Path.mkdir, "is a directory, expected a file"),
    ("unreadable", with_mode(0, GOOD), "cannot be read: Permission denied"),
    ("an executable", with_mode(0o755, f"#!/bin/sh\n{RUN}\n"), "is executable, expected a plain text file (it is data"),
    ("a pipe", os.mkfifo, "is not a regular file"),
    ("a socket", a_socket, "is not a regular file"),
    ("a device", link("/dev/zero"), "is not a regular file"),
    ("a link in a circle", link("inventory.yaml"), "cannot be read: Too many levels of symbolic links"),
    ("a link to nothing", link("nothing"), "cannot be read: No such file or directory"),
    ("a file of the kernel", link("/proc/self/mem"), "cannot be read: Input/output error"),
):
    GIVEN.append(Given({f"File: {_line}": ("inventory.yaml: ", _said)}, {"inventory.yaml": _make}))

for _line, _path, _said in (
    ("missing", "none.yaml", "none.yaml: cannot be read: No such file or directory"),
    ("missing in a directory", "ca", "ca/inventory.yaml: cannot be read: No such file or directory"),
    ("missing directory", "x/y/z.yaml", "x/y/z.yaml: cannot be read: No such file or directory"),
    ("below a file", "inventory.txt/x.yaml", "inventory.txt/x.yaml: cannot be read: Not a directory"),
    ("a name too long", "n" * 300, "cannot be read: File name too long"),
    ("a name that is no text", "\udcff.yaml", "\\udcff.yaml: cannot be read: No such file or directory"),
    (
        "a name that Ansible does not take",
        "inventory.txt",
        "inventory.txt: bad file name, expected one that ends in .yml",
    ),
    ("no file but a device", "/dev/null", "/dev/null: is not a regular file"),
):
    GIVEN.append(
        Given({f"File: {_line}": ("", _said)}, {"ca": Path.mkdir, "inventory.txt": GOOD}, ("bootstrap", _path))
    )

# --- File: what lies beside the inventory ---------------------------------------------------------------------------

beside(
    {
        "Beside: variables of an unknown group": ("group_vars/slurm_worker.yml", "", "did you mean slurm_workers?"),
        "Beside: variables of an unknown host": ("host_vars/gpu1.yml", "", 'no host "gpu1" (did you mean gpu0'),
        "Beside: variables in JSON": ("group_vars/all.json", "{}", "bad file name, expected one that ends in .yml"),
        "Beside: variables in a file without an ending": ("group_vars/monitoring", "{}", "bad file name"),
        "Beside: a list of variables": ("host_vars/gpu02.yml", "§- a", "got a list, expected a mapping"),
        "Beside: encrypted variables": ("host_vars/gpu03.yml", "$ANSIBLE_VAULT;1.1;AES256\n", "is encrypted"),
        "Beside: a template in a variable": ("host_vars/gpu04.yml", "ansible_host: §'{{ x }}'", "got a template"),
        "Beside: a variable that is not allowed": (
            "host_vars/head1.yml",
            "§ansible_connection: local",
            "not allowed here",
        ),
        "Beside: a variable in the wrong place": (
            "group_vars/slurm_workers.yml",
            "§ansible_host: 10.0.0.1",
            "is in the wrong place, expected it on a host",
        ),
        "Beside: a variable given twice": (
            "group_vars/all.yml",
            "ansible_user: §root",
            "is set a second time, first at inventory.yaml:4:19 (keep only one of them)",
        ),
        "Beside: a second file of variables": ("group_vars/a100.yml", "", "a second file for a100, besides a100.yaml"),
        "Beside: an empty file of variables": ("group_vars/a100.yaml", "", "is empty"),
        "Beside: a cluster's name in two places": (
            "host_vars/gpu01.yml",
            "§cluster_name: b",
            "expected it in all.vars",
        ),
    }
)
beside(
    {
        "Beside: variables in a pipe": ("group_vars/all.yml", os.mkfifo, "is not a regular file"),
        "Beside: variables in a socket": ("group_vars/a100.yml", a_socket, "is not a regular file"),
        "Beside: variables in a device": ("host_vars/gpu01.yml", link("/dev/zero"), "is not a regular file"),
        "Beside: variables that cannot be read": ("host_vars/gpu02.yml", with_mode(0, ""), "Permission denied"),
        "Beside: variables that are a program": ("host_vars/gpu03.yml", with_mode(0o755, RUN), "is executable"),
        "Beside: variables in a directory named as a file": ("host_vars/gpu04.yml", Path.mkdir, 'no host "gpu04.yml"'),
        "Beside: secrets in a pipe": ("secrets.yml", os.mkfifo, "is not a regular file (restore both"),
        "Beside: host keys in a pipe": ("known_hosts", os.mkfifo, "is not a regular file"),
        "Beside: a hardware record in a pipe": ("hardware/gpu01.json", os.mkfifo, "is not a regular file (delete "),
        "Beside: a hardware record in a device": ("hardware/gpu02.json", link("/dev/zero"), "is a link out of"),
        "Beside: a hardware record in a directory": ("hardware/gpu03.json", Path.mkdir, "is a directory"),
        "Beside: a hardware record out of the directory": (
            "hardware/gpu04.json",
            link("/etc/passwd"),
            "is a link out of",
        ),
        "Beside: a hardware record that is none": ("hardware/head1.json", "{", "not a hardware record: "),
        "Beside: a state directory that is a pipe": (
            ".clusterctl",
            os.mkfifo,
            "is a link or a file, expected a directory",
        ),
        "Beside: an ignore list out of the directory": (".gitignore", link("/etc/passwd"), "is a link"),
    }
)
beside(
    {
        "Beside: variables' directory that is a pipe": ("group_vars", os.mkfifo, "cannot be read: Not a directory"),
        "Beside: secrets in a directory": ("secrets.yml", Path.mkdir, "is a directory, expected a file"),
        "Beside: host keys in a directory": ("known_hosts", Path.mkdir, "is a directory, expected a file"),
        "Beside: a state directory elsewhere": (".clusterctl", link("/tmp"), "is a link or a file"),
        "Beside: hardware records elsewhere": ("hardware", link("/var/empty"), "is a link or a file"),
    }
)
beside(
    {
        "Beside: secrets in a device": ("secrets.yml", link("/dev/zero"), "is a link out of the cluster's directory"),
        "Beside: host keys out of the directory": ("known_hosts", link("/etc/passwd"), "is a link out of"),
        "Beside: runs elsewhere": (".clusterctl/runs", link("/tmp"), "is a link or a file"),
        "Beside: nodes that leave elsewhere": (".clusterctl/leaving", link("/tmp"), "is a link or a file"),
    }
)
beside(
    {
        "Beside: variables of nodes that leave": (
            ".clusterctl/leaving/host_vars",
            Path.mkdir,
            "is not a file of",
        ),
        "Beside: secrets of nodes that leave": (
            ".clusterctl/leaving/secrets.yml",
            "",
            "is not a file of",
        ),
        "Beside: a node that leaves elsewhere": (
            ".clusterctl/leaving/gpu09.json",
            link("/etc/passwd"),
            "is not a file of",
        ),
    }
)
beside(
    {
        "Beside: variables in a directory that cannot be searched": (
            "group_vars/all.yml",
            in_a_directory_that_cannot_be_searched,
            "cannot be read: Permission denied",
        ),
        "Beside: variables' directory that cannot be read": (
            "host_vars",
            directory_with_mode(0),
            "cannot be read: Perm",
        ),
        "Beside: secrets that cannot be read": ("secrets.yml", with_mode(0, ""), "cannot be read: Permission denied"),
        "Beside: host keys that cannot be read": ("known_hosts", with_mode(0, ""), "cannot be read: Permission denied"),
        "Beside: hardware records that cannot be read": ("hardware", directory_with_mode(0), "cannot be read: Perm"),
    }
)
GIVEN.append(
    Given(
        {"Beside: a state directory that cannot be searched": (".clusterctl/lock: ", "cannot be written: Permission")},
        {"inventory.yaml": GOOD, ".clusterctl": directory_with_mode(0)},
    )
)
beside({"Beside: hardware records in a file": ("hardware", "", "cannot be read: Not a directory")})
beside({"Beside: secrets that are no vault": ("secrets.yml", f"munge_key: {CANARY}", "is damaged: it does not start")})

# --- Structure ------------------------------------------------------------------------------------------------------

inventory(
    {
        "Structure: variables are a list": "got a list, expected a mapping",
        "Structure: unknown key of a group": "(did you mean children?)",
        "Structure: group as a key": "(move it below children)",
        "Structure: unknown group": "(did you mean slurm_workers?)",
        "Structure: group of no role": "(known groups: package_cache, gpu_config, nfs_server, slurm_head, ",
        "Structure: group's name is no text": "got no, which YAML reads as false as a key",
        "Structure: host is a text": 'got "10.0.0.10", expected a mapping',
        "Structure: sub-group of the head": "a sub-group, which only workers can have (list the hosts)",
        "Structure: hosts are a list": "got a list, expected a mapping (write each host on its own line, followed",
        "Structure: hosts are a text": 'got "gpu02", expected a mapping (write each host on its own line',
        "Structure: role's group inside a group": "expected it in all.children (list its hosts there)",
        "Structure: group in two places": 'the group "a100" a second time (define a group once)',
        "Structure: group named all": 'the group "all" a second time',
        "Structure: duplicate name": 'the host "gpu03" a second time in rack1',
        "Structure: unknown key": 'unknown key "al", expected all (did you mean all?)',
        "Structure: group on top": "(move it to all.children.slurm_head)",
    },
    """\
all:
  vars: §[]
  §chidren: {}
  §slurm_head: {}
  children:
    §slurm_wokers: {}
    §backup: {}
    §no: {}
    slurm_head:
      hosts:
        head1: §10.0.0.10
      children: {§x: {}}
    slurm_workers:
      hosts: §[gpu01]
      children:
        a100: {hosts: §gpu02}
        §monitoring: {}
        h100: {children: {§a100: {}}}
        §all: {}
        rack1: {hosts: {"gpu[02:04]": {}, §gpu03: {}}}
§al: {}
§slurm_head: {}
""",
)
inventory(
    {
        "Structure: host in no group": "is in no group, so nothing would be installed on it",
        "Structure: two heads": "two heads need slurm_head_state_directory, which head1 does not have",
        "Structure: duplicate address": "got 10.0.0.10, which is also head1's",
        "Structure: duplicate address by a name": "got gpu02, which is also gpu03's",
        "Structure: duplicate address inside the cluster": "got 10.0.0.10, which is also head1's (set a different",
        "Structure: IPv6 inside the cluster": "Slurm uses IPv4 only, got fd00::1 (set cluster_address to its",
        "Structure: duplicate address of IPv6": "duplicate address, got fd00::1, which is also gpu05's",
        "Structure: unknown jump host": 'no host "head9" (did you mean head',
        "Structure: jump host behind a jump host": "gpu07 is behind the jump host head9, expected a host that is",
        "Structure: host with the name of a group": "a host has the same name as a group",
        "Structure: address given twice": "is set a second time, first at inventory.yaml:7:31 (keep only one of them)",
    },
    """\
all:
  vars: {cluster_name: aurora}
  hosts: {§spare: {}}
  children:
    slurm_head:
      hosts:
        head1: {ansible_host: 10.0.0.10}
        §head2: {}
    slurm_workers:
      hosts:
        gpu01: {ansible_host: §10.0.0.10}
        gpu03: {ansible_host: gpu02}
        §gpu02: {}
        gpu04: {cluster_address: §10.0.0.10}
        §gpu05: {ansible_host: "fd00::1"}
        gpu06: {ansible_host: §"FD00:0::1"}
        gpu07: {cluster_jump_host: §head9}
        gpu08: {cluster_jump_host: §gpu07}
        §monitoring: {}
    monitoring:
      hosts:
        head1: {ansible_host: §10.0.0.9}
""",
)
inventory(
    {"Meaning: login node that is a worker": "gpu01 is also in slurm_workers, expected a host of its own"},
    good("gpu01: {ansible", "§gpu01: {ansible").replace(
        "    monitoring:", "    login: {hosts: {gpu01: {}}}\n    monitoring:"
    ),
)
inventory(
    {
        "Meaning: directory that is exported twice": "duplicate path, got /srv/a",
        "Meaning: exported root directory": 'got "/", expected an absolute path of letters, digits',
        "Meaning: exported parent directory": 'got "/srv/..", expected an absolute path',
        "Hostile: an option of a mount": "expected letters, digits, . _ , : / @ = + - [ ]",
        "Meaning: former variable of homes": "is no longer a variable (list the homes: nfs_client_mounts: [{path:",
        "Meaning: quota without a unit": 'got "400", expected a size such as 400G, or 0',
        "Meaning: soft quota above the hard one": "soft is larger than hard, so it would have no effect",
    },
    good(
        "    ansible_user: admin\n",
        """\
    ansible_user: admin
    nfs_server_exports: [{path: /srv/a}, {path: §/srv/a}, {path: §/}, {path: §/srv/..}]
    nfs_client_options: [hard, §"ro\\nExecStart=x"]
    §users_home_export: nas:/home
    nfs_server_home_quota: {hard: §"400"}
    users_accounts: [{name: ada, uid: 1001, home_quota: §{soft: 2T, hard: 3G}}]
""",
    ),
)
inventory(
    {
        "Hostile: exported directory of the system": 'got "/etc/x", expected an absolute path of letters',
        "Meaning: mount over the system": 'got "/usr", expected an absolute path of letters',
        "Meaning: mount over what the system keeps": 'got "/var/lib", expected an absolute path of letters',
        "Hostile: mount that starts a program": 'got "fuse", expected one of 9p, beegfs, btrfs, ceph, cifs,',
        "Meaning: scratch of all programs": 'got "/tmp", expected an absolute path of letters',
    },
    good(
        "    ansible_user: admin\n",
        """\
    ansible_user: admin
    nfs_server_exports: [{path: §/etc/x}]
    nfs_client_mounts:
      - {path: §/usr, source: "nas:/a"}
      - {path: §/var/lib, source: "nas:/a"}
      - {path: /var/lib/a, source: /a, type: §fuse}
    slurm_worker_scratch: §/tmp
""",
    ),
)
inventory(
    {
        "Meaning: mount that is exported already": "gpu01 has /srv/a already, from gpu05 of the group nfs_server",
        "Meaning: scratch in homes": "got /home/scratch, but /home has homes or shared files",
        "Meaning: scratch in a shared directory": "got /srv/a/b, but /srv/a has homes or shared files",
        "Meaning: NFS server that is a worker": "gpu05 is also in slurm_workers (use the head, a login node or another",
    },
    """\
all:
  vars:
    cluster_name: aurora
    nfs_server_exports: [{path: /srv/a}]
  children:
    slurm_head: {hosts: {head1: {ansible_host: 10.0.0.10}}}
    slurm_workers:
      hosts:
        gpu01: {ansible_host: 10.0.0.11, nfs_client_mounts: [{path: §/srv/a, source: "nas:/a"}]}
        gpu02: {ansible_host: 10.0.0.12, slurm_worker_scratch: §/home/scratch}
        gpu03: {ansible_host: 10.0.0.13, slurm_worker_scratch: §/srv/a/b}
        §gpu05: {ansible_host: 10.0.0.15}
    nfs_server: {hosts: {gpu05: {}}}
""",
)
inventory(
    {
        "Meaning: two NFS servers": "has files1, files2, expected one host",
        "Meaning: NFS server without Slurm": "files1 would serve Slurm, but there is no group slurm_head",
    },
    """\
§all:
  vars: {cluster_name: aurora}
  children:
    kubernetes_head: {hosts: {head1: {ansible_host: 10.0.0.10}}}
    kubernetes_workers: {hosts: {gpu01: {ansible_host: 10.0.0.11}}}
    nfs_server: {hosts: {§files1: {ansible_host: 10.0.0.12}, files2: {ansible_host: 10.0.0.13}}}
""",
)
inventory(
    {
        "Meaning: directory without TLS": 'got "http://ldap.example.org", expected a server such as ldaps://ldap1',
        "Meaning: directory with a password in its URL": "expected a server such as ldaps://ldap1",
        "Meaning: group of the directory with a blank": 'got "gpu users", expected a name of letters, digits',
        "Meaning: group of the directory that a local one hides": "vision is a local group, which hides one of the",
        "Meaning: account of Slurm with a blank": 'got "all users", expected a name of letters, digits',
        "Meaning: home that the directory chooses": 'got "%o", expected a path such as /home/%u',
        "Meaning: range of IDs without one": "999 is below sssd_lowest_id, 1000, so that all entries",
        "Meaning: IDs from SIDs without Active Directory": "computes IDs from SIDs, which only sssd_schema: ad has",
        "Meaning: account without a UID": "missing, expected a UID; only state: absent for a person of the directory",
        "Meaning: setting of a person who left": "has no effect for a person of the directory",
    },
    """\
all:
  vars:
    cluster_name: aurora
    sssd_uris: [§"http://ldap.example.org", §"ldaps://eve:secret@ldap.example.org"]
    sssd_base: dc=example,dc=org
    sssd_login_groups: [§gpu users, §vision]
    sssd_slurm_accounts: {staff: §all users}
    sssd_home_pattern: §"%o"
    sssd_highest_id: §999
    sssd_id_mapping: §true
    users_groups: [{name: vision, gid: 9000}]
    users_accounts:
      - {name: §ada}
      - {name: eve, state: absent, shell: §/bin/sh}
  children:
    slurm_head: {hosts: {head1: {ansible_host: 10.0.0.10}}}
    slurm_workers: {hosts: {gpu01: {ansible_host: 10.0.0.11}}}
    sssd: {children: {slurm_head: {}, slurm_workers: {}}}
""",
)
inventory(
    {
        "Meaning: directory that some hosts of Slurm lack": "lacks gpu01, where jobs and logins of its people",
        "Meaning: directory that would admit everybody": "needed by the group sssd (sssd_login_groups: [gpu-users])",
    },
    """\
§all:
  vars: {cluster_name: aurora, sssd_uris: ["ldaps://ldap.example.org"], sssd_base: "dc=example,dc=org"}
  children:
    slurm_head: {hosts: {§head1: {ansible_host: 10.0.0.10}}}
    slurm_workers: {hosts: {gpu01: {ansible_host: 10.0.0.11}}}
    sssd: {children: {slurm_head: {}}}
""",
)
inventory(
    {"Meaning: REST API on a worker": "gpu01 is not in slurm_head, and only a head can serve Slurm's REST API"},
    good("gpu01: {ansible", "§gpu01: {ansible").replace(
        "    monitoring:", "    slurmrestd: {hosts: {gpu01: {}}}\n    monitoring:"
    ),
)
inventory(
    {"Meaning: driver and CUDA that do not fit": "CUDA 13.0 needs driver 580.65.06 or newer, got 570 for gpu01"},
    good(
        "gpu01: {ansible_host: 10.0.0.11, ansible_port: 2222}",
        'gpu01: {nvidia_driver_branch: "570", nvidia_cuda_toolkits: ["12.8", §"13.0"]}',
    ),
)
inventory(
    {
        "Meaning: MIG layout that fits on no GPU": 'got "3g.40gb,3g.40gb,1g.10gb", expected profiles that fit on a GPU',
        "Meaning: MIG layout of one GPU that is none": 'got "3g", expected profiles that fit on a GPU',
        "Meaning: GPU by another name than its index": 'bad key, got "a100", expected a GPU\'s index such as 0',
        "Meaning: power limit without a number": 'got "much", expected watts such as 300, or per cent',
        "Meaning: clocks the wrong way round": 'got "1410,210", expected MHz such as 1410, or a lowest and a highest',
    },
    good(
        "    monitoring:\n",
        "    gpu_config:\n      hosts:\n        gpu01:\n"
        '          gpu_config_mig: §"3g.40gb,3g.40gb,1g.10gb"\n'
        '          gpu_config_mig_gpus: {"0": §"3g", §a100: none}\n'
        "          gpu_config_power_limit: §much\n"
        '          gpu_config_graphics_clock: §"1410,210"\n    monitoring:\n',
    ),
)
inventory(
    {"Meaning: a prolog beside MPS": "slurm_head_conf_extra: prolog replaces what slurm_head_mps needs"},
    good(USER, f"{USER}    slurm_head_mps: 100\n    slurm_head_conf_extra: {{prolog: §/etc/slurm/own}}\n"),
)
inventory(
    {
        "Meaning: MIG beside MPS": "gpu_config_mig: gpu01 has slurm_head_mps, expected no MIG",
        "Meaning: one divided GPU beside MPS": "gpu_config_mig: gpu01 has slurm_head_mps, expected no MIG",
        "Meaning: a compute mode beside MPS": "is exclusive_process on gpu01, where MPS needs",
        "Meaning: shards beside MPS": "slurm_head_shards: gpu01 has slurm_head_mps too, expected one of them",
    },
    good(
        "    monitoring:\n",
        "    gpu_config:\n      hosts:\n        gpu01:\n          slurm_head_mps: 100\n"
        "          gpu_config_mig: §7g.80gb\n"
        '          gpu_config_mig_gpus: {"0": none, "1": §7g.80gb}\n'
        "          gpu_config_compute_mode: §exclusive_process\n          slurm_head_shards: §2\n    monitoring:\n",
    ),
)
inventory(
    {
        "Meaning: time of a check that is no number": 'gpu_health_timeouts.driver: wrong type, got "abc", expected',
        "Meaning: time of a check that Slurm does not give": "timeouts.ecc: bad value, got 90, expected 1 to 15",
        "Meaning: time of a check that is none": 'unknown key "nvlnk" (did you mean nvlink?)',
        "Meaning: check of the site that is empty": 'gpu_health_commands.scratch: bad value, got "", expected a shell',
        "Meaning: check of the site that is no text": "gpu_health_commands.disk: wrong type, got a list, expected text",
    },
    good(
        "gpu01: {ansible_host: 10.0.0.11, ansible_port: 2222}",
        "gpu01: {gpu_health_timeouts: {driver: §abc, ecc: §90, §nvlnk: 5}, "
        'gpu_health_commands: {scratch: §"", disk: §[df]}}',
    ),
)
inventory(
    {"Meaning: settings of GPUs out of their group": "gpu01 is not in the group gpu_config"},
    good(
        "gpu01: {ansible_host: 10.0.0.11, ansible_port: 2222}",
        "gpu01: {gpu_config_power_limit: §85%}",
    ),
)
inventory(
    {"Structure: no name": "all.vars.cluster_name: missing, expected a value"},
    "§" + good("    cluster_name: aurora\n", ""),
)
for _line, _text, _said in (
    (
        "no head and no workers",
        "§all: {vars: {cluster_name: a}}",
        "no head and no workers (known groups: package_cache, gpu_config, nfs_server, slurm_head",
    ),
    ("no head", "§all: {children: {slurm_workers: {hosts: {gpu01: }}}}", "no head, expected one host"),
    ("no workers", "§all: {children: {slurm_head: {hosts: {head1: }}}}", "no workers, expected at least one host"),
    (
        "pages of an engine without a login",
        good("    cluster_name: aurora\n", "    cluster_name: aurora\n    elasticsearch_version: §7.10.2\n").replace(
            "    slurm_head:", "    logging: {hosts: {head1: }}\n    slurm_head:", 1
        ),
        "7.10.2 has no login for kibana_enabled (set kibana_enabled: false)",
    ),
    (
        "two package caches",
        "§" + good("    slurm_head:", "    package_cache: {hosts: {head1: , gpu01: }}\n    slurm_head:"),
        "has head1, gpu01, expected one host",
    ),
    ("all is a list", "all: §[a]\n", "got a list, expected a mapping"),
    ("too many hosts", good("gpu[02:04]", "§gpu[1:999999]"), "too many hosts, expected at most 5000"),
    ("ranges of ranges", good("gpu[02:04]", "§n[1:9999][1:9999][1:9999]"), "too many hosts, expected at most 5000"),
):
    inventory({f"Structure: {_line}": _said}, _text)

TWO_HEADS = """\
all:
  vars: {cluster_name: aurora%s}
  children:
    slurm_head:
      hosts:
        head1: {ansible_host: 10.0.0.10, slurm_head_state_directory: /shared/slurm}
%s
    slurm_workers: {hosts: {gpu01: {ansible_host: 10.0.0.11}}}
"""
HEAD2 = "        head2: {ansible_host: 10.0.0.9, slurm_head_state_directory: %s}"
inventory(
    {"Structure: three heads": "more than two heads, got head1, head2, head3"},
    TWO_HEADS % ("", HEAD2 % "/shared/slurm" + "\n        §head3: {ansible_host: 10.0.0.8}"),
)
inventory(
    {"Structure: heads with two directories": "differs between the heads, got '/shared/slurm' and '/shared/other'"},
    TWO_HEADS % ("", HEAD2 % "§/shared/other"),
)
inventory(
    {"Structure: heads with two databases": "slurm_head_database_host: differs between the heads, got '' and 'db1'"},
    TWO_HEADS % ("", HEAD2 % "/shared/slurm, slurm_head_database_host: §db1"),
)
inventory(
    {"Structure: heads with the state elsewhere": "two heads have their own StateSaveLocation"},
    TWO_HEADS % (", slurm_head_conf_extra: {§StateSaveLocation: /srv}", HEAD2 % "/shared/slurm"),
)
for _path, _said in {
    "/var/lib/slurm/state": "belongs to the head itself",
    "/home/slurm": "belongs to the head itself",
    "shared/slurm": 'bad path, got "shared/slurm"',
    "/shared/../etc": 'bad path, got "/shared/../etc"',
    '"/shared/{{ x }}"': "slurm_head_state_directory",
}.items():
    inventory(
        {f"Structure: a state directory such as {_path}": _said},
        (TWO_HEADS % ("", "")).replace(": /shared/slurm", f": §{_path}"),
    )

together(
    "Structure",
    [
        (f"bad host name or range, {_name}", "§" + _name, _said)
        for _name, _said in {
            "GPU05": "(write gpu05)",
            "GPU[05:06]": "(write gpu[05:06])",
            "gpu_05": "bad host name",
            "-gpu": "bad host name",
            "gpu-": "bad host name",
            "gpu05.example.com": "(write gpu05: {ansible_host: gpu05.example.com})",
            "10.0.0.5": "(name the host and give its address",
            "localhost": "bad host name",
            "default": "bad host name",
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
            "010": "got 010, which YAML reads as 8 as a key",
            "no": "got no, which YAML reads as false as a key",
            "22:30": "got 22:30, which YAML reads as 1350 as a key",
            "1.e+3": "got 1.e+3, which YAML reads as 1000.0 as a key",
        }.items()
    ],
    "        %s: {}\n",
    GPU01,
)

VARIABLE = "        n%d:\n          %s\n"

together(
    "Structure",
    [
        ("unknown variable", "§prometheus_prot: 9090", "(did you mean prometheus_port?)"),
        ("unknown variable without its prefix", "§timezone: UTC", "(did you mean cluster_timezone?)"),
        ("unknown time zone", "cluster_timezone: §Europe/Berln", "(did you mean Europe/Berlin?)"),
        ("a file that is no time zone", "cluster_timezone: §../../etc/passwd", "no time zone"),
        ("unknown option of slurm.conf", "slurm_head_conf_extra: {§slurmdtimeot: 5}", "(did you mean SlurmdTimeout?)"),
        ("unknown option of slurmdbd.conf", "slurm_head_dbd_conf_extra: {§PurgeJobAftr: 5}", "PurgeJobAfter?"),
        ("unknown option of a partition", "slurm_head_partitions: [{name: a, options: {§Maxtme: 5}}]", "MaxTime?"),
        (
            "another source of Slurm without its release",
            "slurm_head_source: §schedmd",
            "needs slurm_head_version for",
        ),
        (
            "a repository of Slurm without its release",
            f'slurm_head_repository: §{{url: "http://x/", key: "http://x/k", fingerprint: {"A" * 40}}}',
            "needs slurm_head_version",
        ),
        (
            "a repository of Slurm without its key's fingerprint",
            'slurm_head_repository: §{url: "http://x/", key: "http://x/k"}',
            'slurm_head_repository: incomplete, expected the key "fingerprint" in it',
        ),
        ("mail without an address", "alertmanager_receivers: [§{type: mail}]", 'expected the key "to" in it'),
        ("a webhook without an address", "alertmanager_receivers: [§{type: webhook}]", 'expected the key "url" in it'),
        (
            "an option of another receiver",
            "alertmanager_receivers: [{type: slack, to: §[ops@example.org]}]",
            "has no effect for slack, expected only for mail",
        ),
        (
            "mail without a server",
            "alertmanager_receivers: [§{type: mail, to: [ops@example.org]}]",
            "alertmanager_receivers[0]: needs alertmanager_mail",
        ),
        ("a mail server alone", 'alertmanager_mail: §{server: "m:25"}', 'expected the key "from" in it'),
        (
            "a release of Prometheus without its hash",
            "prometheus_release: §{version: 3.5.0}",
            'prometheus_release: incomplete, expected the key "sha256" in it',
        ),
        ("a share of the disk that fills it", "prometheus_retention_size: §95%", "or a share from 1% to 80%"),
        ("a size without a unit", 'prometheus_retention_size: §"20"', "expected a size such as 20GB, or a share"),
        ("remote write to nowhere", "prometheus_remote_write: §{user: a}", 'expected the key "url" in it'),
        ("remote write to a name", "prometheus_remote_write: {url: §metrics.example.org}", "expected a URL of https"),
        (
            "a password for remote write without TLS",
            'prometheus_remote_write: {user: a, url: §"http://metrics.example.org/write"}',
            "prometheus_remote_write.url: sends a login, expected a URL of https",
        ),
        (
            "two logins for remote write",
            'prometheus_remote_write: {url: "https://m.example.org/", user: a, token: §true}',
            "has no effect beside user",
        ),
        (
            "a certificate of a provider by an absolute path",
            "kubernetes_head_oidc: {issuer: https://id.example, client: k8s, certificate: §/etc/x.pem}",
            "kubernetes_head_oidc.certificate: the file",
        ),
        (
            "an authority of remote write that is none",
            'prometheus_remote_write: {url: "https://m.example.org/", authority: §missing.pem}',
            "prometheus_remote_write.authority: the file",
        ),
        (
            "a size of no block",
            "slurm_head_topology: {blocks: [{name: a, nodes: [slurm_workers]}], block_sizes: [§0]}",
            "got 0, expected 1 to 65536",
        ),
        (
            "a block without nodes",
            "slurm_head_topology: {blocks: [§{name: a}], block_sizes: [1]}",
            'expected the key "nodes" in it',
        ),
        (
            "a name of a switch for two",
            'slurm_head_topology: {switches: [{name: §"s[0-1]", nodes: [slurm_workers]}]}',
            "expected a name of letters",
        ),
        ("sleep after a moment", "slurm_head_sleep_after: §5", "got 5, expected 0, or 60 to 31536000"),
        ("a program of the site by name", "slurm_head_power_command: §switch", "expected an absolute path"),
        ("no MAC address", "slurm_head_power_mac: §80-00-02-08-fe-80", "expected six bytes"),
        ("no time to resume", "slurm_head_resume_timeout: §0", "got 0, expected 10 to 65533"),
        ("too many shards", "slurm_head_shards: §65", "got 65, expected 0 to 64"),
        ("MPS for a whole GPU", "slurm_head_mps: §1", "got 1, expected 0, or 2 to 100"),
        ("no time limit", "slurm_head_partitions: [{name: a, options: {MaxTime: §99x}}]", 'got "99x", expected a time'),
        ("no time limit at all", "slurm_head_partitions: [{name: a, options: {maxtime: §}}]", "got nothing, expected"),
        ("no default time", "slurm_head_default_time: §1x", 'got "1x", expected a time limit'),
        ("a name twice", "users_accounts: [{name: a, uid: 5001}, {name: §a, uid: 5002}]", "duplicate name, got a"),
        ("a number twice", "users_accounts: [{name: a, uid: 5001}, {name: b, uid: §5001}]", "duplicate uid, got 5001"),
        ("jobs of one who stays", "users_accounts: [{name: a, uid: 5001, jobs: §cancel}]", "only with state: absent"),
        ("unknown variable of nobody", "§xyzzy: 1", 'unknown variable "xyzzy"'),
        ("trap 22:30", "cluster_timezone: §22:30", "got 22:30, which YAML reads as 1350, expected text (write"),
        ("trap 010", "cluster_timezone: §010", "got 010, which YAML reads as 8, expected text"),
        ("trap no", "cluster_timezone: §no", "got no, which YAML reads as false, expected text"),
        ("trap 1e3", "prometheus_port: §1e3", 'got "1e3", expected a whole number'),
        ("trap 1.e+3", "cluster_timezone: §1.e+3", "got 1.e+3, which YAML reads as 1000.0, expected text"),
        ("trap 0o17", "prometheus_port: §0o17", 'got "0o17", expected a whole number'),
        ("trap 022", "prometheus_port: §022", "got 022, which YAML reads as 18, expected a whole number"),
        ("trap 2026-01-01", "cluster_timezone: §2026-01-01", "got 2026-01-01, expected text"),
        ("trap 22:30 in options", "slurm_head_conf_extra: {MessageTimeout: §22:30}", "which YAML reads as 1350"),
        ("trap no in options", "slurm_head_conf_extra: {DisableRootJobs: [§no]}", "which YAML reads as false"),
        ("trap 1 as a key", "slurm_head_conf_extra: {§1: a}", "got 1 as a key"),
        ("trap on", "users_groups: [{name: §on, gid: 5000}]", "got on, which YAML reads as true"),
        ("a number in quotes", 'prometheus_port: §"22"', "expected a whole number (write it without quotes)"),
        ("a switch in quotes", 'ansible_become: §"yes"', 'got "yes", expected true or false'),
        ("true for a number", "prometheus_port: §true", "got true, expected a whole number"),
        ("nothing", "cluster_timezone:§", "got nothing, expected text (delete the line to use the default)"),
        ("a list for a text", "cluster_timezone: §[UTC]", "got a list, expected text"),
        ("a text for a list", "cluster_networks: §10.0.0.0/8", "expected a list (write [10.0.0.0/8])"),
        ("a mapping for a list", "users_accounts: §{name: ada}", "got a mapping, expected a list"),
        ("a text for a mapping", "users_accounts: [§ada]", 'got "ada", expected a mapping'),
        ("a mapping for a path", "ansible_ssh_private_key_file: §{a: b}", "got a mapping, expected text"),
        ("an incomplete mapping", "users_accounts: [{name: §ada}]", "missing, expected a UID"),
        ("an unknown key", "users_accounts: [{name: ada, uid: 5001, §shel: a}]", "(did you mean shell?)"),
        ("an unknown choice", "users_accounts: [{name: a, uid: 5001, state: §absen}]", "(did you mean absent?)"),
        ("an unknown choice in a list", "gpu_health_skip: [ecc, §xids]", "(did you mean xid?)"),
        ("a port too high", "prometheus_port: §65536", "got 65536, expected 1 to 65535"),
        ("a port too low", "prometheus_port: §0", "got 0, expected 1 to 65535"),
        ("an interval of nothing", "slurm_exporter_interval: §0", "got 0, expected 1 to 2147483647"),
        ("memory below nothing", "slurm_head_database_buffer_pool_mb: §-1", "got -1, expected 1 to 2147483647"),
        ("a negative port", "ansible_port: §-1", "got -1, expected 1 to 65535"),
        ("a host's address as a network", "cluster_networks: [§10.0.0.1/24]", "expected a network such as"),
        ("an address as a network", "cluster_networks: [§10.0.0.1]", "expected a network such as"),
        ("a domain with nothing in it", "cluster_domain: §a..b", "expected a DNS domain"),
        ("an uid of the system", "users_accounts: [{name: ada, uid: §0}]", "expected 500 to 2147483647"),
        ("a user of the system", "users_accounts: [{name: §root, uid: 5001}]", "and not a system account"),
        ("a user of ours", "users_accounts: [{name: §slurm, uid: 5001}]", "and not a system account"),
        ("an address of four hundred", "ansible_host: §10.0.0.400", "expected an IP address or a host name"),
        ("half an address", "ansible_host: §10.0.0", "expected an IP address or a host name"),
        ("a number as an address", "ansible_host: §7", "got 7, expected text"),
        ("no address", "ansible_host: §null", "got nothing, expected text"),
        ("an empty address", "ansible_host: §''", "expected an IP address or a host name"),
        ("an address with its network", "ansible_host: §1.2.3.4/24", "expected an IP address or a host name"),
        ("an address with its port", "ansible_host: §x:22", "expected an IP address or a host name"),
        ("an address with its zone", "ansible_host: §fe80::1%eth0", "expected an IP address or a host name"),
        ("a list as an address", "ansible_host: §[a]", "got a list, expected text"),
        ("a relative key file", "ansible_ssh_private_key_file: §id", "expected a path that starts with / or ~/"),
        ("a key file that is not there", "ansible_ssh_private_key_file: §/no/such", "cannot be read: No such file"),
        ("a key file of a stranger", "ansible_ssh_private_key_file: §~nobody7/x", "expected a path that starts"),
        ("a fingerprint that is none", "cluster_host_key: §SHA256:x", "expected SHA256: and 43 characters"),
        ("an old name of a variable", "§ansible_ssh_user: root", "(did you mean ansible_user?)"),
        ("an address for a name", "base_extra_hosts: {www: §nowhere}", "expected an IP address"),
    ],
    VARIABLE,
    GPU01,
)

# Another inventory: a run reports at most 100 problems of one.
together(
    "Structure",
    [
        (
            "unknown option of an account",
            "slurm_head_accounts: [{name: a, options: {§GrpTRS: cpu=1}}]",
            "mean GrpTRES?)",
        ),
        (
            "unknown option of a QOS",
            "slurm_head_qos: [{name: a, options: {§Fairshare: 5}}]",
            "unknown option of sacctmgr",
        ),
        (
            "unknown option of a user",
            "users_accounts: [{name: a, uid: 5001, slurm_options: {§MaxJob: 5}}]",
            "MaxJobs?)",
        ),
        ("unknown key of an account", "slurm_head_accounts: [{name: a, §option: {}}]", "(did you mean options?)"),
        ("no limit of jobs", "slurm_head_accounts: [{name: a, options: {MaxJobs: §many}}]", "expected a whole number"),
        ("a negative limit", "slurm_head_accounts: [{name: a, options: {MaxJobs: §-1}}]", "a whole number from 0"),
        (
            "a limit above 32 bits",
            "slurm_head_accounts: [{name: a, options: {MaxJobs: §4294967296}}]",
            "a whole number",
        ),
        ("infinite memory", "slurm_head_accounts: [{name: a, options: {GrpTRES: §{mem: infG}}}]", "expected resources"),
        ("a list of one name", "slurm_head_accounts: [{name: a, options: {DefaultQOS: §[normal]}}]", "expected a name"),
        ("no resources", "slurm_head_accounts: [{name: a, options: {GrpTRES: §8}}]", "expected resources such as"),
        (
            "no amount",
            "slurm_head_accounts: [{name: a, options: {GrpTRES: §{gres/gpu: all}}}]",
            "expected resources such",
        ),
        (
            "no resource",
            'slurm_head_accounts: [{name: a, options: {GrpTRES: §{"cpu=1,mem": 4}}}]',
            "expected resources",
        ),
        ("no share", "users_accounts: [{name: a, uid: 5001, slurm_options: {Fairshare: §none}}]", "from 0, or parent"),
        ("no flag", "slurm_head_qos: [{name: a, options: {Flags: §[DenyOnLimits]}}]", "expected flags of sacctmgr"),
        ("no mode", "slurm_head_qos: [{name: a, options: {PreemptMode: §kill}}]", "expected cancel, requeue"),
        ("no factor", "slurm_head_qos: [{name: a, options: {UsageFactor: §half}}]", "expected a number"),
        ("no grace", "slurm_head_qos: [{name: a, options: {GraceTime: §1m}}]", "expected seconds, or"),
        ("a time that YAML reads as a number", "slurm_head_qos: [{name: a, options: {MaxWall: §22:30}}]", "22:30"),
    ],
    VARIABLE,
    GPU01,
)

# Another one: a reservation.
together(
    "Structure",
    [
        (
            "unknown option of a reservation",
            "slurm_head_reservations: [{name: a, options: {§NodeCount: 1}}]",
            "(did you mean NodeCnt?)",
        ),
        (
            "a relative time",
            "slurm_head_reservations: [{name: a, options: {StartTime: §now+1hour}}]",
            "expected a quoted local time of the head",
        ),
        (
            "a time that is no date",
            "slurm_head_reservations: [{name: a, options: {StartTime: §'2027-02-30T08:00'}}]",
            "expected a quoted local time of the head",
        ),
        (
            "a time that YAML reads as a date",
            "slurm_head_reservations: [{name: a, options: {StartTime: §2027-03-01T08:00:00}}]",
            "expected a quoted local time",
        ),
        (
            "no length of time",
            "slurm_head_reservations: [{name: a, options: {Duration: §UNLIMITED}}]",
            "expected minutes, or a quoted time",
        ),
        (
            "a user who is removed",
            "slurm_head_reservations: [{name: a, options: {Users: §[-ada]}}]",
            "expected a list of names",
        ),
        (
            "nodes in Slurm's notation",
            "slurm_head_reservations: [{name: a, options: {Nodes: §'gpu[01-02]'}}]",
            "expected a list of workers and of sub-groups",
        ),
        (
            "no count of nodes",
            "slurm_head_reservations: [{name: a, options: {NodeCnt: §0}}]",
            "expected a whole number from 1",
        ),
        (
            "no flag of a reservation",
            "slurm_head_reservations: [{name: a, options: {Flags: §[TIME_FLOAT]}}]",
            "expected flags of scontrol(1)",
        ),
        (
            "no resource of a reservation",
            "slurm_head_reservations: [{name: a, options: {TRES: §{node: 1}}}]",
            "expected resources such as {cpu: 64}",
        ),
        (
            "no delay",
            "slurm_head_reservations: [{name: a, options: {MaxStartDelay: §1m}}]",
            "expected minutes, or a quoted time such as '00:10:00'",
        ),
        (
            "features with a blank",
            "slurm_head_reservations: [{name: a, options: {Features: §'a100 b'}}]",
            "expected features such as a100&nvlink",
        ),
        ("a reservation without options", "slurm_head_reservations: [§{name: a}]", 'expected the key "options"'),
    ],
    VARIABLE,
    GPU01,
)

# --- Hostile --------------------------------------------------------------------------------------------------------

PIPE = "{{ lookup('pipe', '" + RUN + "') }}"

together(
    "Hostile",
    [
        *(
            (f"Jinja in {_name}", f'{_name}: §"{PIPE}"', "got a template")
            for _name in (
                "ansible_host",
                "ansible_port",
                "ansible_user",
                "ansible_ssh_private_key_file",
                "ansible_become",
                "cluster_address",
                "cluster_jump_host",
                "cluster_host_key",
            )
        ),
        ("Jinja in a variable of a role", f'prometheus_package: §"{PIPE}"', "got a template"),
        ("Jinja in a mapping", f'base_sysctl: {{a.b: §"{PIPE}"}}', "got a template"),
        ("Jinja in a key", f'base_sysctl: {{§"{PIPE}": 1}}', "got a template"),
        ("Jinja in a list", f'base_packages: [§"{PIPE}"]', "got a template"),
        ("a statement of Jinja", "cluster_domain: §'{% set x = 1 %}'", "got a template"),
        ("a comment of Jinja", "cluster_domain: §'{# x #}'", "got a template"),
        ("another sign for Jinja", "cluster_domain: §'#jinja2: variable_start_string: x'", "got a template"),
        ("ansible_connection", "§ansible_connection: local", "not allowed here"),
        ("ansible_ssh_common_args", f'§ansible_ssh_common_args: "-o ProxyCommand={RUN}"', "not allowed here"),
        ("ansible_ssh_extra_args", f'§ansible_ssh_extra_args: "-o ProxyCommand={RUN}"', "not allowed here"),
        ("ansible_ssh_executable", f"§ansible_ssh_executable: {RUN}", "not allowed here"),
        ("ansible_python_interpreter", f"§ansible_python_interpreter: {RUN}", "not allowed here"),
        ("ansible_become_exe", f"§ansible_become_exe: {RUN}", "not allowed here"),
        ("ansible_shell_type", "§ansible_shell_type: powershell", "not allowed here"),
        ("- before an address", "ansible_host: §-oProxyCommand=id", "expected an IP address or a host name"),
        ("- before an address inside", "cluster_address: §-oProxyCommand=id", "expected an IP address"),
        ("- before a user", "ansible_user: §-oProxyCommand=id", "expected a user name"),
        ("$(…) in an address", f"ansible_host: §$({RUN})", "expected an IP address or a host name"),
        ("a blank in an address", "ansible_host: §a b", "expected an IP address or a host name"),
        ("; in an address", f"ansible_host: §a;{RUN}", "expected an IP address or a host name"),
        ("$(…) in a user", f"ansible_user: §$({RUN})", "expected a user name"),
        ("$(…) in a domain", f"cluster_domain: §$({RUN})", "expected a DNS domain"),
        ("$(…) in a proxy", f"cluster_http_proxy: §http://p:1/$({RUN})", "expected a URL"),
        ("$(…) in an account", f'users_accounts: [{{name: §"$({RUN})", uid: 5001}}]', "up to 32 of a-z"),
        ("$(…) in a group of users", f'users_groups: [{{name: §"$({RUN})", gid: 5001}}]', "up to 32 of a-z"),
        ("$(…) in a partition", f'slurm_head_partitions: [{{name: §"$({RUN})"}}]', "expected a name of letters"),
        ("$(…) in an option", f'slurm_head_conf_extra: {{§"$({RUN})": 1}}', "bad name, got"),
        ("$(…) in a package", f"base_packages: [§$({RUN})]", "expected a name of letters"),
        ("$(…) in a name of DNS", f'base_extra_hosts: {{§"$({RUN})": 10.0.0.1}}', "bad name, got"),
        ("$(…) in a database's name", f"slurm_head_database_name: §$({RUN})", "expected a name of letters"),
        ("a back quote in a database's name", f"slurm_head_database_name: §a`{RUN}`", "expected a name of letters"),
        ("a quote in a database's user", "slurm_head_database_user: §a'b", "expected a name of letters"),
        ("$(…) in Slurm's account", f'slurm_head_accounts: [{{name: §"$({RUN})"}}]', "expected a name of letters"),
        ("a comma in a parent", 'slurm_head_accounts: [{name: a, parent: §"root,b"}]', "expected a name of letters"),
        ("a comma in a reservation", 'slurm_head_reservations: [{name: §"a,b", options: {}}]', "expected a name of"),
        (
            "$(…) in a reservation's user",
            'slurm_head_reservations: [{name: a, options: {Users: §"$(id)"}}]',
            "of names",
        ),
        ("an equals sign in a QOS", 'slurm_head_qos: [{name: §"a=b"}]', "expected a name of letters"),
        (
            "a newline in a description",
            'slurm_head_accounts: [{name: a, description: §"a\\nb"}]',
            "a line break or tab",
        ),
        ("a newline in an account", 'users_accounts: [{name: §"a\\nb", uid: 5001}]', "a line break or tab"),
        ("a newline in a partition", 'slurm_head_partitions: [{name: §"a\\nNodes=ALL"}]', "a line break or tab"),
        ("a newline in an option", 'slurm_head_conf_extra: {§"A\\nB": 1}', "a line break or tab"),
        ("a newline in an option's value", 'slurm_head_conf_extra: {A: §"1\\nB=2"}', "a line break or tab"),
        ("a newline in a user", 'ansible_user: §"a\\nb"', "a line break or tab"),
        ("Slurm's word for all partitions", 'slurm_head_partitions: [{name: §"DEFAULT"}]', "and not default"),
        ("$(…) in a type of GPU", f'slurm_head_partitions: [{{name: a, gpu: §"$({RUN})"}}]', "a type of GPU such as"),
        ("a comma in a type of GPU", 'slurm_head_partitions: [{name: a, gpu: [§"a,b"]}]', "a type of GPU such as"),
        ("a blank in a partition", 'slurm_head_partitions: [{name: §"main Nodes=ALL"}]', "expected a name"),
        ("sudo in an account", 'users_accounts: [{name: §"x ALL=(ALL) ALL #", uid: 5001}]', "up to 32 of a-z"),
        ("a command in a shell", 'users_accounts: [{name: a, uid: 5001, shell: §"/bin/sh; id"}]', "an absolute path"),
        ("a command in a key", 'users_accounts: [{name: a, uid: 5001, ssh_keys: [§"command=id x"]}]', "a public key"),
        ("a colon in a comment", 'users_accounts: [{name: a, uid: 5001, comment: §"a:0"}]', "text without colon"),
        ("a unit's option in a path", 'node_exporter_textfile_directory: §"/t ExecStart=/x"', "an absolute path"),
        ("../ in a path", "prometheus_data_directory: §/var/../etc/", "expected an absolute path"),
        ("../ in a time zone", "cluster_timezone: §Europe/../../etc/passwd", "expected a time zone"),
        ("a line of apt in a mirror", 'cluster_package_mirrors: {debian: §"http://m/d Trusted: yes"}', "a URL"),
        ("a hook of apt in a proxy", "cluster_package_proxy: §'http://p/\"; DPkg::Pre-Invoke'", "expected a URL"),
        ("a file as a mirror", "cluster_package_mirrors: {debian: §'file:///etc'}", "expected a URL"),
        ("a zone in a network", "cluster_networks: [§'fe80::%x/64']", "expected a network"),
        ("a comment in an age", "base_journal_max_age: §'90day #'", "a number with its unit"),
        ("a sign of YAML in a user", "prometheus_user: §'a: b'", "expected a name of letters"),
        ("a sign of YAML in Alertmanager's user", "alertmanager_user: §'@ops'", "expected a name of letters"),
        ("a colon in the user of the landing page", "landing_page_user: §'a:b'", "expected a name of letters"),
        ("an alias", "base_locale: §*x", "got an alias"),
        ("a tag", f"base_locale: §!!python/object/apply:os.system ['{RUN}']", "got a YAML tag"),
        (
            "a terminal escape in a variable",
            'base_locale: §"\\e]0;x\\a"',
            "got the character \\x1b, expected printable text",
        ),
        ("a blank that nobody sees", 'base_locale: §"C\u200b.UTF-8"', "got the character \\u200b"),
        ("a terminal escape in a key", '§"\\e[2J": 1', "got the character \\x1b, expected printable text"),
        ("a key file that is a device", "ansible_ssh_private_key_file: §/dev/zero", "is not a regular file"),
        (
            "a key file that all can read",
            "ansible_ssh_private_key_file: §/proc/version",
            "is accessible to others, got mode",
        ),
    ],
    VARIABLE,
    GPU01,
)
together(
    "Hostile",
    [
        ("a newline in a host's name", '§"gpu05\\nPartitionName=x"', "a line break"),
        ("$(…) in a host's name", f'§"$({RUN})"', "bad host name"),
        ("a command in a host's name", f"§'gpu05;{RUN}'", "bad host name"),
        ("../ in a host's name", "§../gpu05", "bad host name"),
        ("Jinja in a host's name", f'§"{PIPE}"', "a template"),
        ("a terminal escape in a host's name", '§"gpu\\e[2J"', "got the character \\x1b, expected printable text"),
    ],
    "        %s: {}\n",
    GPU01,
)
together(
    "Hostile",
    [
        ("capitals in a group's name", "§A-100", 'bad group name, got "A-100"'),
        ("a newline in a group's name", '§"a\\nb"', "a line break"),
        ("$(…) in a group's name", f'§"$({RUN})"', "bad group name"),
        ("../ in a group's name", "§../a", "bad group name"),
        ("a blank in a group's name", "§a b", "bad group name"),
        ("a group of Ansible's own", "§ungrouped", "a group name reserved by Ansible"),
        ("Jinja in a group's name", f'§"{PIPE}"', "a template"),
        ("a group's name too long", "§" + "a" * 64, "bad group name"),
    ],
    "        %s:\n",
    "      children:\n",
)
for _name in ("../aurora", '"a\\nb"', f"'$({RUN})'", f'"{PIPE}"'):
    inventory({f"Hostile: cluster named {_name}": "all.vars.cluster_name: "}, good("aurora", "§" + _name))

together(
    "Hostile",
    [
        ("key file that is a pipe", "ansible_ssh_private_key_file: §~/pipe", 'the file "~/pipe" is not a regular file'),
        ("key file that is a directory", "ansible_ssh_private_key_file: §~/x", 'the file "~/x" is a directory'),
        ("key file that its group can read", "ansible_ssh_private_key_file: §~/group", "got mode 0640, expected 0600"),
        ("key file that nobody can read", "ansible_ssh_private_key_file: §~/none", "cannot be read: Permission denied"),
    ],
    VARIABLE,
    GPU01,
    files={
        "home/pipe": os.mkfifo,
        "home/x": Path.mkdir,
        "home/group": with_mode(0o640, "a key"),
        "home/none": with_mode(0, "a key"),
    },
)
together(
    "Hostile",
    [
        ("certificate out of the directory", "§ca/link.pem", "is a link out of the cluster's directory"),
        ("certificate in a directory out of it", "§ca/etc/passwd", "is a link out of the cluster's directory"),
        ("certificate that is a pipe", "§ca/pipe.pem", "is not a regular file"),
        ("certificate that is a device", "§ca/zero.pem", "is a link out of the cluster's directory"),
        ("certificate that is a directory", "§ca", "is a directory, expected a file"),
        ("certificate that is not there", "§ca/none.pem", "cannot be read: No such file or directory"),
        ("certificate that is none", "§ca/der.pem", "holds no certificate in PEM form"),
        ("certificate with its private key", "§ca/key.pem", "holds a private key, which every user"),
        ("certificate by ../", "§../x.pem", "expected a file below the cluster's directory"),
        ("certificate by an absolute path", "§/etc/x.pem", "expected a file below the cluster's directory"),
    ],
    "      - %s\n",
    "      - ca/good.pem\n",
    good(USER, USER + "    cluster_ca_certificates:\n      - ca/good.pem\n"),
    files={
        "ca/good.pem": "-----BEGIN CERTIFICATE-----\n",
        "ca/link.pem": link("/etc/passwd"),
        "ca/etc": link("/etc"),
        "ca/pipe.pem": os.mkfifo,
        "ca/zero.pem": link("/dev/zero"),
        "ca/der.pem": b"\x30\x82",
        "ca/key.pem": "-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n",
    },
)

# --- Meaning --------------------------------------------------------------------------------------------------------

together(
    "Meaning",
    [
        (
            "a QOS of nobody",
            "slurm_head_accounts: [{name: a, options: {QOS: §[normal, urgent]}}]",
            "not in slurm_head_qos",
        ),
        ("a default QOS of nobody", "slurm_head_accounts: [{name: a, options: {DefaultQOS: §norml}}]", "mean normal?)"),
        ("a preempted QOS of nobody", "slurm_head_qos: [{name: a, options: {Preempt: §nobody}}]", "in slurm_head_qos"),
        ("a parent of nobody", "slurm_head_accounts: [{name: a, parent: §science}]", "is not in slurm_head_accounts"),
        ("an account twice", "slurm_head_accounts: [{name: §a}, {name: A}]", "Slurm does not distinguish case"),
        ("a parent of root", "slurm_head_accounts: [{name: root, parent: §a}, {name: a}]", "root has no parent"),
        (
            "a QOS that preempts itself",
            "slurm_head_qos: [{name: §a, options: {Preempt: a}}]",
            "preempted QOS of a form",
        ),
        (
            "preempted by each other",
            "slurm_head_qos: [{name: a, options: {preempt: [b]}}, {name: §b, options: {Preempt: a}}]",
            "preempted QOS of b form a circle",
        ),
        ("an option twice", "slurm_head_accounts: [{name: a, options: {MaxJobs: 1, §maxjobs: 2}}]", "is there twice"),
        ("a QOS twice", "slurm_head_qos: [{name: §low}, {name: low}]", "duplicate name, got low"),
        (
            "parents of each other",
            "slurm_head_accounts: [{name: §a, parent: b}, {name: b, parent: a}]",
            "of a form a circle",
        ),
        ("its own parent", "slurm_head_accounts: [{name: §a, parent: A}]", "of a form a circle"),
        (
            "no start",
            "slurm_head_reservations: [{name: a, options: §{Duration: 60, NodeCnt: 1, Users: ada}}]",
            "StartTime is missing",
        ),
        (
            "no end",
            "slurm_head_reservations: [{name: a, options: §{StartTime: '2027-03-01T08:00', NodeCnt: 1, Users: ada}}]",
            "EndTime or Duration is missing",
        ),
        (
            "an end and a duration",
            "slurm_head_reservations: [{name: a, options: §{StartTime: '2027-03-01T08:00', Duration: "
            "60, Users: ada, EndTime: '2027-03-01T09:00', NodeCnt: 1}}]",
            "got EndTime and Duration",
        ),
        (
            "an end before the start",
            "slurm_head_reservations: [{name: a, options: §{StartTime: '2027-03-01T08:00', EndTime: "
            "'2027-03-01T07:00', NodeCnt: 1, Users: ada}}]",
            "EndTime is not after",
        ),
        (
            "a reservation of nothing",
            "slurm_head_reservations: [{name: a, options: §{StartTime: '2027-03-01T08:00', Duration: 60, Users: ada}}]",
            "Nodes, NodeCnt or TRES is missing",
        ),
        (
            "nodes and their number",
            "slurm_head_reservations: [{name: a, options: §{StartTime: '2027-03-01T08:00', Duration: "
            "60, Users: ada, Nodes: gpu01, NodeCnt: 1}}]",
            "got Nodes and NodeCnt",
        ),
        (
            "a reservation for nobody",
            "slurm_head_reservations: [{name: a, options: §{StartTime: '2027-03-01T08:00', Duration: 60, NodeCnt: 1}}]",
            "Users or Accounts is missing",
        ),
        (
            "several recurrences",
            "slurm_head_reservations: [{name: a, options: §{StartTime: '2027-03-01T08:00', Duration: "
            "60, Users: ada, NodeCnt: 1, Flags: [DAILY, WEEKLY]}}]",
            "got several of the flags",
        ),
        (
            "nodes that are replaced",
            "slurm_head_reservations: [{name: a, options: §{StartTime: '2027-03-01T08:00', Duration: "
            "60, Users: ada, Nodes: gpu01, Flags: REPLACE}}]",
            "REPLACE and REPLACE_DOWN need NodeCnt",
        ),
        (
            "an option of a reservation twice",
            "slurm_head_reservations: [{name: a, options: {StartTime: '2027-03-01T08:00', Duration: "
            "60, Users: ada, NodeCnt: 1, §nodecnt: 1}}]",
            "is there twice",
        ),
        (
            "a reservation twice",
            "slurm_head_reservations: [{name: a, options: {StartTime: '2027-03-01T08:00', Duration: "
            "60, Users: ada, NodeCnt: 1}}, {name: §a, options: {StartTime: '2027-03-01T08:00', "
            "Duration: 60, Users: ada, NodeCnt: 1}}]",
            "duplicate name, got a",
        ),
        (
            "reserved nodes of nobody",
            "slurm_head_reservations: [{name: a, options: {StartTime: '2027-03-01T08:00', Duration: "
            "60, Users: ada, Nodes: §[gpu01, nix]}}]",
            "not a worker or a sub-group",
        ),
        (
            "a reserved head",
            "slurm_head_reservations: [{name: a, options: {StartTime: '2027-03-01T08:00', Duration: "
            "60, Users: ada, Nodes: §head1}}]",
            "not a worker or a sub-group",
        ),
        (
            "a reserved partition of nobody",
            "slurm_head_reservations: [{name: a, options: {StartTime: '2027-03-01T08:00', Duration: "
            "60, Users: ada, NodeCnt: 1, PartitionName: §mian}}]",
            "which is not in slurm_head_partitions",
        ),
        ("a worker that never sleeps and is none", "slurm_head_sleep_except: [§gpu1]", "(did you mean gpu01?)"),
        ("no number that stays on", 'slurm_head_sleep_except: [§"slurm_workers:x"]', "expected a number from 1"),
        ("a BMC without a user", "slurm_head_power_bmc: §10.9.0.1", "needs slurm_head_power_bmc_user for the head"),
        (
            "a topology of nothing",
            "slurm_head_topology: §{block_sizes: [1]}",
            "has neither switches nor blocks, expected either",
        ),
        (
            "a topology of both",
            "slurm_head_topology: §{switches: [{name: a, nodes: [gpu01]}], blocks: [{name: b, nodes: [gpu01]}]}",
            "has switches and blocks, expected either",
        ),
        (
            "blocks without sizes",
            "slurm_head_topology: §{blocks: [{name: a, nodes: [slurm_workers]}]}",
            "slurm_head_topology: needs block_sizes",
        ),
        (
            "switches with sizes",
            "slurm_head_topology: §{switches: [{name: a, nodes: [slurm_workers]}], block_sizes: [1]}",
            "block_sizes has no effect for switches",
        ),
        (
            "a size that no blocks add up to",
            "slurm_head_topology: {blocks: [{name: a, nodes: [slurm_workers]}], block_sizes: [2, §6]}",
            "got 6, expected 2 times a larger power",
        ),
        (
            "a worker in no switch",
            "slurm_head_topology: §{switches: [{name: a, nodes: [gpu01]}]}",
            "where Slurm would start no job",
        ),
        (
            "a worker in two switches",
            "slurm_head_topology: {switches: [{name: a, nodes: [slurm_workers]}, {name: b, nodes: [§gpu01]}]}",
            "gpu01 is in the switch a too, expected one switch",
        ),
        (
            "a worker in two blocks",
            "slurm_head_topology: {block_sizes: [1], blocks: [{name: a, nodes: [gpu01]}, {name: b, nodes: [§gpu01]}]}",
            "gpu01 is in the block a too",
        ),
        (
            "an unknown node of a switch",
            "slurm_head_topology: {switches: [{name: a, nodes: [slurm_workers, §gpu0l]}]}",
            "not a worker or a sub-group",
        ),
        (
            "the head in a switch",
            "slurm_head_topology: {switches: [{name: a, nodes: [slurm_workers, §head1]}]}",
            "not a worker or a sub-group",
        ),
        (
            "an unknown switch",
            "slurm_head_topology: {switches: [{name: a, nodes: [slurm_workers]}, {name: b, switches: [§aa]}]}",
            'no switch "aa"',
        ),
        (
            "a switch twice",
            "slurm_head_topology: {switches: [{name: a, nodes: [slurm_workers]}, {name: §a, nodes: [gpu01]}]}",
            "duplicate name, got a",
        ),
        (
            "nodes and switches of a switch",
            "slurm_head_topology: {switches: [{name: a, nodes: [gpu02]}, {name: §b, nodes: [gpu01], switches: [a]}]}",
            "b: expected either nodes or switches",
        ),
        (
            "a switch with neither",
            "slurm_head_topology: {switches: [{name: a, nodes: [slurm_workers]}, {name: §b}]}",
            "b: expected either nodes or switches",
        ),
        (
            "a switch below itself",
            "slurm_head_topology: {switches: [{name: a, nodes: [slurm_workers]}, {name: §b, switches: [a, b]}]}",
            "the switches of b form a circle",
        ),
        ("a partition of nobody", "slurm_head_partitions: [{name: a, nodes: [gpu01, §nix]}]", "not a worker or a sub"),
        ("a number as a type of GPU", "slurm_head_partitions: [{name: a, gpu: §100}]", "expected a type of GPU"),
        ("no type of GPU", "slurm_head_partitions: [{name: a, gpu: §}]", "got nothing, expected a type of GPU"),
        (
            "a mapping as a type of GPU",
            "slurm_head_partitions: [{name: a, gpu: [h100, §{b: 1}]}]",
            "or a list of types",
        ),
        ("a partition of a head", "slurm_head_partitions: [{name: a, nodes: [§head1]}]", "not a worker or a sub-group"),
        ("a partition of a typo", "slurm_head_partitions: [{name: a, nodes: [§a10]}]", "(did you mean a100?)"),
        ("plaintext password", f"§ansible_password: {CANARY}", "a password must not be in an inventory"),
        ("plaintext password by its old name", f"§ansible_ssh_pass: {CANARY}", "a password must not be"),
        ("plaintext password of sudo", f"§ansible_become_password: {CANARY}", "(log in with a key: ansible_ssh"),
        ("plaintext password of a database", f"§slurm_head_database_password: {CANARY}", "a password must not be"),
        ("password of a proxy", f"cluster_http_proxy: §http://me:{CANARY}@proxy:3128", "could read the password"),
        ("password of a cache", f"cluster_package_proxy: §https://me:{CANARY}@c/", 'got "https://[hidden]@c/"'),
        (
            "password of a mirror",
            f"cluster_package_mirrors: {{debian: §'http://{CANARY}@mirror/debian'}}",
            "expected a URL without user or password such as http://proxy.example.com:3128 (all users of the nodes",
        ),
        ("password in the wrong place", f"cluster_package_mirrors: §http://a:{CANARY}@m/", 'got "http://[hidden]@m/"'),
    ],
    VARIABLE,
    GPU01,
)

VAULT = {"CLUSTERCTL_VAULT_PASSWORD_FILE": "password"}
_vault: tuple[tuple[str, bytes, Make | None, str], ...] = (
    ("wrong", sealed("aurora-0123abcd"), with_mode(0o600, f"{CANARY}\n"), "cannot be decrypted with the password in "),
    ("missing", sealed("aurora-0123abcd"), None, "of secrets.yml (aurora-0123abcd) cannot be read: No such file"),
    ("readable by others", sealed("aurora-0123abcd"), with_mode(0o644, PASSWORD), "got mode 0644, expected 0600"),
    ("that is a program", sealed("aurora-0123abcd"), with_mode(0o700, RUN), "got mode 0700, expected 0600"),
    ("that is a pipe", sealed("aurora-0123abcd"), os.mkfifo, "is not a regular file"),
    (
        "weak",
        sealed("aurora-0123abcd", "weak"),
        with_mode(0o600, "weak"),
        "holds a weak vault password of secrets.yml",
    ),
    (
        "of another cluster",
        sealed("borealis-0123abcd"),
        with_mode(0o600, PASSWORD),
        'got "borealis-0123abcd", expected "aurora-"',
    ),
)
for _line, _secrets, _password, _said in _vault:
    _files: dict[str, Make] = {"inventory.yaml": GOOD, "secrets.yml": _secrets}
    if _password:
        _files["password"] = _password
    GIVEN.append(Given({f"Meaning: vault password {_line}": ("", _said)}, _files, environment=VAULT))

# --- Command line ---------------------------------------------------------------------------------------------------

WRONG = good("aurora", "Aurora")
NAMED = "all.vars.cluster_name: bad value"

command("Command line: no arguments", "Usage: ")
for _line, _said, *_words in (
    ("unknown verb boostrap", "Did you mean 'bootstrap'", "boostrap"),
    ("unknown verb stauts", "Did you mean 'status'", "stauts", "."),
    ("unknown verb int", "Did you mean 'init'", "int", "x"),
    ("unknown verb of the lab", "up", "lab", "upp"),
    ("unknown flag", "--limit", "bootstrap", ".", "--limt", "gpu01"),
    ("an argument too many", "gpu01", "bootstrap", ".", "gpu01"),
    ("--forks 0", "--forks", "bootstrap", ".", "--forks", "0"),
    ("--forks none", "--forks", "bootstrap", ".", "--forks", "none"),
    ("--forks 1001", "--forks", "bootstrap", ".", "--forks", "1001"),
    ("--output xml", "--output", "bootstrap", ".", "--output", "xml"),
    ("no terminal to ask on", "expected --head NAME=ADDRESS and at least one --worker", "init", "borealis"),
    ("an unknown GPU model", "choose from a100-pcie-40gb", "lab", "up", "--gpu-model", "h999"),
):
    GIVEN.append(Given({f"Command line: {_line}": ("", _said)}, {"inventory.yaml": GOOD}, tuple(_words), judged=False))
_limit = {
    "unknown node": ("gpu1", 'no host "gpu1" (did you mean gpu0'),
    "unknown group": ("slurm_worker", 'no host "slurm_worker"'),
    "a pattern of nodes": ("gpu*", 'no host "gpu*"'),
    "a file of nodes": ("@inventory.yaml", 'no host "@inventory.yaml"'),
    "a hostile node": ("\x1b[2J$(id)", 'no host "\\x1b[2J$(id)"'),
}
GIVEN.append(
    Given(
        {f"Command line: {_line}": ("--limit: ", _said) for _line, (_, _said) in _limit.items()},
        {"inventory.yaml": GOOD},
        ("bootstrap", ".", "--limit", ",".join(("head1", *(_node for _node, _ in _limit.values())))),
    )
)
for _nodes in ("", " , "):
    _line = f"Command line: a limit of {_nodes!r}"
    command(_line, "--limit: names no node", "bootstrap", ".", "--limit", _nodes, judged=True)
_verbs: tuple[tuple[str, ...], ...] = (
    ("validate", "."),
    ("discover", "."),
    ("plan", "bootstrap", ".", "--diff", "-vvv"),
    ("bootstrap", ".", "--print-command"),
    ("bootstrap", ".", "--skip-unreachable", "--accept-new-host-keys"),
    ("verify", "."),
    ("status", "."),
    ("health", "."),
    ("usage", "."),
    ("trust", ".", "gpu01"),
    ("secret", "show", ".", "munge_key"),
    ("secret", "rotate", ".", "munge_key"),
    ("plan", "bootstrap", "."),
    ("add-node", ".", "gpu09", "--yes"),
    ("remove-node", ".", "gpu01", "--yes"),
    ("replace-node", ".", "gpu01"),
)
for _argv in _verbs:
    command(f"Command line: bad input to {' '.join(_argv)}", NAMED, *_argv, inventory=WRONG, judged=True)
command("Command line: bad input to --output json", NAMED, "bootstrap", ".", "--output", "json", inventory=WRONG)

_sudo: tuple[tuple[str, str, str, Make | None], ...] = (
    ("that is not there", "a password cannot be read: No such file", "--become-password-file=password", None),
    ("that others read", "got mode 0644, expected 0600", "--become-password-file=password", with_mode(0o644, CANARY)),
    ("that is a pipe", "is not a regular file", "--become-password-file=password", os.mkfifo),
    ("of nothing", "holds no password, expected one line", "--become-password-file=password", with_mode(0o600, "\n")),
    ("without a terminal to ask on", "--ask-become-pass: there is no terminal to ask on", "-K", None),
)
for _line, _said, _option, _content in _sudo:
    _files = {"inventory.yaml": GOOD} if _content is None else {"inventory.yaml": GOOD, "password": _content}
    _wanted = {f"Command line: password for sudo {_line}": ("", _said)}
    GIVEN.append(Given(_wanted, _files, ("bootstrap", ".", _option)))
_members: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("remove an unknown node", 'NODE: no worker "gpu1" (did you mean gpu0', ("remove-node", ".", "gpu1", "--yes")),
    ("remove the only head", "NODE: head1 is the head (slurm_head)", ("remove-node", ".", "head1", "--yes")),
    (
        "remove all workers",
        "NODE: these are all the workers",
        ("remove-node", ".", "gpu01", "gpu02", "gpu03", "gpu04", "--yes"),
    ),
    (
        "remove without a terminal to ask on",
        "--yes: is required without a terminal",
        ("remove-node", ".", "gpu01"),
    ),
    ("add without a terminal to ask on", "--yes: is required without a terminal", ("add-node", ".", "gpu09")),
    ("add the head", "head1: is in the inventory but is not a worker", ("add-node", ".", "head1", "--yes")),
    (
        "add an existing node at another address",
        "gpu01: has the address ",
        ("add-node", ".", "gpu01", "--address", "10.9.9.9", "--yes"),
    ),
    (
        "add two nodes with one address",
        "--address: got 1 address for 2 nodes",
        ("add-node", ".", "gpu08", "gpu09", "--address", "10.0.0.9", "--yes"),
    ),
    ("add a node with a bad name", "gpu_$(id)", ("add-node", ".", "gpu_$(id)", "--yes")),
    ("add a node at a template", "{{", ("add-node", ".", "gpu09", "--address", "{{ lookup('pipe', 'id') }}", "--yes")),
    ("add a node at an option", "-oProxyCommand", ("add-node", ".", "gpu09", "--address=-oProxyCommand=id", "--yes")),
    (
        "add a node to an unknown group",
        '--group: no group "nonsense"',
        ("add-node", ".", "gpu09", "--group", "nonsense", "--yes"),
    ),
    ("add a node to a group of others", "monitoring", ("add-node", ".", "gpu09", "--group", "monitoring", "--yes")),
    ("replace an unknown node", 'NODE: no worker "gpu1"', ("replace-node", ".", "gpu1")),
    ("plan a removal of the only head", "NODE: head1 is the head", ("plan", "remove-node", ".", "head1")),
    ("plan an unknown verb", "No such command 'bootstap'. Did you mean 'bootstrap'", ("plan", "bootstap", ".")),
    ("wait for less than no time", "--timeout", ("remove-node", ".", "gpu01", "--timeout", "-1", "--yes")),
)
for _line, _said, _argv in _members:
    command(f"Command line: {_line}", _said, *_argv)
command("Command line: trust for an unknown node", 'NODE: no host "gpu1"', "trust", ".", "gpu1", judged=True)

HOSTILE: Mapping[str, str | None] = {
    "ANSIBLE_CONFIG": "hostile.cfg",
    "ANSIBLE_INVENTORY": "/dev/zero",
    "ANSIBLE_INVENTORY_ENABLED": "script",
    "ANSIBLE_VAULT_PASSWORD_FILE": "hostile.sh",
    "ANSIBLE_LOG_PATH": MARKER,
    "ANSIBLE_STDOUT_CALLBACK": "no such",
    "ANSIBLE_PYTHON_INTERPRETER": "hostile.sh",
    "ANSIBLE_SSH_EXECUTABLE": "hostile.sh",
    "ANSIBLE_FORKS": "many",
}
_environments: Mapping[str, Mapping[str, str | None]] = {
    "HOME unset": {"HOME": None},
    "HOME elsewhere": {"HOME": "/dev/null"},
    "LANG=C": {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "no PATH": {"PATH": None},
    "no TERM": {"TERM": "no such terminal", "COLUMNS": "-7"},
    "hostile ANSIBLE_*": HOSTILE,
}
for _line, _environment in _environments.items():
    command(
        f"Command line: {_line}", 'bad host name, got "gp', "bootstrap", ".",
        inventory=good("gpu[02:04]", "gpü"), judged=True, **_environment,
    )  # fmt: skip
GIVEN.append(
    Given(
        {"Command line: hostile ANSIBLE_* where Ansible's vault is used": ("", "cannot be decrypted")},
        {
            "inventory.yaml": GOOD,
            "secrets.yml": sealed("aurora-0123abcd"),
            "password": with_mode(0o600, CANARY),
            "hostile.sh": with_mode(0o755, f"#!/bin/sh\n{RUN}\n"),
            "hostile.cfg": f"[defaults]\nlog_path = {MARKER}\nvault_password_file = hostile.sh\n",
            "ansible.cfg": f"[defaults]\nlog_path = {MARKER}\nvault_password_file = hostile.sh\n",
        },
        environment={**VAULT, **HOSTILE},
    )
)

# --- the proof ------------------------------------------------------------------------------------------------------

LINES = [(line, index) for index, given in enumerate(GIVEN) for line in given.says]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clusters")


@dataclass(frozen=True)
class Outcome:
    """What became of all starts; their outputs have the directory of each cut off."""

    ends: list[End]
    packets: int


def start(directory: Path, given: Given) -> arena.Start:
    """Make the cluster's directory, and return how clusterctl is started in it."""
    for name, make in given.files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(make, str | bytes):
            path.write_bytes(make if isinstance(make, bytes) else make.encode())
        else:
            make(path)
    (directory / "home").mkdir(exist_ok=True)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory / "home"),
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        **given.environment,
    }
    argv = (sys.executable, "-m", "clusterctl", *given.argv)
    return arena.Start(argv, str(directory), {name: text for name, text in environment.items() if text is not None})


@pytest.fixture(scope="module")
def outcome(base: Path) -> Outcome:
    here = Path.cwd()
    try:
        starts = [start(base / f"{index:03}", given) for index, given in enumerate(GIVEN)]
    finally:
        os.chdir(here)
    ends, packets = arena.run(starts)
    return Outcome(
        [
            End(end.code, *(text.replace(f"{begun.cwd}/", "") for text in (end.out, end.err)))
            for begun, end in zip(starts, ends, strict=True)
        ],
        packets,
    )


@pytest.mark.proves("inventory", "Each of more than 400 problems of input is refused with its place; exit 2.")
@pytest.mark.proves(
    "inventory",
    "Values that would be a line, path or statement of their own are refused.",
    only=[
        "Hostile: a newline in an option's value",
        "Hostile: a unit's option in a path",
        "Hostile: ../ in a path",
        "Hostile: a back quote in a database's name",
        "Hostile: a statement of Jinja",
    ],
)
@pytest.mark.parametrize(("line", "index"), [pytest.param(*pair, id=pair[0]) for pair in LINES])
def test_refused_with_its_place(outcome: Outcome, line: str, index: int) -> None:
    end, (place, said) = outcome.ends[index], GIVEN[index].says[line]
    assert end.code == 2, end.err
    told = (end.out + end.err).splitlines()
    assert any(text.startswith(place) and said in text for text in told), f"{place}{said}\n--- in\n{end.err}"


@pytest.mark.proves("inventory", "A refusal shows no traceback, no secret and no control character.")
@pytest.mark.parametrize("index", range(len(GIVEN)), ids=[next(iter(given.says)) for given in GIVEN])
def test_nothing_else_is_said(outcome: Outcome, index: int) -> None:
    """No traceback, no secret, nothing that a terminal obeys; as many problems as the last line counts."""
    end, given = outcome.ends[index], GIVEN[index]
    lines = end.err.splitlines()
    assert all(line.isprintable() for line in lines)
    assert not re.search(f"Traceback|internal error|{CANARY}|the vault password of this", end.out + end.err)
    assert end.err.isascii() or given.environment.get("LC_ALL") != "C"
    if given.judged:
        assert end.out in ("", "aurora  bootstrap\n")  # the latter once the inventory is good
        assert re.fullmatch(rf"{len(lines) - 1} problems?; no node was contacted\.", lines[-1]), end.err
        assert len(lines) > len(set(given.says.values()))


@pytest.mark.proves("inventory", "Refused input sends no packet, creates no file, runs no command.")
def test_nobody_is_contacted_and_nothing_made_or_run(outcome: Outcome, base: Path) -> None:
    """A positive control is below: the same program sends packets there as soon as the inventory is good."""
    assert outcome.packets == 0
    made = {path.relative_to(base).as_posix() for path in base.rglob("*") if "executed" in path.name}
    made |= {path.as_posix() for path in base.glob("*/.clusterctl/runs") if not path.is_symlink()}
    assert made == set()
    for index, given in enumerate(GIVEN):
        made = {path.name for path in (base / f"{index:03}").iterdir()} - {".clusterctl", "home"}
        assert made <= {name.partition("/")[0] for name in given.files}, given.argv


@pytest.mark.proves("inventory", "The positive control: a good inventory sends packets to its nodes.")
def test_a_good_inventory_is_not_refused_and_its_nodes_are_looked_for(tmp_path: Path) -> None:
    given = Given({}, {"inventory.yaml": good("gpu[02:04]: {}", "gpu02: {ansible_host: 10.0.0.12}")})
    [end], packets = arena.run([start(tmp_path, given)])
    assert end.code == 3, end.err
    assert "head1: connection: 10.0.0.10 port 22 refuses" in end.err
    assert "gpu01: connection: 10.0.0.11 port 2222 refuses" in end.err
    assert packets >= 6
