"""Derive the SSH host key of a cluster's login nodes from one secret.

All login nodes of a cluster have the same key, also after they are reinstalled: users reach them by one name. The same
secret always gives the same files, byte for byte, so that a second run changes nothing.
"""

import base64
import struct

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

SECRET = "login_host_key_seed"  # noqa: S105 - the name of the secret
TYPE = "ssh-ed25519"
_BLOCK = 8  # bytes, of the cipher `none`
_WIDTH = 70  # characters of a line, as OpenSSH writes them


def public(secret: str) -> str:
    """Return the public key as in a line of known_hosts, after the host's name."""
    return f"{TYPE} {base64.b64encode(_public_blob(_key(secret))).decode()}"


def private(secret: str) -> str:
    """Return the private key in OpenSSH's format (PROTOCOL.key), which has no other for this type in all releases.

    The library's own writer puts a random number into it.
    """
    key = _key(secret)
    numbers = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    both = key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption()) + numbers
    check = numbers[:4]  # twice; a reader of an encrypted key compares the two
    inner = check * 2 + _string(TYPE.encode()) + _string(numbers) + _string(both) + _string(b"login")
    inner += bytes(range(1, 1 + -len(inner) % _BLOCK))
    blob = b"openssh-key-v1\0" + _string(b"none") * 2 + _string(b"") + struct.pack(">I", 1)
    text = base64.b64encode(blob + _string(_public_blob(key)) + _string(inner)).decode()
    lines = [text[start : start + _WIDTH] for start in range(0, len(text), _WIDTH)]
    return "\n".join(["-----BEGIN OPENSSH PRIVATE KEY-----", *lines, "-----END OPENSSH PRIVATE KEY-----", ""])


def _key(secret: str) -> Ed25519PrivateKey:
    derived = HKDF(SHA256(), 32, salt=None, info=b"SSH host key of login nodes").derive(secret.encode())
    return Ed25519PrivateKey.from_private_bytes(derived)


def _public_blob(key: Ed25519PrivateKey) -> bytes:
    return _string(TYPE.encode()) + _string(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))


def _string(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content
