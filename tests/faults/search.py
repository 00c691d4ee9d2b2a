"""Search this machine for needles: files, what is packed in them, the journal, or every process while it lives.

Runs as root, here and on nodes, with nothing but Python 3.8. What to do comes as JSON on standard input, so that the
needles are in no argument; the answer goes to standard output as JSON.
"""

from __future__ import annotations

import contextlib
import grp
import gzip
import io
import json
import lzma
import os
import pwd
import select
import stat
import subprocess
import sys
import zipfile
from typing import Any

CHUNK = 1 << 24
PACKED = 1 << 26  # of a packed file as much is looked at


def forms(data: bytes, needles: dict[str, bytes]) -> list[str]:
    return [name for name, needle in needles.items() if needle in data]


def unpacked(head: bytes, path: str) -> bytes:
    """What a packed file has in it; of a file that is not packed, nothing."""
    with contextlib.suppress(OSError, EOFError, ValueError, lzma.LZMAError, zipfile.BadZipFile):
        if head.startswith(b"\x1f\x8b"):
            with gzip.open(path) as file:
                return file.read(PACKED)
        if head.startswith(b"\xfd7zXZ"):
            with lzma.open(path) as packed:
                return packed.read(PACKED)
        if head.startswith(b"PK\x03\x04"):
            with zipfile.ZipFile(path) as archive:
                return b"\n".join(archive.read(name) for name in archive.namelist()[:2000])
    return b""


def search_file(path: str, needles: dict[str, bytes]) -> tuple[list[str], int]:
    found: list[str] = []
    size, tail, head = 0, b"", b""
    keep = max(map(len, needles.values()))
    with contextlib.suppress(OSError), open(path, "rb") as file:  # a file may go away, or be one that cannot be read
        while True:
            chunk = file.read(CHUNK)
            if not chunk:
                break
            head = head or chunk[:8]
            found += forms(tail + chunk, needles)
            tail = chunk[-keep:]
            size += len(chunk)
        found += [f"packed: {form}" for form in forms(unpacked(head, path), needles)]
    return sorted(set(found)), size


def owner(status: os.stat_result) -> list[str]:
    user, group = str(status.st_uid), str(status.st_gid)
    with contextlib.suppress(KeyError):
        user = pwd.getpwuid(status.st_uid).pw_name
    with contextlib.suppress(KeyError):
        group = grp.getgrgid(status.st_gid).gr_name
    return [user, group, f"{stat.S_IMODE(status.st_mode):04o}"]


def search_files(asked: dict[str, Any], needles: dict[str, bytes]) -> dict[str, Any]:
    """Every file below `roots`, not below `skip`, that changed after `since`; its name counts as content.

    No /proc is looked at, wherever it is mounted: another test may build an image, and some files there never end.
    """
    skip, seen, looked, size = set(asked["skip"]), set(), 0, 0
    found: dict[str, list[Any]] = {}
    stack = list(asked["roots"])
    while stack:
        path = stack.pop()
        if path in skip or path in seen:
            continue
        seen.add(path)
        try:
            status = os.lstat(path)
            if stat.S_ISDIR(status.st_mode) and not os.path.lexists(f"{path}/self/mountinfo"):
                stack += [entry.path for entry in os.scandir(path)]
        except OSError:
            continue
        if status.st_ctime < asked["since"]:
            continue
        names = forms(os.fsencode(path), needles)
        if stat.S_ISLNK(status.st_mode):
            with contextlib.suppress(OSError):
                names += forms(os.fsencode(os.readlink(path)), needles)
        if stat.S_ISREG(status.st_mode):
            looked += 1
            content, read = search_file(path, needles)
            size += read
            names += content
        if names:
            found[path] = [*owner(status), names]
    return {"files": found, "looked": looked, "bytes": size}


def search_journal(needles: dict[str, bytes]) -> dict[str, Any]:
    """The whole journal in clear, entry by entry: in its own files long fields are compressed."""
    argv = ["journalctl", "--quiet", "--no-pager", "--all", "--output=export"]
    try:
        entries = subprocess.run(argv, stdout=subprocess.PIPE, check=True, timeout=240).stdout.split(b"\n\n")
    except FileNotFoundError:  # a controller may have none
        entries = []
    found = [(entry[-200:].decode(errors="replace"), forms(entry, needles)) for entry in entries]
    return {"journal": [entry for entry in found if entry[1]], "entries": len(entries)}


def watch_processes(needles: dict[str, bytes]) -> dict[str, Any]:
    """Arguments and environment of every process, again and again, and once more when standard input has ended."""
    found: dict[str, list[str]] = {}
    passes, last = 0, False
    print("watching", flush=True)
    while not last:
        passes += 1
        last = bool(select.select([sys.stdin], [], [], 0.02)[0])
        for pid in filter(str.isdigit, os.listdir("/proc")):
            for what in ("cmdline", "environ"):
                with contextlib.suppress(OSError), io.FileIO(f"/proc/{pid}/{what}") as file:
                    data = file.readall() or b""
                    for form in forms(data, needles):
                        program = data.split(b"\0")[0][:80].decode(errors="replace") if what == "cmdline" else ""
                        found.setdefault(f"{what} {pid} {program}".strip(), []).append(form)
    return {"processes": {key: sorted(set(names)) for key, names in found.items()}, "passes": passes}


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    needles = {name: bytes.fromhex(needle) for name, needle in asked["needles"].items()}
    answer: dict[str, Any] = {}
    if asked.get("roots"):
        answer.update(search_files(asked, needles))
    if asked.get("journal"):
        answer.update(search_journal(needles))
    if asked.get("processes"):
        answer.update(watch_processes(needles))
    print(json.dumps(answer))


main()
