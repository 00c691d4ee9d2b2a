"""Shared directories, quotas and scratch: mounts of hosts, states of directories, commands, what is deleted."""

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jinja2
import pytest

from clusterctl.inventory import model, mounts, rules
from clusterctl.nodes import probe
from clusterctl.nodes.probe import mounts as probe_mounts
from clusterctl.nodes.probe.common import FORMER, HIDES, HUNG, NOT_MOUNTED, OTHER
from clusterctl.run import mount_checks
from clusterctl.util import paths
from tests.unit.test_gpu_health import installed
from tests.unit.test_preflight import facts
from tests.unit.test_role_plugins import plugin

INVENTORY = """\
all:
  vars: {cluster_name: aurora, users_home: /srv/home}
  children:
    slurm_head: {hosts: {head1: {ansible_host: 10.0.0.10}}}
    slurm_workers: {hosts: {gpu01: {ansible_host: 10.0.0.11, nfs_client_mounts: [{path: /data, source: "nas:/data"}]}}}
    monitoring: {hosts: {metrics1: {ansible_host: 10.0.0.12}}}
    nfs_server: {hosts: {nfs1: {ansible_host: 10.0.0.13}}}
"""
REPORT = """\
User,BlockStatus,FileStatus,BlockUsed,BlockSoftLimit,BlockHardLimit,BlockGrace,FileUsed,FileSoftLimit,FileHardLimit,FileGrace
#0,ok,ok,20,0,0,,2,0,0,
#10001,ok,ok,16,419430400,524288000,,4,0,0,
#10002,ok,ok,16,1024,2048,,4,100,200,
"""
MOUNTINFO = """\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 22 8:2 / /srv rw,relatime - ext4 /dev/sdb1 rw,{options}
31 30 8:3 / /srv/other\\040disk rw - xfs /dev/sdc1 rw,usrquota
"""
SAFE = ["nosuid", "nodev"]


def of(name: str, directory: Path, text: str = INVENTORY) -> dict[str, str]:
    """Return the sources of a host's directories."""
    (directory / "inventory.yaml").write_text(text)
    inventory = model.load(directory / "inventory.yaml")
    return {path: source for path, (source, _) in mount_checks.of_host(inventory, inventory.host(name)).items()}


@pytest.mark.parametrize(
    ("path", "unit"),
    [("/home", "home.mount"), ("/srv/a-b/c.d+", r"srv-a\x2db-c.d\x2b.mount"), ("/.x", r"\x2ex.mount")],
)
def test_unit__of_a_path__is_systemds(path: str, unit: str) -> None:
    assert mounts.unit(path) == unit


def test_mounts__with_and_without_defaults__are_complete() -> None:
    given: list[dict[str, Any]] = [
        {"path": "/data/a", "source": "nas:/a", "options": ["ro"]},
        {"path": "/data", "source": "d", "type": "x"},
    ]
    found = mounts.complete(given, ["hard"], [{"path": "/home"}], "fd00::1")
    assert found == [
        {"path": "/data", "source": "d", "type": "x", "options": ["hard", *SAFE], "unit": "data.mount"},
        {"path": "/data/a", "source": "nas:/a", "type": "nfs", "options": ["ro", *SAFE], "unit": "data-a.mount"},
        {
            "path": "/home",
            "source": "[fd00::1]:/home",
            "type": "nfs4",
            "options": ["hard", *SAFE],
            "unit": "home.mount",
        },
    ]


@pytest.mark.proves("storage", "A mount has no set-UID programs and devices unless its options say so.")
@pytest.mark.parametrize(
    ("given", "added"),
    [
        ([], ["nosuid", "nodev"]),
        (["defaults"], ["nosuid", "nodev"]),
        (["hard", "nosuid", "nodev"], []),
        (["suid"], ["nodev"]),
        (["ro,dev", "x=suid"], ["nosuid"]),
    ],
)
def test_mounts__with_options__are_safe_unless_stated(given: list[str], added: list[str]) -> None:
    (found,) = mounts.complete([{"path": "/data", "source": "d", "options": given}], [], [], "")
    assert found["options"] == [*given, *added]


def test_mounts__by_groups_of_a_host__follow_the_server(tmp_path: Path) -> None:
    assert of("gpu01", tmp_path) == {"/srv/home": "10.0.0.13:/srv/home", "/data": "nas:/data"}
    assert of("head1", tmp_path) == {"/srv/home": "10.0.0.13:/srv/home"}
    assert of("nfs1", tmp_path) == of("metrics1", tmp_path) == {"/srv/home": ""}
    on_head = INVENTORY.replace("nfs1: {ansible_host: 10.0.0.13}", "head1: {}")
    assert of("head1", tmp_path, on_head) == {"/srv/home": ""}
    assert of("gpu01", tmp_path, on_head) == {"/srv/home": "10.0.0.10:/srv/home", "/data": "nas:/data"}
    exports = INVENTORY.replace("10.0.0.13}", "10.0.0.13, nfs_server_exports: [{path: /shared}]}")
    assert of("head1", tmp_path, exports) == {"/srv/home": "", "/shared": "10.0.0.13:/shared"}


@pytest.mark.parametrize(
    ("path", "mount", "scratch"),
    [
        ("/local", True, True),
        ("/mnt", True, False),
        ("/mnt/local", True, True),
        ("/opt", True, False),
        ("/tmp", False, False),
        ("/tmp/a/b", False, False),
        ("/tmpfs", True, True),
        ("/var", False, False),
        ("/var/tmp/a", False, False),
        ("/var/lib", False, False),
        ("/var/lib/a", True, True),
        ("/dev/shm", False, False),
        ("/root/a", False, False),
        ("/usr/local", False, False),
        ("/lib64", False, False),
    ],
)
def test_directories__of_the_system__are_not_for_data(path: str, mount: bool, scratch: bool) -> None:
    for name, holds in {
        "nfs_client_mounts.path": mount,
        "nfs_server_exports.path": mount,
        "slurm_worker_scratch": scratch,
    }.items():
        rule = rules.rule_of(name, False)
        assert rule
        assert rule.holds(path) is holds, (name, path)


# --- the probe --------------------------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> str:
    (tmp_path / "mounts").write_text(f"nas:/data {tmp_path}/a\\040b nfs4 rw 0 0\n")
    (tmp_path / "a b").mkdir()
    return str(tmp_path / "mounts")


NAS = ("nas:/data", "nfs")


def test_probe__of_directories__tells_what_is_not_there(tmp_path: Path, table: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "used").mkdir()
    for name in ("a", "b\n\u2028", "c", "d"):
        (tmp_path / "used" / name).touch()
    states = probe_mounts.mounts(
        {f"{tmp_path}/{name}": NAS for name in ("a b", "empty", "used", "missing")}, table, str(tmp_path / "locks")
    )
    assert {path.rpartition("/")[2]: state for path, state in states.items()} == {
        "a b": "",
        "empty": NOT_MOUNTED,
        "used": HIDES + r"a, b\n\u2028, c",
        "missing": "No such file or directory",
    }


def test_probe__of_homes_that_the_site_mounts__asks_for_no_mount(tmp_path: Path, table: str) -> None:
    assert probe_mounts.mounts({str(tmp_path): ("", "")}, table, str(tmp_path / "locks")) == {str(tmp_path): ""}


LOCAL, NFS, FUSE = ("/dev/sdb1", "ext4"), ("nas:/data", "nfs4"), ("nas:/data", "fuse.nfs4")


@pytest.mark.proves("storage", "Another file system in place of a declared one is no mount of it.")
@pytest.mark.parametrize(
    ("there", "wanted", "is_ours", "what"),
    [
        (NFS, ("nas:/data", "nfs"), False, ""),
        (NFS, ("nas:/data/", "nfs4"), False, ""),
        (FUSE, ("nas:/data", "nfs4"), False, ""),
        (LOCAL, ("nas:/data", "nfs4"), False, OTHER),
        (LOCAL, ("nas:/data", "nfs4"), True, OTHER),  # the unit was enabled, and never started
        (NFS, ("new:/data", "nfs4"), False, OTHER),
        (NFS, ("new:/data", "nfs4"), True, FORMER),
        (("systemd-1", "autofs"), ("nas:/data", "nfs4"), False, OTHER),
        (LOCAL, ("10.0.0.1:/volume", "glusterfs"), False, OTHER),
        (("nas:/volume", "fuse.glusterfs"), ("10.0.0.1:/volume", "glusterfs"), False, ""),
        (LOCAL, ("UUID=1", "ext4"), False, ""),
        (LOCAL, ("/srv", "none"), False, ""),
    ],
)
def test_unlike__by_source_and_type__is_another_one(
    there: tuple[str, str], wanted: tuple[str, str], is_ours: bool, what: str
) -> None:
    assert probe_mounts.unlike(there, wanted, is_ours) == what


def test_probe__of_another_file_system__names_it(tmp_path: Path, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"{tmp_path}/a b"
    (tmp_path / "units").mkdir()
    (tmp_path / "units/data.mount").write_text(f"{probe_mounts._MARK}\n[Mount]\nWhere={path}x\n")
    monkeypatch.setattr(probe_mounts, "_UNITS", str(tmp_path / "units"))

    def state() -> str:
        return probe_mounts.mounts({path: ("new:/data", "nfs4")}, table, str(tmp_path / "locks"))[path]

    assert state() == f"{OTHER}nas:/data"
    (tmp_path / "units/own.mount").write_text(f"[Mount]\nWhere={path}\n")
    assert state() == f"{OTHER}nas:/data"
    (tmp_path / "units/data.mount").write_text(f"{probe_mounts._MARK}\n[Mount]\nWhere={path}\n")
    assert state() == f"{FORMER}nas:/data"
    Path(table).write_text(Path(table).read_text() + f"/dev/sdb1 {tmp_path}/a\\040b ext4 rw 0 0\n")
    assert state() == f"{OTHER}/dev/sdb1"  # over the former


def test_mark__of_the_roles_units__is_the_probes() -> None:
    text = (paths.content() / "roles/nfs_client/vars/main.yml").read_text()
    assert f'__nfs_client_mark: "{probe_mounts._MARK}"' in text


def test_role__by_what_is_on_a_host__finds_what_is_in_the_way() -> None:
    found = plugin("filter/nfs").FilterModule().filters()["nfs_found"]
    given: list[dict[str, Any]] = [{"path": path, "source": f"nas:{path}"} for path in ("/data", "/home", "/new")]
    wanted = mounts.complete(given, [], [], "")
    lines = [
        *("mounted /dev/sdb1 /home ext4 rw 0 0", "mounted old:/data /data nfs4 rw 0 0", "hidden /new/file"),
        *("unit data.mount", "unit home.mount", "unit gone.mount"),
    ]
    assert found(lines, wanted) == {"hidden": ["/new/file"], "others": ["/home (/dev/sdb1)"], "former": ["gone.mount"]}


@pytest.mark.proves("storage", "A directory that does not respond costs the probe seconds, and one process.")
def test_probe__of_a_directory_that_hangs__is_left_alone(
    tmp_path: Path, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, path, locks = tmp_path / "release", f"{tmp_path}/a b", str(tmp_path / "locks")

    def hang(_path: str) -> None:
        while not release.exists():
            time.sleep(0.01)

    monkeypatch.setattr(probe_mounts, "MOUNT_SECONDS", 0.3)
    monkeypatch.setattr(os, "statvfs", hang)
    started, fork = [], os.fork

    def count() -> int:
        started.append(1)
        return fork()

    monkeypatch.setattr(os, "fork", count)
    try:
        for _ in range(3):
            assert probe_mounts.mounts({path: NAS}, table, locks) == {path: HUNG}
        assert started == [1]
    finally:
        release.touch()
    monkeypatch.setattr(probe_mounts, "MOUNT_SECONDS", 60)
    assert probe_mounts.mounts({path: NAS}, table, locks) == {path: ""}


def test_probe__as_a_user_without_locks__looks_too(tmp_path: Path, table: str) -> None:
    (tmp_path / "file").touch()
    assert probe_mounts.mounts({f"{tmp_path}/a b": NAS}, table, str(tmp_path / "file")) == {f"{tmp_path}/a b": ""}


def test_homes__below_a_directory_that_hangs__are_left_out() -> None:
    states = {"/home": HUNG, "/data": ""}
    assert probe_mounts.responding(["/home/ada", "/home", "/home2/bob", "/data/x"], states) == ["/home2/bob", "/data/x"]


@pytest.mark.proves("storage", "A command that cannot be killed does not block the probe.")
def test_probe__command_that_leaves_a_process__returns(tmp_path: Path) -> None:
    """The process has the command's output open, as one that hangs in the kernel."""
    text = probe.text(state=False).replace("timeout=10", "timeout=0.2")
    code = f"{text}\nprint(repr(output('sh', '-c', 'sleep 60 & sleep 60')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "''\n"


@pytest.mark.parametrize(
    ("states", "found"),
    [
        ({}, []),
        ({"/a": ""}, []),
        ({"/a": HUNG}, [("/a (nas:/a) does not respond", True)]),
        ({"/a": NOT_MOUNTED}, [("/a (nas:/a) is not mounted", False)]),
        ({"/a": f"{HIDES}x, y"}, [("/a (nas:/a) is not mounted and would hide files (x, y)", False)]),
        ({"/a": f"{OTHER}/dev/sdb1"}, [("/a (nas:/a) has another file system mounted (/dev/sdb1)", False)]),
        (
            {"/a": f"{FORMER}old:/a"},
            [("/a (nas:/a) still has its former source mounted, until the next reboot (old:/a)", False)],
        ),
        ({"/a": "Stale file handle"}, [("/a (nas:/a): Stale file handle", False)]),
        ({"/home": NOT_MOUNTED}, []),
        ({"/home": "No such file or directory"}, []),
        ({"/home": HUNG}, [("/home does not respond", True)]),
    ],
)
def test_problems__by_the_states__name_path_and_source(states: dict[str, str], found: list[tuple[str, bool]]) -> None:
    assert list(mount_checks.problems({"/a": ("nas:/a", "nfs"), "/home": ("", "")}, states)) == found


@pytest.mark.proves("storage", "What a mount would hide is refused before a node is changed.")
@pytest.mark.parametrize("mounts_them", [True, False])
@pytest.mark.parametrize(
    ("state", "check"),
    [
        ("", None),
        (NOT_MOUNTED, None),
        (f"{FORMER}old:/data", None),
        (f"{HIDES}x", mount_checks.OCCUPIED),
        (f"{OTHER}/dev/sdb1", mount_checks.OCCUPIED),
        (HUNG, mount_checks.CHECK),
    ],
)
def test_preflight__by_the_states__refuses_what_is_in_the_way(
    tmp_path: Path, state: str, check: str | None, mounts_them: bool
) -> None:
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    inventory = model.load(tmp_path / "inventory.yaml")
    node = facts(lambda data: data["node"].update(mounts={"/data": state}))
    found = list(mount_checks.findings(inventory, {"gpu01": node}, mounts_them))
    expected = [check] if check == mount_checks.CHECK or (check and mounts_them) else []
    assert [one.check for one in found] == expected
    assert all(one.hint and not one.warning for one in found)


def test_hint__of_hidden_files__is_the_roles() -> None:
    text = " ".join((paths.content() / "roles/nfs_client/tasks/mounts.yml").read_text().split())
    assert mount_checks.HIDDEN_HINT[1:] in text
    assert mount_checks.OTHER_HINT[1:] in text


# --- quotas -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def quotas() -> ModuleType:
    return plugin("modules/nfs_quotas")


def user(uid: int, soft: int, hard: int) -> dict[str, Any]:
    return {"name": f"u{uid}", "uid": uid, "soft": soft, "hard": hard}


@pytest.mark.proves("storage", "Quotas are set by difference; limits of the number of files stay.")
def test_quotas__that_differ__are_set(quotas: ModuleType) -> None:
    """The report has repquota 4.09's format; setquota(8) has the order of the arguments."""
    users = [user(10001, 419430400, 524288000), user(10002, 0, 4096), user(10003, 1, 2), user(10004, 0, 0)]
    assert quotas.commands(users, quotas.limits(REPORT), "/srv") == {
        "u10002": ["setquota", "-u", "10002", "0", "4096", "100", "200", "/srv"],
        "u10003": ["setquota", "-u", "10003", "1", "2", "0", "0", "/srv"],
    }


def test_report__in_another_format__is_refused(quotas: ModuleType) -> None:
    with pytest.raises(quotas.QuotaError, match="cannot read"):
        quotas.limits("User,BlockStatus\nada,ok\n")


@pytest.mark.proves("storage", "A file system without quotas is refused before the server is changed.")
@pytest.mark.parametrize(
    ("path", "options", "fits"),
    [
        ("/srv/home", "quota,usrquota", True),
        ("/srv/home", "usrjquota=aquota.user,jqfmt=vfsv1", True),
        ("/srv/home", "noquota", False),
        ("/srv/home", "uqnoenforce", False),
        ("/srv/other disk/home", "noquota", True),
        ("/srvx", "usrquota", False),
    ],
)
def test_quotas__by_options_of_the_mount__are_possible(quotas: ModuleType, path: str, options: str, fits: bool) -> None:
    mount = quotas.mount_of(path, MOUNTINFO.format(options=options))
    if fits:
        quotas.require_quotas(path, mount)
        return
    with pytest.raises(quotas.QuotaError, match=f"{path} is on /dev/sd.* which has no quotas of users: .*usrquota"):
        quotas.require_quotas(path, mount)


def test_limits__of_accounts__precede_the_common_ones() -> None:
    filters = plugin("filter/nfs").FilterModule().filters()
    accounts: list[dict[str, Any]] = [
        {"name": "ada", "uid": 1001},
        {"name": "bob", "uid": 1002, "home_quota": {"hard": "1T"}},
        {"name": "eve", "uid": 1003, "state": "absent"},
    ]
    assert filters["nfs_quotas"](accounts, {"soft": "2M", "hard": "3G"}) == [
        {"name": "ada", "uid": 1001, "soft": 2 << 10, "hard": 3 << 20},
        {"name": "bob", "uid": 1002, "soft": 0, "hard": 1 << 30},
    ]
    assert [one["name"] for one in filters["nfs_quotas"](accounts, {})] == ["bob"]


# --- scratch ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    module: ModuleType = installed("job_scratch")
    (tmp_path / "local").mkdir()
    (tmp_path / "scratch").write_text(f"{tmp_path}/local\n")
    for name, path in {"CONFIGURATION": "scratch", "BOOTED": "run/scratch-boot"}.items():
        monkeypatch.setattr(module, name, tmp_path / path)
    monkeypatch.setattr(module, "OWNER", os.getuid())
    monkeypatch.setattr(module.os, "fchown", lambda *_: None)
    monkeypatch.setattr(module, "start_emptying", lambda: None)
    yield module


def test_scratch__of_a_requeued_job__is_empty(scratch: ModuleType, tmp_path: Path) -> None:
    for _ in range(2):
        scratch.make("12", 5001)
        assert list((tmp_path / "local/12").iterdir()) == []
        assert (tmp_path / "local/12").stat().st_mode & 0o777 == 0o700
        (tmp_path / "local/12/file").touch()
    assert len(list((tmp_path / "local/.trash").iterdir())) == 1


def test_scratch__of_a_system_user_or_another_worker__is_not_made(scratch: ModuleType, tmp_path: Path) -> None:
    scratch.make("12", 999)
    (tmp_path / "scratch").unlink()
    scratch.make("13", 5001)
    assert (list((tmp_path / "local").iterdir()), scratch.problems(), scratch.remove("13")) == ([], [], False)


@pytest.mark.proves("storage", "Scratch is not deleted through links that users planted in its directory.")
@pytest.mark.parametrize(
    ("mode", "trash", "why"),
    [
        (0o711, "link", "Not a directory"),
        (0o711, 0o777, r"users can write to .*/local/\.trash"),
        (0o1777, 0o700, "users can write to .*/local;"),
        (0o771, "link", "users can write to .*/local;"),
    ],
)
def test_scratch__that_users_can_write_to__is_not_used(
    scratch: ModuleType, tmp_path: Path, mode: int, trash: int | str, why: str
) -> None:
    local = tmp_path / "local"
    for name in ("kept", "local/12"):
        (tmp_path / name).mkdir()
    (tmp_path / "kept/12.1").touch()
    if trash == "link":
        (local / ".trash").symlink_to(tmp_path / "kept")
    else:
        (local / ".trash").mkdir()
        (local / ".trash").chmod(int(trash))
    local.chmod(mode)
    errors = (OSError, scratch.ScratchError)
    for refused in (lambda: scratch.make("12", 5001), lambda: scratch.remove("12"), scratch.empty):
        with pytest.raises(errors, match=why):
            refused()
    (problem,) = scratch.problems()
    assert re.search(why, problem)
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["12.1"]
    assert list((local / ".trash").iterdir()) == ([local / ".trash/12.1"] if trash == "link" else [])


def test_scratch__of_another_owner__is_not_used(scratch: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "OWNER", os.getuid() + 1)
    with pytest.raises(scratch.ScratchError, match="users can write to"):
        scratch.remove("12")


def test_scratch__with_a_planted_link_of_a_job__leaves_its_target(scratch: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    for name in ("12", ".check"):
        (tmp_path / "local" / name).symlink_to(tmp_path / "kept")
    assert scratch.problems() == [f"scratch: cannot write to {tmp_path}/local: Not a directory"]
    scratch.make("12", 5001)
    assert not (tmp_path / "local/12").is_symlink()
    assert list((tmp_path / "kept").iterdir()) == []
    scratch.empty()
    assert (tmp_path / "kept").exists()


# Run with mounts of its own. A mount point can neither be renamed nor deleted.
WITH_MOUNTS = """
import os, subprocess, sys
sys.path[:0] = [{modules!r}]
import job_scratch
from pathlib import Path
job_scratch.CONFIGURATION = Path("scratch")
job_scratch.start_emptying = lambda: None
def mount(path, *options):
    Path(path).mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", *options, path], check=True)
tmpfs = ("-t", "tmpfs", "none")
mount("local/12", *tmpfs)
mount("local/12", *tmpfs)
mount("local/12/a b/c", *tmpfs)
mount("local/12/a b/c/d", *tmpfs)
mount("local/13/kept", "--bind", "kept")
mount("local/123", *tmpfs)
for job in ("12", "13"):
    assert job_scratch.remove(job)
mount("local/.trash/14.1/kept", "--bind", "kept")
os.symlink("/", "local/out")
with job_scratch.opened(Path("local")) as directory:
    try:
        job_scratch.detach(directory, ["out", "proc"])
        sys.exit("followed a link")
    except OSError as error:
        assert error.strerror == "Not a directory"
job_scratch.empty()
print(sorted(os.listdir("local")), os.listdir("local/.trash"), os.listdir("kept"))
print([line.split()[4].rpartition("/")[2] for line in open("/proc/self/mountinfo") if "/local/" in line])
"""


@pytest.mark.proves("storage", "File systems that a user mounted in scratch do not stop its removal.")
def test_scratch__with_mounts_of_a_user__is_removed(scratch: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").touch()
    script = WITH_MOUNTS.format(modules=str(Path(str(scratch.__file__)).parent))
    argv = ["unshare", "--map-root-user", "--mount", sys.executable, "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert done.stdout.splitlines() == ["['.trash', '123', 'out'] [] ['file']", "['123']"], done.stderr


@pytest.mark.parametrize(
    ("blocks", "files", "why"), [(0, 9, "/local is full"), (9, 0, "/local has no free inodes"), (9, 9, "")]
)
def test_scratch__by_free_space__is_made(
    scratch: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, files: int, why: str
) -> None:
    free = os.statvfs_result((1, 1, 9, 9, blocks, 9, 9, files, 0, 255))
    monkeypatch.setattr(scratch.os, "statvfs", lambda _: free)
    assert scratch.problems() == ([f"scratch: {tmp_path}{why}"] if why else [])
    if why:
        with pytest.raises(scratch.ScratchError, match=why):
            scratch.make("12", 5001)
    assert (tmp_path / "local/12").exists() is False


def test_scratch__without_its_directory__says_why(scratch: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "local").rmdir()
    assert scratch.problems() == [f"scratch: cannot write to {tmp_path}/local: No such file or directory"]
    with pytest.raises(scratch.ScratchError, match=r"cannot create .*/local/12: No such file"):
        scratch.make("12", 5001)


@pytest.mark.parametrize(("active", "left"), [(0, ["12", "notes"]), (3, ["notes"])])
def test_scratch__at_boot__is_removed_once_and_not_while_jobs_run(
    scratch: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, active: int, left: list[str]
) -> None:
    monkeypatch.setattr(scratch.subprocess, "call", lambda _: active)
    for name in ("12", "notes"):
        (tmp_path / "local" / name).mkdir()
    scratch.boot()
    assert sorted(path.name for path in (tmp_path / "local").iterdir() if path.name != ".trash") == left
    (tmp_path / "local/13").mkdir()
    scratch.boot()
    assert (tmp_path / "local/13").exists()


def test_trash__with_links_and_what_cannot_be_deleted__is_emptied(
    scratch: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").touch()
    for name in ("12.1", "13.1"):
        (tmp_path / "local/.trash" / name).mkdir(parents=True)
    (tmp_path / "local/.trash/12.1/link").symlink_to(tmp_path / "kept")
    call = subprocess.call
    monkeypatch.setattr(
        scratch.subprocess, "call", lambda argv, **more: 1 if "13.1" in argv[-1] else call(argv, **more)
    )
    with pytest.raises(scratch.ScratchError, match=r"cannot delete 13\.1"):
        scratch.empty()
    assert [path.name for path in (tmp_path / "local/.trash").iterdir()] == ["13.1"]
    assert (tmp_path / "kept/file").exists()


@pytest.mark.parametrize(
    ("scratch_of", "cgroup", "number"),
    [
        ("/local", "0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0", "12"),
        ("/local", "9:memory:/slurm/uid_5001/job_12/step_batch\n1:cpu:/slurm/uid_5001/job_12/step_batch", "12"),
        ("/local", "0::/", "11"),  # the number in the environment
        ("/local", "0::/system.slice/slurmstepd.scope/job_13/step_0/user/task_0", ""),  # without a directory
        ("", "0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0", ""),
    ],
)
def test_task_prolog__of_a_component__has_its_own_scratch(
    tmp_path: Path, scratch_of: str, cgroup: str, number: str
) -> None:
    """The environment of all components of a heterogeneous job has the number of the first one."""
    base = tmp_path / "local"
    for name in ("11", "12"):
        (base / name).mkdir(parents=True)
    (tmp_path / "cgroup").write_text(cgroup + "\n")
    text = (paths.content() / "roles/slurm_worker/templates/task-prolog.j2").read_text()
    environment = jinja2.Environment(autoescape=True)
    environment.filters["quote"] = shlex.quote  # Ansible's
    known = {"slurm_worker_scratch": scratch_of and str(base), "__slurm_worker_mps": 0, "__slurm_worker_mps_gpus": []}
    shown = environment.from_string(text).render(ansible_managed="", **known)
    script = shown.replace("/proc/self/cgroup", str(tmp_path / "cgroup"))
    done = subprocess.run(
        ["sh", "-c", script], env={**os.environ, "SLURM_JOB_ID": "11"}, capture_output=True, text=True, check=True
    )
    expected = [f"export SCRATCH={base / number}"] if number else []
    assert done.stdout.splitlines() == ["unset SCRATCH", *expected]
