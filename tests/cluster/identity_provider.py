"""An OpenID Connect provider for tests: an HTTPS server with its discovery document and one key, and signed tokens."""

import base64
import ipaddress
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

PORT = 8443
CLIENT = "kubernetes"
_SERVE = f"""
import functools, http.server, ssl, sys
folder, address = sys.argv[1:]
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder + "/pages")
server = http.server.ThreadingHTTPServer((address, {PORT}), handler)
context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
context.load_cert_chain(folder + "/certificate.pem", folder + "/key.pem")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""


def encoded(data: bytes) -> str:
    """Return base64url without padding, as JSON Web Tokens have it (RFC 7515)."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Provider:
    """The provider's files below a folder; its key signs the tokens and its own certificate."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder, self.issuer = folder, f"https://{address}:{PORT}"
        self.serve = ("-c", _SERVE, str(folder), address)
        """Arguments of Python for the server."""
        self._key = rsa.generate_private_key(65537, 2048)
        self.certificate = self._certificate(address)
        numbers = self._key.public_key().public_numbers()
        fields = {
            name: encoded(number.to_bytes((number.bit_length() + 7) // 8, "big"))
            for name, number in (("n", numbers.n), ("e", numbers.e))
        }
        pages = {
            ".well-known/openid-configuration": {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys"},
            "keys": {"keys": [{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "1", **fields}]},
        }
        for name, content in pages.items():
            path = folder / "pages" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content))
        (folder / "certificate.pem").write_text(self.certificate)
        secret = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        (folder / "key.pem").write_bytes(self._key.private_bytes(*secret))

    def token(self, subject: str, **claims: object) -> str:
        """Return a token of a person, valid for ten minutes."""
        now = int(time.time())
        body = {"iss": self.issuer, "aud": CLIENT, "sub": subject, "iat": now, "exp": now + 600, **claims}
        parts = [encoded(json.dumps(part).encode()) for part in ({"alg": "RS256", "kid": "1"}, body)]
        signature = self._key.sign(".".join(parts).encode(), padding.PKCS1v15(), hashes.SHA256())
        return ".".join([*parts, encoded(signature)])

    def _certificate(self, address: str) -> str:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "identity provider")])
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder(name, name, self._key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM).decode()
