"""Which keys of package sources a node trusts: the one whose fingerprint is stated, alone and whole."""

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tests.unit.test_node_state  # noqa: F401 - lets the modules of the nodes be found
from tests.unit.test_role_plugins import plugin

KEYS = plugin("module_utils/node_state/keys")

# EPEL's key, and its fingerprint as Fedora's page of keys shows it.
EPEL = Path(__file__).with_name("epel-9.asc").read_text()
EPEL_PRINT = "FF8AD1344597106ECE813B918A3872BF3228467C"
# The body of a version 4 key packet: version, time, algorithm 22, and three bytes in place of the key.
BODY = b"\4\0\0\0\1\x16key"
KEY = b"\xc6" + bytes([len(BODY)]) + BODY
OTHER = b"\xc6" + bytes([len(BODY)]) + BODY[:-1] + b"!"
NAME, SUBKEY, SECRET = (bytes([0xC0 | tag, 3]) + b"abc" for tag in (13, 14, 5))


def armored(packets: bytes) -> str:
    text = base64.b64encode(packets).decode()
    return f"-----BEGIN PGP PUBLIC KEY BLOCK-----\nComment: x\n\n{text}\n=abcd\n-----END PGP PUBLIC KEY BLOCK-----\n"


def test_a_key_has_the_fingerprint_that_its_owner_publishes() -> None:
    assert KEYS.fingerprint(EPEL) == EPEL_PRINT


def test_a_key_has_one_fingerprint_in_whatever_form() -> None:
    old = b"\x98" + KEY[1:]
    long = b"\xc6\xff" + len(BODY).to_bytes(4, "big") + BODY
    wanted = KEYS.fingerprint(armored(KEY))
    assert len(wanted) == 40
    for form in (old, long, KEY + NAME + SUBKEY):
        assert KEYS.fingerprint(armored(form)) == wanted
        assert KEYS.fingerprint(armored(form).replace("\n", "\r\n")) == wanted


@pytest.mark.proves("packages", "A key counts only if it is one whole key, alone.")
@pytest.mark.parametrize(
    "text",
    [
        "", "<html>", armored(b""), armored(KEY[:-1]), armored(SUBKEY), armored(KEY + OTHER), armored(KEY + SECRET),
        armored(KEY) + armored(OTHER), f"see below\n{armored(KEY)}", armored(KEY + b"\xcd\xe1abc"),
        armored(KEY + b"\xb7abc"), armored(b"\xc6\4\5abc"), armored(KEY).replace("\n=abcd", "=\nAAAA\n=abcd"),
    ],
    ids=[
        "nothing", "a page", "empty", "cut", "no key", "another key", "a secret", "another block", "text before",
        "a part", "no length", "another version", "more after the end",
    ],
)  # fmt: skip
def test_what_is_not_one_key_alone_has_no_fingerprint(text: str) -> None:
    assert KEYS.fingerprint(text) == ""


@given(st.binary(max_size=64))
def test_whatever_comes_is_judged(data: bytes) -> None:
    assert len(KEYS.fingerprint(armored(data))) in (0, 40)


class Manager:
    """A package manager that brings this text."""

    def __init__(self, text: str) -> None:
        self.text, self.asked = text, 0

    def download(self, url: str, path: str) -> None:
        self.asked += 1
        Path(path).write_text(self.text)


def keyed(path: Path, wanted: str, manager: Manager, check: bool = False) -> str:
    """The key that a node would have."""
    item = {"name": str(path), "url": "https://x", "fingerprint": wanted}
    return base64.b64decode(KEYS.with_key(item, manager, check)["data"]).decode()


def test_a_key_is_fetched_once_and_again_when_another_is_wanted(tmp_path: Path) -> None:
    path, first, second = tmp_path / "key.asc", Manager(EPEL), Manager(armored(OTHER))
    for _ in range(2):
        path.write_text(keyed(path, EPEL_PRINT, first))
        assert path.read_text() == EPEL
    assert keyed(path, KEYS.fingerprint(armored(OTHER)), second) == armored(OTHER)
    assert (first.asked, second.asked) == (1, 1)


@pytest.mark.proves("packages", "A key with another fingerprint is refused.")
@pytest.mark.parametrize(
    ("text", "told"), [(armored(KEY), "got a key with the fingerprint [0-9A-F]{40}"), ("<html>", "got no single key")]
)
def test_another_key_is_refused(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(KEYS.NodeError, match=rf"^https://x: {told}, expected {EPEL_PRINT}; nothing is installed"):
        keyed(tmp_path / "key.asc", EPEL_PRINT, Manager(text))


@pytest.mark.proves("packages", "A renewed key is fetched again only for the source that failed.")
def test_a_key_that_its_owner_has_renewed_is_fetched_again_where_its_source_is_told_of(tmp_path: Path) -> None:
    old, new = armored(KEY), armored(KEY + SUBKEY)
    wanted = KEYS.fingerprint(old)
    for name in ("a", "b"):
        (tmp_path / f"{name}.asc").write_text(old)
        lines = [
            f"# Key: https://{name}/key {wanted}",
            f"URIs: https://{name}/deb/",
            f"Signed-By: {tmp_path}/{name}.asc",
        ]
        (tmp_path / f"{name}.sources").write_text("\n".join(["Types: deb", *lines, ""]))
    told = "W: GPG error: https://a/deb ./ InRelease: EXPKEYSIG 0123"
    assert not KEYS.renewed(told, Manager(old), str(tmp_path))
    assert not KEYS.renewed(told, Manager(armored(OTHER)), str(tmp_path))
    manager = Manager(new)
    assert KEYS.renewed(told, manager, str(tmp_path))
    assert [(tmp_path / f"{name}.asc").read_text() for name in ("a", "b")] == [new, old]
    assert not KEYS.renewed(told, manager, str(tmp_path))
    assert manager.asked == 2


def test_a_dry_run_fetches_nothing(tmp_path: Path) -> None:
    manager = Manager(EPEL)
    assert keyed(tmp_path / "key.asc", EPEL_PRINT, manager, check=True) == ""
    assert manager.asked == 0
