"""Read and write the files of a cluster's directory, whoever sent it.

What is read are ordinary files of ordinary size; others are refused at once.

A pipe that nobody writes to would hang us, a device might act, and a link may lead to a file that is none of the
cluster's business.
"""

import contextlib
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from clusterctl.util.errors import InputError, Problem

MAX_BYTES = 1 << 20


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what cannot be written into an InputError with its path; `path` where the error names none."""
    try:
        yield
    except OSError as error:
        at = str(error.filename or path)
        raise InputError([Problem(None, at, f"cannot be written: {error.strerror}")]) from None


class UnfitError(Exception):
    """A file is not one that can be read here; the text says what it is, to stand behind its name."""


class MissingError(UnfitError):
    """There is no such file."""


def read(path: Path, limit: int = MAX_BYTES, inside: Path | None = None) -> bytes:
    """Return the content of a file of at most `limit` bytes that, links followed, lies below the directory `inside`.

    Raises UnfitError for anything else, MissingError where there is nothing.
    """
    try:
        if inside is not None and not path.resolve(strict=True).is_relative_to(inside.resolve()):
            raise UnfitError("is a link out of the cluster's directory, expected a file in it")
        _judge(path.stat(), limit)  # before it is opened: opening a device is doing something to it
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            _judge(status, limit)
            data = file.read(limit + 1) or b""
    except FileNotFoundError as error:
        raise MissingError(f"cannot be read: {error.strerror}") from None
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links; a path that no system call takes
        raise UnfitError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > limit:  # files of /proc say that they are empty
        raise UnfitError(f"is too big, expected at most {limit} bytes")
    return data


def listing(directory: Path) -> list[Path]:
    """Return what is in a directory, by name; nothing where there is none. UnfitError where it cannot be read."""
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UnfitError(f"cannot be read: {error.strerror}") from None


def discard(paths: Iterable[Path]) -> None:
    """Delete files, and the directories that this leaves empty: in host_vars/ one of nobody would be refused."""
    paths = list(paths)
    for path in paths:
        path.unlink(missing_ok=True)
    for folder in {path.parent for path in paths}:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _judge(status: os.stat_result, limit: int) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise UnfitError("is a directory, expected a file")
    if not stat.S_ISREG(status.st_mode):
        raise UnfitError("is not a regular file")
    if status.st_size > limit:
        raise UnfitError(f"is too big, got {status.st_size} bytes, expected at most {limit}")


def make_private_directory(path: Path) -> None:
    """Make a directory for its owner alone (0700 under any umask), and so the parents that are missing."""
    if not path.is_dir():
        make_private_directory(path.parent)
        path.mkdir(mode=0o700)
        path.chmod(0o700)


def write_atomically(path: Path, data: bytes, *, mode: int = 0o600, replace: bool = False) -> None:
    """Write a file of this mode, whatever the umask, whole or not at all, also through a power cut.

    Without `replace` an existing file is an error (FileExistsError), whoever made it in the meantime.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            temporary.replace(path)
        else:
            path.hardlink_to(temporary)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
