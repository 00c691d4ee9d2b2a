"""Run commands where no network is: in a network namespace that has a loopback interface alone, and count its packets.

The whole of 10.0.0.0/8 is local there, so that whoever tries to reach a node of a test's inventory sends packets that
are counted, and is refused. Run as a program (`python -m tests.unit.arena`) it is what goes on inside.
"""

import fcntl
import json
import os
import re
import shlex
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

_HANG_SECONDS = 60  # a guard, not a measurement
_SIOCSIFFLAGS, _SIOCSIFADDR, _IFF_UP = 0x8914, 0x8916, 1

# Root, too, is to be refused what it has no permission for.
_ORDINARY = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")


@dataclass(frozen=True)
class Start:
    """One start of a program: its arguments, where, and its whole environment."""

    argv: tuple[str, ...]
    cwd: str
    environment: Mapping[str, str]


@dataclass(frozen=True)
class End:
    """What became of a start; `code` is None where it had to be killed because it hung."""

    code: int | None
    out: str
    err: str


def run(starts: Sequence[Start]) -> tuple[list[End], int]:
    """Run all of them, two at a time; return what became of each, and how many packets were sent meanwhile."""
    alone = ("unshare", "--net") if os.geteuid() == 0 else ("unshare", "--net", "--user", "--map-root-user")
    done = subprocess.run(
        [*alone, *_ORDINARY, sys.executable, "-m", __name__],
        cwd=Path(__file__).parents[2],
        input=json.dumps([asdict(start) for start in starts]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=_HANG_SECONDS * (len(starts) + 1),
    )
    answer = json.loads(done.stdout)
    return [End(**end) for end in answer["ends"]], answer["packets"]


def _one(start: Start) -> End:
    try:
        done = subprocess.run(
            start.argv,
            cwd=start.cwd,
            env=dict(start.environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_HANG_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return End(None, "", f"hung: {shlex.join(map(str, error.cmd))}")
    return End(done.returncode, *(text.decode(errors="backslashreplace") for text in (done.stdout, done.stderr)))


def _open_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))
        for name, address in ((b"lo", "127.0.0.1"), (b"lo:1", "10.0.0.1")):  # class A networks, both of them
            ours = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
            fcntl.ioctl(any_socket, _SIOCSIFADDR, struct.pack("16s16s", name, ours))


def _packets() -> int:
    found = re.search(r"^\s*lo:((?:\s+\d+)+)$", Path("/proc/net/dev").read_text(), re.MULTILINE)
    assert found
    return int(found[1].split()[9])


def _main() -> None:
    _open_loopback()
    before = _packets()
    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(_one, [Start(**start) for start in json.load(sys.stdin)]))
    json.dump({"ends": [asdict(end) for end in ends], "packets": _packets() - before}, sys.stdout)


if __name__ == "__main__":
    _main()
