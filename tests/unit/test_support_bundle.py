"""`support-bundle`: what is in the archive, and what never is."""

import base64
import gzip
import io
import json
import subprocess
import sys
import tarfile
from datetime import UTC, datetime
from typing import Any

import pytest

from clusterctl.commands import support_bundle
from clusterctl.commands.support_bundle import Answer
from clusterctl.nodes import collector
from clusterctl.util.redaction import Redactor
from clusterctl.util.untrusted import Malformed, decode

SECRET = "c2VjcmV0LW9mLXRoZS1jbHVzdGVy"
MADE = datetime(2026, 11, 27, 2, 30, tzinfo=UTC)


def coded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def opened(**files: str) -> dict[str, bytes]:
    """Return the archive of these files, in base64, by name without the folder."""
    answer = Answer(files, (("pci.txt", "lspci -nnvvv", "not installed"),))
    content = support_bundle.archive(answer, "gpu01", MADE, '{"gpus": []}', Redactor([SECRET]).redact)
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        assert {member.name.split("/")[0] for member in tar} == {"gpu01-20261127T023000Z"}
        assert {member.mode for member in tar} == {0o600}
        return {member.name.partition("/")[2]: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


@pytest.mark.proves("health", "A support bundle has no secret of the cluster, also inside compressed reports.")
def test_archive__of_files_with_a_secret__has_them_without_it() -> None:
    text = f"GPU 0: serial 1234\nkey={SECRET}\n".encode()
    found = opened(**{"a.txt": coded(text), "b.log.gz": coded(gzip.compress(text))})
    assert found["a.txt"] == b"GPU 0: serial 1234\nkey=[redacted]\n"
    assert gzip.decompress(found["b.log.gz"]) == found["a.txt"]
    assert found["hardware-record.json"] == b'{"gpus": []}'
    assert b"pci.txt" in found["README.txt"]
    assert b"not installed" in found["README.txt"]


@pytest.mark.parametrize(
    "content",
    ["no base64!", coded(b"no gzip"), coded(gzip.compress(b"cut", mtime=0)[:-6])],
    ids=["no base64", "no gzip", "cut"],
)
def test_archive__of_a_damaged_report__says_so(content: str) -> None:
    assert opened(**{"b.log.gz": content})["b.log.gz"].startswith(b"The node sent a damaged file: ")


@pytest.mark.parametrize(
    "answer",
    [
        {"files": {"../../etc/passwd": ""}, "commands": []},
        {"files": {"/etc/passwd": ""}, "commands": []},
        {"files": {"..": ""}, "commands": []},
        {"files": [], "commands": []},
        {"files": {}, "commands": [[1]]},
        [],
    ],
)
def test_answer__of_another_form__is_refused(answer: Any) -> None:
    with pytest.raises(Malformed):
        decode(Answer, answer)


def test_collector__on_this_machine__prints_what_is_understood() -> None:
    source = subprocess.run(["cat", collector.__file__], capture_output=True, check=True, timeout=30).stdout
    done = subprocess.run([sys.executable, "-"], input=source, capture_output=True, check=True, timeout=300)
    answer = decode(Answer, json.loads(done.stdout))
    assert {name for name, _, _ in answer.commands} == {*collector.COMMANDS, "nvidia-bug-report.log.gz"}
    assert b"Linux" in base64.b64decode(answer.files["system.txt"])


def test_run__of_what_does_not_end_or_is_missing__goes_on() -> None:
    assert collector.run(["no-such-program"], 1) == ("not installed", b"")
    assert collector.run(["sh", "-c", "echo begun; sleep 60"], 0.5) == ("no end within 0.5 s", b"begun\n")
    assert collector.run(["sh", "-c", "echo wrong >&2; exit 3"], 5) == ("exit code 3", b"wrong\n")
