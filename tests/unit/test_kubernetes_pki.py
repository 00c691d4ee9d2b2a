"""The authorities and keys that all heads of a Kubernetes cluster share."""

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from clusterctl.workspace import kubernetes_pki

AUTHORITIES = ("ca", "front-proxy-ca", "etcd/ca")
FILES = kubernetes_pki.shared("a seed", "aurora")


def test_shared__of_one_secret__is_the_same_to_the_byte() -> None:
    assert kubernetes_pki.shared("a seed", "aurora") == FILES
    # What kubeadm expects of a joining head: SharedCertificateExists in cmd/kubeadm/app/phases/certs/certs.go.
    expected = {f"{name}.{end}" for name in AUTHORITIES for end in ("crt", "key")} | {"sa.key", "sa.pub"}
    assert set(FILES) == expected


def test_shared__files__have_different_keys() -> None:
    other = kubernetes_pki.shared("another seed", "aurora")
    keys = [text for files in (FILES, other) for path, text in files.items() if path.endswith(".key")]
    assert len(keys) == len(set(keys)) == 8


def test_shared__service_accounts__private_and_public_key_match() -> None:
    private, public = (
        load_pem_private_key(FILES["sa.key"].encode(), None),
        load_pem_public_key(FILES["sa.pub"].encode()),
    )
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert private.public_key().public_bytes(*form) == public.public_bytes(*form)


def leaf(authority: str, usage: x509.ObjectIdentifier) -> str:
    """Return a certificate as kubeadm issues one: another key, a name, one purpose, signed by the authority's key."""
    ca = x509.load_pem_x509_certificate(FILES[f"{authority}.crt"].encode())
    key = load_pem_private_key(FILES[f"{authority}.key"].encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    issued = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")]))
        .issuer_name(ca.subject)
        .public_key(ec.generate_private_key(ec.SECP256R1()).public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime(2026, 6, 1, tzinfo=UTC))
        .not_valid_after(datetime(2050, 6, 1, tzinfo=UTC))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("kubernetes")]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, SHA256())
    )
    return issued.public_bytes(Encoding.PEM).decode()


@pytest.mark.parametrize("authority", AUTHORITIES)
@pytest.mark.parametrize("trusted", AUTHORITIES)
def test_shared__certificate_of_one_authority__is_valid_for_it_alone(
    tmp_path: Path, authority: str, trusted: str
) -> None:
    """The front proxy's authority must not make anyone a user of the API, nor the API's a client of etcd."""
    (tmp_path / "leaf.pem").write_text(leaf(authority, ExtendedKeyUsageOID.CLIENT_AUTH))
    (tmp_path / "ca.pem").write_text(FILES[f"{trusted}.crt"])
    argv = ["openssl", "verify", "-x509_strict", "-purpose", "sslclient", "-CAfile", "ca.pem", "leaf.pem"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode == 0) is (authority == trusted), done.stderr
