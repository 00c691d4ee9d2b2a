"""Read and write the files of a cluster's directory, whose content is not trusted.

Only regular files of limited size are read.

A pipe without a writer would block, opening a device can have side effects, and a link may lead out of the cluster's
directory.
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
    """Turn an OSError into an InputError with the error's path, or `path` if it has none."""
    try:
        yield
    except OSError as error:
        at = str(error.filename or path)
        raise InputError([Problem(None, at, f"cannot be written: {error.strerror}")]) from None


class UnfitError(Exception):
    """A file cannot be read; the text continues a sentence that begins with the file's name."""


class MissingError(UnfitError):
    """The file does not exist."""


def read(path: Path, limit: int = MAX_BYTES, inside: Path | None = None) -> bytes:
    """Return the content of a file of at most `limit` bytes. With links resolved, it must be below `inside`.

    Raises UnfitError otherwise, MissingError if there is no file.
    """
    try:
        if inside is not None and not path.resolve(strict=True).is_relative_to(inside.resolve()):
            raise UnfitError("is a link out of the cluster's directory, expected a file in it")
        _check(path.stat(), limit)  # before it is opened: opening a device can have side effects
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            _check(status, limit)
            data = file.read(limit + 1) or b""
    except FileNotFoundError as error:
        raise MissingError(f"cannot be read: {error.strerror}") from None
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links; a path that no system call accepts
        raise UnfitError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > limit:  # files of /proc have the size 0
        raise UnfitError(f"is too big, expected at most {limit} bytes")
    return data


def listing(directory: Path) -> list[Path]:
    """Return the sorted entries of a directory, empty if it does not exist. Raises UnfitError."""
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UnfitError(f"cannot be read: {error.strerror}") from None


def discard(paths: Iterable[Path]) -> None:
    """Delete files, and then empty directories: one in host_vars/ without a host would be refused."""
    paths = list(paths)
    for path in paths:
        path.unlink(missing_ok=True)
    for folder in {path.parent for path in paths}:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _check(status: os.stat_result, limit: int) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise UnfitError("is a directory, expected a file")
    if not stat.S_ISREG(status.st_mode):
        raise UnfitError("is not a regular file")
    if status.st_size > limit:
        raise UnfitError(f"is too big, got {status.st_size} bytes, expected at most {limit}")


def make_private_directory(path: Path) -> None:
    """Make a directory, and its missing parents, with mode 0700 under any umask."""
    if not path.is_dir():
        make_private_directory(path.parent)
        path.mkdir(mode=0o700)
        path.chmod(0o700)


def write_atomically(path: Path, data: bytes, *, mode: int = 0o600, replace: bool = False) -> None:
    """Write a file atomically and durably, with this mode under any umask.

    Without `replace` an existing file raises FileExistsError, also one made in the meantime.
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
