"""Functions for making and restoring a backup: the archive's format, Slurm's state, the accounting database, the
cluster's directory and Prometheus's configuration.

An archive is a tar file. Its first member is the manifest. Its last member, the seal, is the HMAC-SHA256 of every byte
before it with the cluster's `backup_key`. It detects a damaged, truncated or forged archive.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import hmac
import io
import json
import os
import re
import shutil
import stat
import subprocess
import tarfile
from pathlib import Path
from pwd import getpwnam

from ansible.module_utils.node_state.tools import ENVIRONMENT, RUN, STORE, NodeError, clean, run

VERSION = 1
MANIFEST, STATE, DUMP, LEDGER, SEAL = "manifest.json", "slurmctld.tar.gz", "database.sql.gz", "drain.json", "seal"
DIRECTORY, MONITORING = "directory.tar", "prometheus.tar"
_SHARED = Path("/etc/slurm/shared-state")  # role slurm_head: the directory that two heads share
DRAINED = (Path(_SHARED.read_text().strip(), "clusterctl") if _SHARED.exists() else STORE) / LEDGER
DRAIN_LOCK = (RUN if DRAINED.parent == STORE else DRAINED.parent) / "drain.lock"
RECOVERY = STORE / "recovery.tar"  # the password of the vault, then the cluster's directory
PROMETHEUS = Path("/etc/prometheus")
# Prometheus's files without secrets: others have its password, or the hash of its pages' password.
CONFIGURED = ("prometheus.yml", "rules/*.yml", "targets/*.json")
RULES = re.compile(r"rules/(?!clusterctl(-records)?\.yml$)[^/]+\.yml")  # the site's rules
# The primary tables of accounting; other tables are computed from these, and change every hour.
COUNTED = ("_job_table", "_step_table", "_assoc_table", "user_table", "acct_table", "qos_table")
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
USER = "slurm"
CHUNK = 1 << 20


# ------------------------------------------------------------------------------------------------------- the archive


def mac(file, size, key):
    """Return the HMAC-SHA256 of the first `size` bytes of a file."""
    found = hmac.new(key.encode(), digestmod="sha256")
    file.seek(0)
    while size and (data := file.read(min(CHUNK, size))):
        found.update(data)
        size -= len(data)
    return found.hexdigest()


def seal(path, manifest, parts, key):
    """Write the archive durably, with mode 0600; `parts` are files, stored under their own names."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w+b") as file, tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        add(tar, MANIFEST, json.dumps(manifest, indent=1).encode() + b"\n")
        for part in parts:
            with part.open("rb") as source:
                member = tarfile.TarInfo(part.name)
                member.size, member.mode = os.fstat(source.fileno()).st_size, 0o600
                tar.addfile(member, source)
        file.flush()
        end, found = tar.offset, mac(file, tar.offset, key)
        file.seek(end)
        add(tar, SEAL, found.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def add(tar, name, data):
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o600
    tar.addfile(member, io.BytesIO(data))


def unseal(path, key):
    """Return an archive's manifest. Raises NodeError if it is damaged, or not sealed with the key."""
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            members = tar.getmembers()
            if members[0].name != MANIFEST or members[-1].name != SEAL or not all(one.isfile() for one in members):
                raise ValueError("its first or last member is missing, or a member is not a file")
            told, manifest = tar.extractfile(members[-1]).read(100), tar.extractfile(members[0]).read(CHUNK)
            if not hmac.compare_digest(mac(file, members[-1].offset, key).encode(), told.strip()):
                raise ValueError("its seal is not valid")
            found = json.loads(manifest)
            if found["version"] != VERSION:
                raise ValueError(f"it has version {found['version']}, expected {VERSION}")
            return found
    except (tarfile.TarError, ValueError, KeyError, IndexError, OSError) as error:
        raise NodeError(f"{path} is damaged or not a backup: {error}") from None


def take(path, name, target):
    """Copy one member of an archive to a file; return whether it exists."""
    with tarfile.open(path, mode="r:") as tar:
        if name not in tar.getnames():
            return False
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            shutil.copyfileobj(tar.extractfile(name), file, CHUNK)
            file.flush()
            os.fsync(file.fileno())
    return True


# ----------------------------------------------------------------------------------------------------- Slurm's state


@contextlib.contextmanager
def as_slurm():
    """Access files as Slurm's user, the owner of the state, so that its links cannot redirect root.

    The real and saved ids stay root's, so that Slurm's user can neither trace nor kill this process.
    """
    user, groups, mine = getpwnam(USER), os.getgroups(), (os.getegid(), os.geteuid())
    try:
        os.setgroups([user.pw_gid])
        os.setegid(user.pw_gid)
        os.seteuid(user.pw_uid)
        yield user
    finally:
        os.seteuid(mine[1])
        os.setegid(mine[0])
        os.setgroups(groups)


def pack(source, target):
    """Copy the state of a running slurmctld.

    slurmctld writes each file under another name and then renames it, keeping the last one as `.old`, so every file is
    complete. A job's script exists longer than its entry in job_state, so job_state is read first.
    """
    with tarfile.open(target, mode="w:gz", compresslevel=1) as tar, as_slurm():
        names = [entry.name for entry in os.scandir(source) if entry.is_file(follow_symlinks=False)]
        for name in sorted({name.removesuffix(".old") for name in names if not name.endswith(".new")}):
            put(tar, source / name, name) or put(tar, source / f"{name}.old", name)
        for path in sorted(source.glob("hash.*/job.*/*")):
            put(tar, path, str(path.relative_to(source)))


def put(tar, path, name):
    """Add a regular file by one descriptor; return whether it exists. Slurm's state has no links and pipes."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
            return False
        raise
    with os.fdopen(descriptor, "rb") as file:
        if there := stat.S_ISREG(os.fstat(descriptor).st_mode):
            tar.addfile(tar.gettarinfo(arcname=name, fileobj=file), file)
        return there


def unpack(packed, target):
    """Unpack a state into a new directory that only Slurm's user can read.

    Slurm's user may own the parent directory and replace entries at any time. So the new directory is used by its
    descriptor, and written as that user.
    """
    target.mkdir(mode=0o700)
    place = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(place).st_uid != os.geteuid():
            raise NodeError(f"{target} was replaced by another directory")
        user = getpwnam(USER)
        os.fchown(place, user.pw_uid, user.pw_gid)
        with tarfile.open(packed, mode="r:gz") as tar, as_slurm():
            for member in tar:
                path = Path(member.name)
                if not member.isfile() or ".." in path.parts or path.is_absolute():
                    raise NodeError(f"{member.name} does not belong in Slurm's state")
                for folder in reversed(path.parents):
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(folder, 0o700, dir_fd=place)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
                with os.fdopen(os.open(path, flags, 0o600, dir_fd=place), "wb") as file:
                    shutil.copyfileobj(tar.extractfile(member), file, CHUNK)
                    os.utime(file.fileno(), (member.mtime, member.mtime))
                    os.fsync(file.fileno())
    finally:
        os.close(place)


def try_state(packed, workplace, script):
    """Start an isolated slurmctld on a state; return its jobs, id to state."""
    unpack(packed, workplace / "state")
    done = subprocess.run(
        ["sh", "-euc", script, "check", str(workplace / "state"), "/etc/slurm"],
        env={**os.environ, **ENVIRONMENT, "CHECK": script},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    shutil.rmtree(workplace / "state")
    if done.returncode:
        raise NodeError(f"slurmctld does not start on the copy of its state: {clean(done.stderr)}")
    return jobs(done.stdout)


def jobs(listed):
    """Parse lines of `id state`; the pending tasks of a job array are one line."""
    return dict(line.split() for line in listed.splitlines() if line.strip())


def release():
    """Return the version of the installed Slurm."""
    return run("slurmctld", "-V")[1].split()[-1]


# -------------------------------------------------------------------------------------------- the accounting database


def sql(statement):
    """Run a statement as the server's administrator, by standard input; return its rows."""
    argv = ["mariadb", "--batch", "--skip-column-names"]
    environment = {**os.environ, **ENVIRONMENT}
    told = subprocess.run(argv, input=statement, env=environment, capture_output=True, text=True, check=False)
    if told.returncode:
        raise NodeError(f"mariadb: {clean(told.stderr)}")
    return [line.split("\t") for line in told.stdout.splitlines()]


def tables(database):
    """Return a database's tables. Raises NodeError for a name that is not Slurm's, which could inject SQL."""
    where = f"table_schema = '{database}' AND table_type = 'BASE TABLE'"
    names = [row[0] for row in sql(f"SELECT table_name FROM information_schema.tables WHERE {where}")]  # noqa: S608
    if strange := [name for name in names if not NAME.fullmatch(name)]:
        raise NodeError(f"the database {database} has a table that is not Slurm's: {clean(strange[0], 100)}")
    return names


def counts(database):
    """Return the number of rows of each primary table of accounting."""
    names = [name for name in tables(database) if name.endswith(COUNTED)]
    if not names:
        raise NodeError(f"the database {database} has no accounting tables of Slurm")
    asked = " UNION ALL ".join(f"SELECT '{name}', COUNT(*) FROM `{database}`.`{name}`" for name in names)  # noqa: S608
    return {name: int(count) for name, count in sql(asked)}


def load(dump, database):
    """Load a dump into a new database of that name; an existing one is dropped."""
    sql(f"DROP DATABASE IF EXISTS `{database}`; CREATE DATABASE `{database}`")
    argv = ["mariadb", "--loose-sandbox", "--batch", database]  # refuse shell commands, if the client supports that
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **ENVIRONMENT},
    )
    try:
        with gzip.open(dump, "rb") as source:
            shutil.copyfileobj(source, process.stdin, CHUNK)
    except BrokenPipeError:  # the client's output has the cause
        pass
    except (EOFError, OSError) as error:
        process.kill()
        raise NodeError(f"{dump.name} cannot be read: {error}") from None
    _, said = process.communicate()
    if process.returncode:
        raise NodeError(f"the dump cannot be loaded: {clean(said.decode('utf-8', 'replace'))}")


def room(*needs):
    """Check the free space for each (directory, bytes); those on one file system are added up."""
    wanted = {}
    for place, size in needs:
        wanted.setdefault(Path(place).stat().st_dev, [place, 0])[1] += size
    for place, size in wanted.values():
        free = shutil.disk_usage(place).free
        if free < size:
            raise NodeError(f"not enough free space in {place}, got {free >> 20} MB, expected {size >> 20} MB")


def size_of(directory):
    return sum(path.stat().st_size for path in Path(directory).rglob("*") if path.is_file())


# ---------------------------------------------------------------------- the cluster's directory, and its monitoring


def label():
    """Return the label of this head's cluster: the first name in its copy of the cluster's directory."""
    try:
        with RECOVERY.open("rb") as file:
            return file.read(100).rstrip(b"\0").decode("ascii", "replace").replace("vault/", "", 1)
    except FileNotFoundError:
        return ""


def copy_directory(target):
    """Copy the head's copy of the cluster's directory, without the vault password."""
    with tarfile.open(RECOVERY, mode="r:") as kept, tarfile.open(target, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        _, *members = kept
        for member in members:
            tar.addfile(member, kept.extractfile(member))


def try_directory(copy):
    """Check that the secrets in a copy are encrypted, that the vault password decrypts them, and is not in the copy."""
    with tarfile.open(RECOVERY, mode="r:") as kept:
        password = kept.extractfile(kept.next()).read().strip()
    if password in copy.read_bytes():
        raise NodeError("the copy of the cluster's directory contains the vault password")
    with tarfile.open(copy, mode="r:") as tar:
        sealed = [tar.extractfile(member).read() for member in tar if member.name.split("/")[1:] == ["secrets.yml"]]
    if len(sealed) != 1 or not opens(sealed[0], password):
        raise NodeError("the vault password does not decrypt the secrets in the copy of the cluster's directory")


def opens(sealed, password):
    """Return whether a password is valid for a file of Ansible Vault, without decrypting the text.

    The first line has the cipher. The rest is hexadecimal, and so are the three lines in it: salt, HMAC, ciphertext.
    """
    header, _, body = sealed.partition(b"\n")
    try:
        salt, mac, text = (bytes.fromhex(part.decode()) for part in bytes.fromhex(body.decode()).split(b"\n"))
    except ValueError:
        return False
    key = hashlib.pbkdf2_hmac("sha256", password, salt, 10_000, 80)[32:64]
    return header.startswith(b"$ANSIBLE_VAULT;") and hmac.compare_digest(hmac.digest(key, text, "sha256"), mac)


def copy_monitoring(target):
    """Copy Prometheus's configuration."""
    with tarfile.open(target, mode="w", format=tarfile.PAX_FORMAT, dereference=True) as tar:
        for path in (path for pattern in CONFIGURED for path in sorted(PROMETHEUS.glob(pattern))):
            tar.add(path, str(path.relative_to(PROMETHEUS)), recursive=False)


def try_monitoring(copy, workplace):
    """Check a copy with promtool in place of the original; the result must be the same. Return the errors.

    A rule of the site may be bad. That must not prevent a backup of the queue.
    """
    place, check = workplace / "prometheus", ("promtool", "check", "config", str(PROMETHEUS / "prometheus.yml"))
    with tarfile.open(copy, mode="r:") as tar:
        for member in tar:
            (place / member.name).parent.mkdir(parents=True, exist_ok=True)
            (place / member.name).write_bytes(tar.extractfile(member).read())
    # Keys and certificates are no part of a backup: a bootstrap writes them again.
    script = 'mkdir -p "$1/tls"; mount --bind "$2/tls" "$1/tls"; mount --rbind "$1" "$2"; shift 2; exec "$@"'
    apart = ("unshare", "--mount", "sh", "-euc", script, "check", str(place), str(PROMETHEUS))
    here, there = (run(*way, *check, check=False) for way in ((), apart))
    shutil.rmtree(place)
    if here != there:
        raise NodeError(f"promtool, for the copy of Prometheus's configuration: {clean(there[1])}")
    wrong = [line.strip() for line in here[1].partition("FAILED:")[2].splitlines() if line.strip()]
    return clean("; ".join(dict.fromkeys(wrong)) or here[1]) if here[0] else ""
