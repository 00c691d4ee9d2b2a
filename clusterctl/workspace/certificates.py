"""Derive the cluster's certificate authority and its certificates from one secret.

The same secret and host always give the same certificate, byte for byte: keys are derived from the secret (HKDF, RFC
5869) and signatures are deterministic (RFC 6979). So no certificate has to be stored, and a second run changes nothing.
"""

import hashlib
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_CURVE = ec.SECP256R1()
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of the curve (FIPS 186-5, P-256)
_AUTHORITY = "certificate authority"
# Fixed dates: the date of a run would change the certificate. Certificates are replaced with their secret.
_BEGIN, _END = datetime(2026, 1, 1, tzinfo=UTC), datetime(2056, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Certificate:
    """A certificate and its private key, both as PEM."""

    certificate: str
    key: str


def authority(secret: str, cluster: str) -> str:
    """Return the authority's certificate as PEM."""
    return _pem(_authority(secret, cluster))


def authority_for(secret: str, cluster: str, purpose: str) -> Certificate:
    """Return a separate authority for one purpose, with its key: its certificates are not valid for another purpose."""
    key = _key(secret, f"{purpose} {_AUTHORITY}")
    return Certificate(_pem(_self_signed(key, f"{cluster} {purpose}")), _private(key))


def key_pair(secret: str, purpose: str) -> tuple[str, str]:
    """Return a key without a certificate as PEM: the private and the public key."""
    key = _key(secret, purpose)
    return _private(key), key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def issue(secret: str, cluster: str, host: str, addresses: Iterable[str]) -> Certificate:
    """Return the server certificate of `host` for its name and these addresses (host names or IP addresses)."""
    names = [_name(address) for address in dict.fromkeys([host, *addresses])]
    signer = _Signer(_authority(secret, cluster), _key(secret, _AUTHORITY))
    return signer.sign(_key(secret, f"host {host}"), host, ExtendedKeyUsageOID.SERVER_AUTH, names)


def issue_client(secret: str, cluster: str, purpose: str, user: str) -> Certificate:
    """Return the client certificate of a user, by the authority for one purpose."""
    key = _key(secret, f"{purpose} {_AUTHORITY}")
    signer = _Signer(_self_signed(key, f"{cluster} {purpose}"), key)
    return signer.sign(_key(secret, f"{purpose} user {user}"), user, ExtendedKeyUsageOID.CLIENT_AUTH)


@dataclass(frozen=True)
class _Signer:
    """An authority that issues certificates."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def sign(
        self,
        key: ec.EllipticCurvePrivateKey,
        subject: str,
        usage: x509.ObjectIdentifier,
        names: Sequence[x509.GeneralName] = (),
    ) -> Certificate:
        builder = _builder(key, subject, self.certificate.subject, names)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = (
            builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .sign(self.key, SHA256(), ecdsa_deterministic=True)
        )
        return Certificate(_pem(certificate), _private(key))


def _authority(secret: str, cluster: str) -> x509.Certificate:
    return _self_signed(_key(secret, _AUTHORITY), cluster)


def _self_signed(key: ec.EllipticCurvePrivateKey, owner: str) -> x509.Certificate:
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    # The digits distinguish the authority of a new secret from the old one.
    name = f"{owner} {identifier.digest.hex()[:8]}"
    return (
        _builder(key, name, _subject(name))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, SHA256(), ecdsa_deterministic=True)
    )


def _key(secret: str, purpose: str) -> ec.EllipticCurvePrivateKey:
    # 48 bytes modulo the order, so that the bias is negligible (FIPS 186-5, A.2.1).
    derived = HKDF(SHA256(), 48, salt=None, info=f"clusterctl {purpose}".encode()).derive(secret.encode())
    return ec.derive_private_key(int.from_bytes(derived) % (_ORDER - 1) + 1, _CURVE)


def _builder(
    key: ec.EllipticCurvePrivateKey, name: str, issuer: x509.Name, names: Iterable[x509.GeneralName] = ()
) -> x509.CertificateBuilder:
    public = key.public_key()
    identifier = x509.SubjectKeyIdentifier.from_public_key(public).digest
    # Serial numbers of an authority must be unique (RFC 5280, 4.1.2.2; Firefox refuses a duplicate).
    serial = hashlib.sha256(identifier + repr(list(names)).encode()).digest()[:19]
    builder = x509.CertificateBuilder().subject_name(_subject(name)).issuer_name(issuer).public_key(public)
    return builder.serial_number(int.from_bytes(serial)).not_valid_before(_BEGIN).not_valid_after(_END)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])  # RFC 5280: at most 64 characters


def _name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _usage(**given: bool) -> x509.KeyUsage:
    names = (
        "digital_signature content_commitment key_encipherment data_encipherment key_agreement key_cert_sign crl_sign"
    )
    none = dict.fromkeys([*names.split(), "encipher_only", "decipher_only"], False)
    return x509.KeyUsage(**{**none, **given})


def _private(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()
