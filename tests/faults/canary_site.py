"""A lab whose secrets are canaries, a controller user of its own, and the eyes that look where they show."""

import contextlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.util import files, paths
from clusterctl.workspace import secrets
from tests.cluster.lab import TestLab
from tests.faults.canary import Canaries
from tests.faults.injury import container

RUN_LIMIT = 600.0
"""Seconds for a run: a first one with -vvv, beside a process that reads /proc without pause. A hang, no measurement."""
SEARCH_LIMIT = 300.0
SEARCH = Path(__file__).with_name("search.py")
# What a node consists of besides: its kernel's file systems, and what packages bring and nothing writes to.
NOT_LOOKED_AT = ["/proc", "/sys", "/dev", *(f"/usr/{name}" for name in ("bin", "include", "lib", "sbin", "share"))]
NOT_LOOKED_AT += ["/run/lab-node"]  # a second /proc and /sys, by which containers may be made within a node

# One who needs a password for sudo. The tests themselves log in as the lab's own administrator.
OPERATOR = """
useradd --create-home --shell /bin/bash ops
chpasswd
cp -r ~admin/.ssh ~ops/.ssh
chown -R ops:ops ~ops/.ssh
echo 'ops ALL=(ALL) ALL' > /etc/sudoers.d/ops
"""


@dataclass
class Run:
    """A finished command, and all that it said."""

    code: int
    out: str
    err: str
    directory: Path | None
    processes: dict[str, Any]

    @property
    def text(self) -> str:
        return self.out + self.err


@dataclass
class Site:
    """`private` holds the user's home, temporary files, and what commands print."""

    lab: TestLab
    private: Path
    canaries: Canaries
    runs: int = 0
    searched: float = field(default_factory=time.time)  # what changed before was seen
    environment: dict[str, str] = field(default_factory=dict)

    @classmethod
    def make(cls, lab: TestLab, private: Path) -> "Site":
        """Give the lab its secrets before anything else does, with Ansible's own tool."""
        site = cls(lab, private, Canaries.hatch(f"{lab.name}-0ca0a41e", secrets._declared(paths.content())))
        for name in ("home", "tmp", "out"):
            (private / name).mkdir(mode=0o700)
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
        site.environment = kept | {"HOME": str(private / "home"), "TMPDIR": str(private / "tmp")}
        files.make_private_directory(site.vault.parent)
        files.write_atomically(site.vault, site.canaries.password.encode() + b"\n")
        files.write_atomically(site.secrets, site.canaries.document().encode())
        argv = ["ansible-vault", "encrypt", "--vault-id", f"{site.vault.name}@{site.vault}", str(site.secrets)]
        subprocess.run(argv, env=site.environment, check=True, capture_output=True, timeout=60)
        files.write_atomically(site.sudo_password, site.canaries.sudo_password.encode() + b"\n")
        for node in lab.nodes:
            lab.ssh(node, "sudo", "sh", "-euc", shlex.quote(OPERATOR), stdin=f"ops:{site.canaries.sudo_password}\n")
        text = lab.inventory.read_text()
        assert "ansible_user: admin\n" in text
        lab.inventory.write_text(text.replace("ansible_user: admin\n", "ansible_user: ops\n"))
        return site

    @property
    def cluster(self) -> Path:
        return self.lab.inventory.parent

    @property
    def secrets(self) -> Path:
        return self.cluster / secrets.FILE

    @property
    def vault(self) -> Path:
        return self.private / "home/.config/clusterctl/vault" / self.canaries.label

    @property
    def sudo_password(self) -> Path:
        return self.private / "home/sudo-password"

    def latest(self) -> Path | None:
        return max((self.cluster / ".clusterctl/runs").glob("*"), default=None)

    def run(
        self, *argv: str, meanwhile: Callable[["subprocess.Popen[bytes]"], None] | None = None, umask: int = -1
    ) -> Run:
        """Run a verb on the cluster with all processes under watch; `meanwhile` may do something to it."""
        self.runs += 1
        before = self.latest()
        verb, *options = argv
        says = self.private / "out" / f"{self.runs}-{verb}"
        command = ["clusterctl", "-vvv", *verb.split(), str(self.lab.inventory), *options]
        command += ["--become-password-file", str(self.sudo_password)] * (verb not in ("trust", "logs"))
        with open(f"{says}.out", "wb") as out, open(f"{says}.err", "wb") as err, self.watching() as processes:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=self.environment, umask=umask
            )
            try:
                if meanwhile:
                    meanwhile(process)
                process.wait(RUN_LIMIT)
            finally:
                process.kill()
                process.wait()
        out_text, err_text = (Path(f"{says}.{name}").read_text(errors="replace") for name in ("out", "err"))
        latest = self.latest()
        return Run(process.returncode, out_text, err_text, latest if latest != before else None, processes)

    def when(self, word: str) -> Callable[["subprocess.Popen[bytes]"], None]:
        """Return what waits until the next run has this word in its events. It fails when that run ends without it."""
        before = self.latest()

        def is_there() -> bool:
            latest = self.latest()
            with contextlib.suppress(FileNotFoundError):
                return latest is not None and latest != before and word in (latest / "events.jsonl").read_text()
            return False

        def wait(process: "subprocess.Popen[bytes]") -> None:
            deadline = time.monotonic() + RUN_LIMIT
            while not is_there():
                assert process.poll() is None or is_there(), f"the run ended with {process.returncode}, without {word}"
                assert time.monotonic() < deadline, f"the run has not come to {word}"
                time.sleep(0.05)

        return wait

    # Looking

    def _asked(self, **what: Any) -> str:
        needles = {name: needle.hex() for name, needle in self.canaries.needles().items()}
        return json.dumps({"needles": needles, "skip": NOT_LOOKED_AT, "since": 0, **what}) + "\n"

    def here(self, since: float) -> dict[str, Any]:
        """Search all that a run may write to on the controller."""
        roots = [self.cluster, self.private, *(Path.home() / name for name in (".ansible", ".config", ".ssh"))]
        mine = self._search([sys.executable, str(SEARCH)], roots=[str(path) for path in roots], since=since)
        shared = ["/tmp", "/var/tmp", "/var/log", "/run", "/dev/shm"]
        skip = [*NOT_LOOKED_AT, str(self.private)]
        theirs = self._search([sys.executable, str(SEARCH)], roots=shared, skip=skip, since=since, journal=True)
        return {**theirs, "files": mine["files"] | theirs["files"], "looked": mine["looked"] + theirs["looked"]}

    def there(self, node: str, since: float = 0) -> dict[str, Any]:
        """Search a whole node, and its journal; also one that left the cluster, whose host key is forgotten."""
        argv = ["podman", "exec", "--interactive", container(self.lab, node), "python3", "-c", SEARCH.read_text()]
        return self._search(argv, roots=["/"], since=since, journal=True)

    def _search(self, argv: list[str], **what: Any) -> dict[str, Any]:
        done = subprocess.run(
            argv, input=self._asked(**what), capture_output=True, text=True, check=False, timeout=SEARCH_LIMIT
        )
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    @contextlib.contextmanager
    def watching(self) -> Iterator[dict[str, Any]]:
        """Watch every process of this machine, and so of the nodes, whose containers run on it."""
        process = subprocess.Popen(
            [sys.executable, str(SEARCH)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdin
        assert process.stdout
        process.stdin.write(self._asked(processes=True))
        process.stdin.flush()
        assert process.stdout.readline() == "watching\n"
        found: dict[str, Any] = {}
        try:
            yield found
        finally:
            found.update(json.loads(process.communicate("", timeout=SEARCH_LIMIT)[0]))
