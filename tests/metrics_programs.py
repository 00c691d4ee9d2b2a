"""Debian's Prometheus and exporters with the files of the roles below a folder and the command lines of the units.

scripts/prepare unpacks them below .cache.
"""

import http.client
import re
import shlex
import socket
import ssl
import subprocess
import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bcrypt

from tests.labs import REPOSITORY
from tests.systems.rendering import SECRET, Cluster

PROGRAMS = REPOSITORY / ".cache/programs/usr/bin"
SECONDS = 60
HASH = bcrypt.hashpw(SECRET.encode(), bcrypt.gensalt(4)).decode()


def free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


class Node:
    """A host whose files are below a folder; programs run there with the command lines of the units."""

    def __init__(self, cluster: Cluster, name: str, folder: Path) -> None:
        self.cluster, self.name, self.folder = cluster, name, folder
        self.running: list[subprocess.Popen[bytes]] = []

    def install(self, role_name: str) -> None:
        """Write the files of a role."""
        role = self.cluster.role(role_name, self.name)
        for _, given in role.calls(lambda path: path.name == "main.yml"):
            for item in given.get("directories", []):
                self.path(item["path"]).mkdir(parents=True, exist_ok=True)
            for item in given["files"]:
                content = role.content(item)
                if content is not None:
                    place = self.path(item["dest"])
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_text(self.moved(content.decode()))
                    place.chmod(0o700)

    def path(self, path: str) -> Path:
        return self.folder / path.lstrip("/")

    def moved(self, text: str) -> str:
        """Return a text with the paths below the folder; a hash of a password is a real one."""
        text = text.replace(f"admin: {SECRET}", f"admin: {HASH}")
        text = re.sub(r"(?<![\w/.])/(etc|var|usr/local)/", rf"{self.folder}/\1/", text)
        return re.sub(r"(?<![\w/.])/usr/bin/(prometheus[\w-]*)", rf"{PROGRAMS}/\1", text)

    def start(self, unit: str, *options: str) -> None:
        drop_in = self.path(f"/etc/systemd/system/{unit}.service.d/clusterctl.conf").read_text()
        (command,) = re.findall(r"(?m)^ExecStart=((?:.*\\\n)*.+)$", drop_in)
        argv = shlex.split(command.replace("\\\n", " ").replace("$$", "$"))
        self.run([*argv, *options])

    def run(self, argv: list[str]) -> None:
        with open(self.folder / f"{len(self.running)}.log", "wb") as log:
            self.running.append(subprocess.Popen(argv, stdout=log, stderr=log, cwd=self.folder))

    def stop(self) -> None:
        for program in self.running:
            program.terminate()
        for program in self.running:
            program.wait(SECONDS)


def ask(address: str, port: int, path: str, authority: Path, client: tuple[Path, Path] | None = None) -> bytes:
    """Return what a server says. Raises OSError, also for HTTP errors."""
    context = ssl.create_default_context(cafile=authority)
    if client:
        context.load_cert_chain(*client)
    connection = http.client.HTTPSConnection(address, port, timeout=10, context=context)
    login = b64encode(f"admin:{SECRET}".encode()).decode()
    connection.request("GET", path, headers={"Authorization": f"Basic {login}"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    if answer.status != 200:
        raise OSError(f"HTTP {answer.status}: {body[:200]!r}")
    return body


def wait_for(question: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """Return the answer when it is not empty; the last error or answer is in the failure."""
    deadline, last = time.monotonic() + seconds, None
    while time.monotonic() < deadline:
        try:
            if last := question():
                return last
        except (OSError, http.client.HTTPException) as error:
            last = error
        time.sleep(0.2)
    raise AssertionError(f"no answer in {seconds} s: {last!r}")
