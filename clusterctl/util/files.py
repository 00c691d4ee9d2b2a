"""Read the files of a cluster's directory, whoever sent it: ordinary files of ordinary size, or refused at once.

A pipe that nobody writes to would hang us, a device might act, and a link may lead to a file that is none of the
cluster's business.
"""

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

MAX_BYTES = 1 << 20


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
