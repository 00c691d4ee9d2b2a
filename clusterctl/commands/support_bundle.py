"""`support-bundle`: collect what a vendor asks for about a broken server into one archive on this machine."""

import base64
import binascii
import gzip
import io
import json
import tarfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from clusterctl.inventory.model import Host
from clusterctl.nodes import collector, contact
from clusterctl.nodes.remote import connect
from clusterctl.nodes.session import ContactError
from clusterctl.run import context, membership
from clusterctl.run.context import Options, Site
from clusterctl.util import files
from clusterctl.util.errors import HeadFailed, InputError, WorkersFailed
from clusterctl.util.text import printable
from clusterctl.util.untrusted import Malformed, decode, mapping, sequence, text
from clusterctl.workspace import hardware, secrets

FOLDER = "support"
_SECONDS = 1500.0
_MAX_REPLY = 256 << 20
_LARGEST = 128 << 20  # bytes of an uncompressed report
_NAME = r"[a-z0-9][a-z0-9.-]{0,63}"
_README = """\
Support bundle of {node}, made {time:%Y-%m-%d %H:%M:%S} UTC by clusterctl support-bundle.

Passwords and keys of the cluster are replaced by [redacted]. Read the files before you send them: they contain names,
addresses and serial numbers.

"""


@dataclass(frozen=True)
class Answer:
    """The collector's output: contents of files in base64; of each command its file, its words and how it ended."""

    files: Annotated[Mapping[str, str], mapping(text(_NAME, "a file's name"), lambda value, _: str(value), 64)]
    commands: Annotated[tuple[tuple[str, ...], ...], sequence(sequence(text(), 3), 64)]


def support_bundle(options: Options, to: Path | None) -> int:
    """Write the archive of a node, and print its path.

    Raises InputError for an unknown node, WorkersFailed or HeadFailed if the node does not respond.
    """
    site = context.load(options)
    (name,) = options.nodes
    hosts = {host.name: host for host in site.inventory.hosts}
    if name not in hosts:
        raise InputError(membership.unknown([name], list(hosts), "host"))
    directory = to.absolute() if to else site.state / FOLDER
    with files.writing(directory):
        files.make_private_directory(directory)
    site = context.authorise(site)
    screen = options.screen()
    with screen.working(f"Collecting from {name}, for up to {_SECONDS / 60:.0f} minutes"):
        answer = collect(site, hosts[name])
    made = datetime.now(UTC)
    path = directory / f"{name}-{made:%Y%m%dT%H%M%SZ}.tar.gz"
    redact = secrets.redactor(site.inventory.directory, site.access.sudo_password).redact
    record = hardware.path_of(site.inventory.directory, name)
    with files.writing(path):
        content = archive(answer, name, made, record.read_text() if record.exists() else "", redact)
        files.write_atomically(path, content)
    if options.json:
        print(
            json.dumps({"node": name, "path": str(path), "commands": [list(one) for one in answer.commands]}, indent=2)
        )
        return 0
    missing = [words.split()[0] for _, words, how in answer.commands if how == "not installed"]
    screen.say(f"{path} ({len(content) >> 10} KiB)")
    if missing:
        screen.say(f"  not installed on {name}: {', '.join(dict.fromkeys(missing))}")
    screen.say("  Read it before you send it: it contains names, addresses and serial numbers.")
    return 0


def collect(site: Site, host: Host) -> Answer:
    """Run the collector on a node."""
    failed = HeadFailed if host.is_head else WorkersFailed
    program = Path(collector.__file__).read_text(encoding="utf-8")
    try:
        with connect(host, site.access) as session:
            status, out, err = session.run(
                [contact.PYTHON, "-"], stdin=program, root=True, timeout=_SECONDS, limit=_MAX_REPLY
            )
    except ContactError as error:
        raise failed(f"{host.name}: {error}") from None
    if status:
        raise failed(f"{host.name}: the collector failed with exit code {status}: {printable(err.strip()[-200:], 200)}")
    try:
        return decode(Answer, json.loads(out))
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, Malformed) else "not JSON"
        raise failed(f"{host.name}: the collector printed invalid output: {reason}") from None


def archive(answer: Answer, node: str, made: datetime, record: str, redact: Callable[[str], str]) -> bytes:
    """Return the archive: a folder with the redacted files, a README and the node's hardware record."""
    listed = "".join(f"{name:30} {how:20} {words}\n" for name, words, how in answer.commands)
    contents = {"README.txt": redact(_README.format(node=node, time=made) + listed).encode()}
    if record:
        contents["hardware-record.json"] = redact(record).encode()
    for name, coded in answer.files.items():
        contents[name] = _redacted(name, coded, redact)
    buffer = io.BytesIO()
    folder = f"{node}-{made:%Y%m%dT%H%M%SZ}"
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mode, member.mtime = len(content), 0o600, int(made.timestamp())
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _redacted(name: str, coded: str, redact: Callable[[str], str]) -> bytes:
    """Return a file's content without secrets; of one that cannot be read, the reason."""
    try:
        content = base64.b64decode(coded, validate=True)
        if name.endswith(".gz"):
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
                plain = file.read(_LARGEST)
            return gzip.compress(redact(plain.decode(errors="replace")).encode(), mtime=0)
        return redact(content.decode(errors="replace")).encode()
    except (binascii.Error, OSError, EOFError, zlib.error) as error:
        return f"The node sent a damaged file: {printable(str(error), 200)}\n".encode()
