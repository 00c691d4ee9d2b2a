"""The program that approves kubelets' serving certificates, and renews those of the control plane."""

import base64
import contextlib
import ipaddress
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.head_programs import load

PROGRAM = load("kubernetes-certificates")
TOKENS = load("kubernetes_tokens")
X509 = load("kubernetes_x509")
CERTIFICATES = load("control_plane_certificates")
KEY = ec.derive_private_key(7, ec.SECP256R1())
NODES = {
    "gpu01": {"names": ["gpu01", "gpu01.aurora.cluster"], "addresses": ["10.0.0.11", "fd00::11"]},
    "gpu02": {"names": ["gpu02", "gpu02.aurora.cluster"], "addresses": ["10.0.0.12"]},
}
USAGES = ["digital signature", "server auth"]
CLIENT = "kubernetes.io/kube-apiserver-client-kubelet"


def pem(
    *sans: str,
    name: str = "system:node:gpu01",
    organisations: tuple[str, ...] = ("system:nodes",),
    mail: str = "",
    unit: str = "",
    extension: x509.ExtensionType | None = None,
) -> str:
    """Return a request as kubelet makes one: pkg/kubelet/certificate/kubelet.go, newGetTemplateFn."""
    subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, one) for one in organisations]
    subject += [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit)] if unit else []
    subject += [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    names: list[x509.GeneralName] = [x509.RFC822Name(mail)] if mail else []
    for one in sans:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(one)))
        except ValueError:
            names.append(x509.DNSName(one))
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(subject))
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    if extension:
        builder = builder.add_extension(extension, critical=True)
    return builder.sign(KEY, SHA256()).public_bytes(Encoding.PEM).decode()


AUTHORITY = x509.BasicConstraints(ca=True, path_length=None)


def request(text: str = "", user: str = "system:node:gpu01", **changes: Any) -> dict[str, Any]:
    """Return a CertificateSigningRequest as the API has it."""
    spec = {
        "signerName": "kubernetes.io/kubelet-serving",
        "username": user,
        "groups": ["system:nodes", "system:authenticated"],
        "usages": USAGES,
        "request": base64.b64encode((text or pem("gpu01", "10.0.0.11")).encode()).decode(),
    }
    return {"metadata": {"name": "csr-x"}, "spec": spec | changes, "status": {}}


@pytest.mark.proves("kubernetes", "A kubelet's serving certificate is approved only for the node's own names.")
@pytest.mark.parametrize(
    ("given", "why"),
    [
        (request(), ""),
        (request(pem("gpu01.aurora.cluster", "gpu01", "fd00:0:0::11")), ""),
        (request(usages=["digital signature", "key encipherment", "server auth"]), ""),
        (request(pem("gpu01", "10.0.0.12")), "gpu01 asks for a certificate of 10.0.0.12, unknown to the inventory"),
        (request(pem("gpu02")), "gpu01 asks for a certificate of gpu02, unknown to the inventory"),
        (request(pem("kubernetes", "10.96.0.1")), "certificate of kubernetes, 10.96.0.1, unknown"),
        (request(pem("gpu01", name="system:node:gpu02")), "gpu01 asks for a certificate of system:node:gpu02"),
        (request(pem("gpu01", organisations=("system:nodes", "system:masters"))), "asks for a certificate of"),
        (request(pem()), "with other names, or without any"),
        (request(pem("gpu01", mail="root@example.org")), "with other names, or without any"),
        (request(pem("gpu01", unit="admins")), "with other names, or without any"),
        (request(pem("gpu01", extension=AUTHORITY)), "with other names, or without any"),
        (request(user="system:node:evil"), "evil is not in the inventory"),
        (request(user="system:serviceaccount:demo:default"), "is not a node"),
        (request(signerName="kubernetes.io/kube-apiserver-client"), "is not a node"),
        (request(groups=["system:authenticated"]), "is not a node"),
        (request(usages=[*USAGES, "client auth"]), "asks for the usages digital signature, server auth, client auth"),
        (request(pem("gpu01") + pem("kubernetes")), "the request cannot be read"),
        (request("x" + pem("gpu01") + pem("kubernetes")), "the request cannot be read"),
        (request(pem("gpu01") + "x"), "the request cannot be read"),
        (request("no request"), "the request cannot be read: there is no CERTIFICATE REQUEST in PEM format"),
        (request(request="%%%"), "the request cannot be read"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusal__of_each_request__is_for_what_is_not_the_nodes(given: dict[str, Any], why: str) -> None:
    found = PROGRAM.refusal(given, NODES, {})
    assert why in found if why else found == ""


@pytest.mark.parametrize(
    ("change", "is_open"),
    [
        ({}, True),
        ({"status": {"conditions": [{"type": "Approved", "status": "True"}]}}, False),
        # kube-controller-manager decides on these: a renewal, and a head's kubelet.
        ({"spec": {"signerName": CLIENT, "username": "system:node:gpu01"}}, False),
        ({"spec": {"signerName": CLIENT, "username": "kubernetes-admin"}}, False),
        ({"spec": {"signerName": CLIENT, "username": "system:bootstrap:abcdef"}}, True),
    ],
)
def test_is_open__request__is_for_this_program_and_undecided(change: dict[str, Any], is_open: bool) -> None:
    assert PROGRAM.is_open(request() | change) is is_open


def test_approve__some_of_many__approves_these_and_reports_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = request(), request(pem("gpu02"))
    bad["metadata"] = {"name": "csr-bad"}
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(PROGRAM.kubernetes_api, "cluster", lambda: {"nodes": NODES})
    monkeypatch.setattr(PROGRAM.kubernetes_api, "get", lambda *_: [good, bad])
    monkeypatch.setattr(PROGRAM, "kubectl", lambda *argv: calls.append(argv))
    assert PROGRAM.approve() == ["csr-bad: gpu01 asks for a certificate of gpu02, unknown to the inventory"]
    assert calls == [("certificate", "approve", "--", "csr-x")]
    assert capsys.readouterr().out == "approved csr-x\n"


# --- nodes that join ------------------------------------------------------------------------------------------------


def token(ident: str = "abcdef", **changes: str) -> dict[str, Any]:
    """Return the Secret of a token as `kubeadm token create` makes it."""
    data = {
        "token-id": ident,
        "token-secret": "0123456789abcdef",
        "description": "clusterctl: gpu01",
        "expiration": datetime.fromtimestamp(NOW + 900, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "usage-bootstrap-authentication": "true",
    }
    texts = {key: base64.b64encode(value.encode()).decode() for key, value in (data | changes).items() if value}
    return {"metadata": {"name": f"bootstrap-token-{ident}"}, "data": texts}


NOW = 1_800_000_000
GROUPS = ["system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token", "system:authenticated"]


def join(text: str = "", **changes: Any) -> dict[str, Any]:
    """Return the request of a kubelet that joins: requestNodeCertificate in pkg/kubelet/certificate/bootstrap."""
    own = {"signerName": CLIENT, "groups": GROUPS, "usages": ["digital signature", "client auth"]}
    return request(text or pem(), "system:bootstrap:abcdef", **(own | changes))


@pytest.mark.proves("kubernetes", "A join token is good for a certificate of its own node alone.")
@pytest.mark.parametrize(
    ("given", "secrets", "why"),
    [
        (join(), [token()], ""),
        (join(usages=["digital signature", "key encipherment", "client auth"]), [token()], ""),
        (join(), [token(expiration="")], ""),
        (join(pem(name="system:node:gpu02")), [token()], "gpu01 asks for a certificate of system:node:gpu02"),
        (join(pem(name="gpu01")), [token()], "gpu01 asks for a certificate of gpu01"),
        (join(), [token(description="clusterctl: gpu02")], "gpu02 asks for a certificate of system:node:gpu01"),
        (join(pem(organisations=("system:masters",))), [token()], "with the group system:masters"),
        (join(pem(organisations=("system:nodes", "system:masters"))), [token()], "system:nodes, system:masters"),
        (join(pem(organisations=())), [token()], "with the group none"),
        (join(), [], "the token abcdef is deleted or expired, or kubernetes-join did not make it"),
        (join(), [token("fedcba")], "the token abcdef is deleted"),
        (join(), [token(description="")], "the token abcdef is deleted"),
        (join(), [token(description="gpu01")], "the token abcdef is deleted"),
        (join(), [token(description="clusterctl: ")], "the token abcdef is deleted"),
        (join(), [token(description="clusterctl: gpu01 ")], "gpu01  is not in the inventory"),
        (join(), [token(expiration="2027-01-15T07:59:59Z")], "the token abcdef is deleted or expired"),
        (join(), [token(expiration="tomorrow")], "the token abcdef is deleted or expired"),
        (join(pem(name="system:node:new")), [token(description="clusterctl: new")], "new is not in the inventory"),
        (join(pem("gpu01")), [token()], "gpu01 asks for a client certificate with further names"),
        (join(pem("10.0.0.11")), [token()], "with further names"),
        (join(pem(mail="root@example.org")), [token()], "with further names"),
        (join(pem(unit="admins")), [token()], "with further names"),
        (join(pem(extension=AUTHORITY)), [token()], "with further names"),
        (join(usages=USAGES), [token()], "gpu01 asks for the usages digital signature, server auth"),
        (join(usages=["digital signature", "server auth", "client auth"]), [token()], "asks for the usages"),
        (join(usages=[]), [token()], "gpu01 asks for the usages none"),
        (join(username="system:bootstrap:abcdef:x"), [token()], "the user system:bootstrap:abcdef:x is not a token"),
        (join(groups=["system:authenticated"]), [token()], "the user system:bootstrap:abcdef is not a token"),
        (join(signerName="kubernetes.io/kubelet-serving"), [token()], "is not a node"),
        (join("no request"), [token()], "gpu01: the request cannot be read"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refusal__of_a_node_that_joins__is_for_what_is_not_its_tokens(
    given: dict[str, Any], secrets: list[dict[str, Any]], why: str
) -> None:
    found = PROGRAM.refusal(given, NODES, TOKENS.valid(secrets, NOW))
    assert why in found if why else found == ""


class Joins:
    """An API with requests and tokens, and a clock that a watch moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[dict[str, Any]] = []
        self.secrets: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self.now, self.steps = float(NOW), dict[int, Callable[[], None]]()
        self.is_down = False
        monkeypatch.setattr(PROGRAM.kubernetes_api, "cluster", lambda: {"nodes": NODES})
        monkeypatch.setattr(PROGRAM.kubernetes_api, "get", self.get)
        monkeypatch.setattr(PROGRAM, "kubectl", self.kubectl)
        monkeypatch.setattr(PROGRAM.time, "time", lambda: self.now)
        monkeypatch.setattr(PROGRAM.time, "sleep", self.sleep)

    def get(self, kind: str, *_: str) -> list[dict[str, Any]]:
        if self.is_down:
            raise PROGRAM.KubernetesError("connection refused")
        self.calls.append(kind)
        return self.requests if kind == "certificatesigningrequests" else self.secrets

    def kubectl(self, *argv: str) -> None:
        for request in self.requests:
            if request["metadata"]["name"] in argv[argv.index("--") :]:
                request["status"] = {"conditions": [{"type": "Approved"}]}
                self.calls.append(f"approve {request['metadata']['name']}")

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.steps.get(int(self.now - NOW), lambda: None)()


@pytest.fixture
def joins(monkeypatch: pytest.MonkeyPatch) -> Joins:
    return Joins(monkeypatch)


@pytest.mark.proves("kubernetes", "The approval of joins ends with the last join token.")
def test_watch__tokens_of_nodes__ends_with_the_last(joins: Joins, capsys: pytest.CaptureFixture[str]) -> None:
    """A token by hand, without a node, does not count."""
    bad = join(pem(name="system:node:gpu02")) | {"metadata": {"name": "csr-bad"}}
    joins.secrets = [token(), token("fedcba", description="", expiration="")]
    joins.steps = {3: lambda: joins.requests.extend([join(), bad]), 25: joins.secrets.clear}
    PROGRAM.watch()
    assert NOW + 25 <= joins.now <= NOW + 40
    assert "approve csr-x" in joins.calls
    assert "approve csr-bad" not in joins.calls
    reason = "gpu01 asks for a certificate of system:node:gpu02 with the group system:nodes"
    assert capsys.readouterr().out.splitlines()[:2] == ["approved csr-x", f"not approved: csr-bad: {reason}"]


def test_watch__no_request__asks_once_a_second_and_seldom_for_tokens(joins: Joins) -> None:
    joins.secrets = [token()]
    joins.steps = {100: joins.secrets.clear}
    PROGRAM.watch()
    assert joins.calls.count("certificatesigningrequests") == 101
    assert joins.calls.count("secrets") == 11


def test_watch__expired_tokens__count_as_gone(joins: Joins) -> None:
    joins.secrets = [token()]
    PROGRAM.watch()
    assert joins.now == NOW + 900
    joins.calls.clear()
    PROGRAM.watch()
    assert joins.calls == ["certificatesigningrequests", "secrets"]


@pytest.mark.proves("kubernetes", "An API server that does not answer for a while interrupts no approval of joins.")
def test_watch__api_that_does_not_answer__is_retried(joins: Joins, capsys: pytest.CaptureFixture[str]) -> None:
    joins.secrets, joins.is_down = [token()], True
    joins.steps = {
        60: lambda: setattr(joins, "is_down", False),
        70: lambda: joins.requests.append(join()),
        71: lambda: setattr(joins, "is_down", True),
        90: lambda: setattr(joins, "is_down", False),
        100: joins.secrets.clear,
    }
    PROGRAM.watch()
    assert "approve csr-x" in joins.calls
    assert joins.now <= NOW + 115
    assert capsys.readouterr().out.splitlines() == ["connection refused", "approved csr-x"]


def test_watch__api_that_never_answers__ends_with_a_tokens_life(joins: Joins) -> None:
    joins.is_down = True
    PROGRAM.watch()
    assert joins.now == NOW + PROGRAM.TOKEN_S


@pytest.mark.proves("kubernetes", "The name of a node's request is no option of kubectl.")
def test_approve__request_named_as_an_option__is_a_name(joins: Joins, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[str, ...]] = []
    joins.requests = [request() | {"metadata": {"name": "--help"}}, join()]
    joins.secrets = [token()]
    monkeypatch.setattr(PROGRAM, "kubectl", lambda *argv: given.append(argv))
    assert PROGRAM.approve() == []
    assert given == [("certificate", "approve", "--", "--help", "csr-x")]


def test_approve__no_node_joins__asks_for_no_tokens(joins: Joins) -> None:
    joins.requests = [request()]
    assert PROGRAM.approve() == []
    assert joins.calls == ["certificatesigningrequests", "approve csr-x"]


# --- names ----------------------------------------------------------------------------------------------------------


def test_printable__text_of_a_node__has_no_control_characters() -> None:
    assert PROGRAM.printable("a\x1b[31m\nb") == "a?[31m?b"
    assert len(PROGRAM.printable("x" * 999)) == 300


# --- the parser -----------------------------------------------------------------------------------------------------


def test_request__fields__are_those_of_another_parser() -> None:
    text = pem("gpu01", "gpu01.aurora.cluster", "10.0.0.11", "fd00::11", mail="a@example.org")
    assert X509.request(text) == {
        "common_names": ["system:node:gpu01"],
        "organisations": ["system:nodes"],
        "names": ["gpu01", "gpu01.aurora.cluster"],
        "addresses": ["10.0.0.11", "fd00::11"],
        "others": 1,
    }


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_request__any_data__is_read_or_refused(data: bytes) -> None:
    body = base64.b64encode(data).decode()
    text = f"-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n"
    with pytest.raises(X509.FormatError):
        X509.request(text)


@settings(deadline=None)
@given(st.integers(min_value=0), st.integers(min_value=1, max_value=255))
def test_request__one_byte_changed__is_read_or_refused(place: int, change: int) -> None:
    """Whatever a node sends, only FormatError may end the reading."""
    der = bytearray(X509.pem(pem("gpu01", "10.0.0.11"), "CERTIFICATE REQUEST"))
    der[place % len(der)] ^= change
    body = base64.b64encode(der).decode()
    with contextlib.suppress(X509.FormatError):
        X509.request(f"-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n")


def element(tag: int, content: bytes) -> bytes:
    """Return a DER element of less than 64 KiB."""
    size = len(content)
    length = [size] if size < 128 else [0x81, size] if size < 256 else [0x82, *divmod(size, 256)]
    return bytes([tag, *length]) + content


def added(data: bytes, path: tuple[int, ...], extra: bytes) -> bytes:
    """Return DER data with one more element in the element at this path, after the first one there."""
    parts = X509.elements(data)
    if path:
        tag, content = parts[path[0]]
        parts[path[0]] = (tag, added(content, path[1:], extra))
    found = [element(*part) for part in parts]
    return b"".join(found if path else [*found[:1], extra, *found[1:]])


# The request, its information, its attributes, that of extensions, their set and sequence, and the one of the names.
EXTENSION = (0, 0, 3, 0, 1, 0, 0)


@pytest.mark.proves("kubernetes", "A request that another reader could read differently is not approved.")
@pytest.mark.parametrize("depth", range(len(EXTENSION) + 1))
def test_refusal__of_a_request_with_a_second_content__is_given(depth: int) -> None:
    """Go reads the first content of an extension, and ignores the second one."""
    der = X509.pem(pem("gpu01"), "CERTIFICATE REQUEST")
    evil = element(X509.OCTETS, element(X509.SEQUENCE, element(X509.DNS, b"kubernetes")))
    body = base64.encodebytes(added(der, EXTENSION[:depth], evil)).decode()
    text = f"-----BEGIN CERTIFICATE REQUEST-----\n{body}-----END CERTIFICATE REQUEST-----\n"
    assert PROGRAM.refusal(request(text), NODES, {}) != ""
    body = base64.encodebytes(der).decode()
    text = f"-----BEGIN CERTIFICATE REQUEST-----\n{body}-----END CERTIFICATE REQUEST-----\n"
    assert PROGRAM.refusal(request(text), NODES, {}) == ""


@pytest.mark.parametrize(
    "data", [b"\x30\x80", b"\x30\x81\x05abcde", b"\x30\x82\x00\x81" + 129 * b"a", b"\x30\x05abc", b"\x3f\x01a", b"\x30"]
)
def test_elements__not_plain_der__are_refused(data: bytes) -> None:
    """Indefinite length, a length that is longer than needed, data that is cut off, a long tag."""
    with pytest.raises(X509.FormatError):
        X509.elements(data)


def certificate(begin: datetime, end: datetime) -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(KEY.public_key())
    builder = builder.serial_number(5).not_valid_before(begin).not_valid_after(end)
    return builder.sign(KEY, SHA256()).public_bytes(Encoding.PEM).decode()


BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("end", [datetime(2027, 1, 1, tzinfo=UTC), datetime(2056, 1, 1, 12, 30, 5, tzinfo=UTC)])
def test_validity__of_a_certificate__is_its_period(end: datetime) -> None:
    """From 2050 on, times have another format."""
    assert X509.validity(certificate(BEGIN, end)) == (BEGIN, end)


# --- renewal --------------------------------------------------------------------------------------------------------


def test_certificate__of_a_kubeconfig__is_its_users(tmp_path: Path) -> None:
    text = certificate(BEGIN, BEGIN + timedelta(days=365))
    data = base64.b64encode(text.encode()).decode()
    lines = ("users:", "- name: admin", "  user:", f"    client-certificate-data: {data}", "    client-key-data: eA==")
    (tmp_path / "admin.conf").write_text("\n".join(lines) + "\n")
    assert CERTIFICATES.certificate(tmp_path / "admin.conf") == text
    (tmp_path / "kubelet.conf").write_text("users:\n- user:\n    client-certificate: /var/lib/kubelet/x.pem\n")
    with pytest.raises(X509.FormatError, match="no certificate"):
        CERTIFICATES.certificate(tmp_path / "kubelet.conf")


def test_periods__of_the_files__are_those_that_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CERTIFICATES, "KUBERNETES", tmp_path)
    (tmp_path / "pki").mkdir()
    (tmp_path / "pki/apiserver.crt").write_text(certificate(BEGIN, BEGIN + timedelta(days=9)))
    assert CERTIFICATES.periods() == {"pki/apiserver.crt": (BEGIN, BEGIN + timedelta(days=9))}
    (tmp_path / "pki/apiserver.crt").write_text("half of a cert")
    with pytest.raises(X509.FormatError, match=r"apiserver\.crt: there is no CERTIFICATE"):
        CERTIFICATES.periods()


@pytest.mark.proves("kubernetes", "The control plane's certificates are renewed before they expire, one head a day.")
@pytest.mark.parametrize(
    ("days", "turn", "due"),
    [
        (10, True, False),
        (240, True, False),
        (250, True, True),
        (250, False, False),
        (360, False, True),
        (400, False, True),
    ],
)
def test_is_due__by_the_time_left__on_the_heads_day(days: int, turn: bool, due: bool) -> None:
    """A certificate of a year: from two thirds on, and on any day if ten days are left."""
    found = {"new": (BEGIN, BEGIN + timedelta(days=3650)), "apiserver": (BEGIN, BEGIN + timedelta(days=365))}
    assert PROGRAM.is_due(found, BEGIN + timedelta(days=days), turn) is due


def test_is_due__certificate_of_two_weeks__is_not_due_at_once() -> None:
    found = {"short": (BEGIN, BEGIN + timedelta(days=9))}
    assert not PROGRAM.is_due(found, BEGIN + timedelta(days=1), False)
    assert PROGRAM.is_due(found, BEGIN + timedelta(days=7), False)


def test_is_turn__three_heads__each_has_its_own_days() -> None:
    heads = ["head3", "head1", "head2"]
    for day in range(7):
        now = BEGIN + timedelta(days=day, hours=5)
        assert [PROGRAM.is_turn(now, head, heads) for head in heads].count(True) == 1
    assert PROGRAM.is_turn(BEGIN, "only", ["only"])


class Head:
    """A head whose control plane restarts when a container is stopped."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.containers = dict.fromkeys(PROGRAM.COMPONENTS, 1)
        self.fails_at = ""
        (folder / "clusterctl").mkdir()
        (folder / "pki").mkdir()
        (folder / "pki/apiserver.crt").write_text(certificate(BEGIN, BEGIN + timedelta(days=365)))
        self.pending = folder / "clusterctl/renewed.json"
        monkeypatch.setattr(CERTIFICATES, "KUBERNETES", folder)
        monkeypatch.setattr(PROGRAM, "PENDING", self.pending)
        monkeypatch.setattr(PROGRAM, "run", self.run)
        monkeypatch.setattr(PROGRAM, "is_ready", lambda _: True)
        cluster = {"name": "head1", "heads": {"head1": "10.0.0.10"}, "port": 6443}
        monkeypatch.setattr(PROGRAM.kubernetes_api, "cluster", lambda: cluster)

    def run(self, *argv: str, **_: Any) -> str:
        if argv[0] == "kubeadm":
            self.calls.append(" ".join(argv))
            return ""
        if argv[2] == "ps":
            name = argv[-1].rpartition("=")[2]
            return f"{name}-{self.containers[name]}\n"
        name = argv[-1].rpartition("-")[0]
        if name == self.fails_at:
            raise KeyboardInterrupt
        self.calls.append(f"stop {argv[-1]}")
        self.containers[name] += 1
        return ""


STOPS = [f"stop {name}-1" for name in PROGRAM.COMPONENTS]


def test_renew__when_due__restarts_all_components(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head(tmp_path, monkeypatch)
    PROGRAM.renew(BEGIN + timedelta(days=100))
    assert head.calls == []
    PROGRAM.renew(BEGIN + timedelta(days=300))
    assert head.calls == ["kubeadm certs renew all", *STOPS]
    assert not head.pending.exists()


@pytest.mark.parametrize("at", [0, 2])
def test_renew__killed_between_restarts__resumes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """The new files show no certificate that expires, but the processes would still use the old ones."""
    head = Head(tmp_path, monkeypatch)
    head.fails_at = PROGRAM.COMPONENTS[at]
    with pytest.raises(KeyboardInterrupt):
        PROGRAM.renew(BEGIN + timedelta(days=300))
    assert json.loads(head.pending.read_text()) == list(PROGRAM.COMPONENTS[at:])
    head.fails_at = ""
    (tmp_path / "pki/apiserver.crt").write_text(certificate(BEGIN + timedelta(days=300), BEGIN + timedelta(days=665)))
    PROGRAM.renew(BEGIN + timedelta(days=300))
    assert head.calls == ["kubeadm certs renew all", *STOPS]
    assert not head.pending.exists()


def test_restart__component_does_not_come_back__is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head(tmp_path, monkeypatch)
    monkeypatch.setattr(PROGRAM, "READY_S", 0)
    monkeypatch.setattr(PROGRAM, "is_ready", lambda _: False)
    monkeypatch.setattr(PROGRAM.time, "sleep", lambda _: None)
    with pytest.raises(PROGRAM.KubernetesError, match="etcd did not restart in 0 s"):
        PROGRAM.renew(BEGIN + timedelta(days=300))
    assert json.loads(head.pending.read_text()) == list(PROGRAM.COMPONENTS)
