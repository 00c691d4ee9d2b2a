"""The cluster's certificate authority: the same from the same secret, and verified by a program that is not ours."""

import hashlib
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError
from ansible.plugins.loader import filter_loader
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from clusterctl.util import paths
from clusterctl.workspace import certificates

SEED = "3pWS9J0e2Xb1"
ADDRESSES = ["10.0.0.10", "fd00::10", "head.example.org"]


def test_issue__the_same_again__is_the_same_to_the_byte() -> None:
    first, second = (certificates.issue(SEED, "aurora", "head1", ADDRESSES) for _ in range(2))
    assert first == second
    assert certificates.authority(SEED, "aurora") == certificates.authority(SEED, "aurora")


def test_issue__of_a_known_secret__is_what_earlier_releases_issued() -> None:
    """Another result would replace the certificates of every cluster at its next bootstrap."""
    text = certificates.authority(SEED, "aurora") + certificates.issue(SEED, "aurora", "head1", ["10.0.0.10"]).key
    expected = "5fbffd397b2227c80857b9fabe63435b57060199d6d6d0b35afb4aa6b1941074"
    assert hashlib.sha256(text.encode()).hexdigest() == expected


@pytest.mark.parametrize(
    ("seed", "host", "addresses"), [("another", "head1", ADDRESSES), (SEED, "mon1", ADDRESSES), (SEED, "head1", [])]
)
def test_issue__for_another__has_a_number_of_its_own(seed: str, host: str, addresses: list[str]) -> None:
    one = certificates.issue(SEED, "aurora", "head1", ADDRESSES)
    other = certificates.issue(seed, "aurora", host, addresses)
    numbers = {x509.load_pem_x509_certificate(found.certificate.encode()).serial_number for found in (one, other)}
    assert len(numbers) == 2
    assert (one.key == other.key) == (addresses == [])


def verified(folder: Path, seed: str, *options: str) -> bool:
    """Tell whether OpenSSL believes a certificate of SEED's by the authority of a seed."""
    issued = certificates.issue(SEED, "aurora", "head1", ADDRESSES)
    (folder / "certificate.pem").write_text(issued.certificate)
    (folder / "authority.pem").write_text(certificates.authority(seed, "aurora"))
    argv = ["openssl", "verify", "-x509_strict", "-CAfile", "authority.pem", *options, "certificate.pem"]
    return subprocess.run(argv, cwd=folder, capture_output=True, check=False, timeout=60).returncode == 0


@pytest.mark.parametrize("address", ["head1", *ADDRESSES])
def test_issue__by_openssl__is_believed_under_each_name(tmp_path: Path, address: str) -> None:
    option = "-verify_hostname" if address.startswith("head") else "-verify_ip"
    assert verified(tmp_path, SEED, "-purpose", "sslserver", option, address)


def test_issue__by_openssl__is_believed_for_nothing_else(tmp_path: Path) -> None:
    assert verified(tmp_path, SEED)
    assert not verified(tmp_path, "another")
    assert not verified(tmp_path, SEED, "-verify_ip", "10.0.0.11")
    assert not verified(tmp_path, SEED, "-purpose", "sslclient")


def test_issue__for_what_is_no_name__is_an_error() -> None:
    with pytest.raises(ValueError, match="A-label"):
        certificates.issue(SEED, "aurora", "head1", ["köpfchen"])


def end_of(text: str) -> object:
    """Return what the filter `certificate_end` returns in a template."""
    filter_loader.add_directory(str(paths.content() / "plugins/filter"))
    return filter_loader.get("certificate_end").j2_function(text)


def test_certificate_end__of_several__is_the_first() -> None:
    ours = certificates.authority(SEED, "aurora")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "company")])
    early = datetime(2027, 1, 1, tzinfo=UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, datetime(2026, 1, 1, tzinfo=UTC), early)
    theirs = builder.sign(key, SHA256()).public_bytes(Encoding.PEM).decode()
    assert end_of(ours) == datetime(2056, 1, 1, tzinfo=UTC).timestamp()
    assert end_of(f"{ours}{theirs}") == early.timestamp()


def test_certificate_end__of_no_certificate__is_an_error() -> None:
    with pytest.raises(AnsibleFilterError, match="no certificate can be read"):
        end_of("-----BEGIN CERTIFICATE-----\n")
