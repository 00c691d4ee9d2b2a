"""`kubeconfig`: what a head prints is data, and the file that kubectl reads is written here."""

import base64
import io
import stat
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from clusterctl.cli import completion
from clusterctl.commands import kubeconfig as verb
from clusterctl.inventory import model as inventory
from clusterctl.kubernetes import kubeconfig
from clusterctl.kubernetes.kubeconfig import KubeconfigError
from clusterctl.nodes.head_commands import HeadCommands
from clusterctl.run.context import Options
from clusterctl.util.errors import HeadFailed, InputError
from clusterctl.workspace import certificates

INVENTORY = """\
all:
  vars: {cluster_name: aurora}
  children:
    kubernetes_head: {hosts: {k1: {ansible_host: 10.0.0.1}, k2: {ansible_host: 10.0.0.2}, k3: {}}}
    kubernetes_workers: {hosts: {gpu01: {}}}
"""
NAME = "kubernetes-api.aurora.cluster"


def pem(what: str) -> str:
    text = f"-----BEGIN {what}-----\nMIIBszCCAVmgAwIBAgIUQ0\nx+/=\n-----END {what}-----\n"
    return base64.b64encode(text.encode()).decode()


def document(**changes: Any) -> dict[str, Any]:
    """Return a kubeconfig in the form of kubeadm's admin.conf (cmd/kubeadm/app/util/kubeconfig)."""
    found: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "preferences": {},
        "current-context": "kubernetes-admin@kubernetes",
        "clusters": [
            {
                "name": "kubernetes",
                "cluster": {"server": f"https://{NAME}:6443", "certificate-authority-data": pem("CERTIFICATE")},
            }
        ],
        "users": [
            {
                "name": "kubernetes-admin",
                "user": {
                    "client-certificate-data": pem("CERTIFICATE"),
                    "client-key-data": pem("RSA PRIVATE KEY"),
                },
            }
        ],
        "contexts": [
            {
                "name": "kubernetes-admin@kubernetes",
                "context": {"cluster": "kubernetes", "user": "kubernetes-admin"},
            }
        ],
    }
    return found | changes


def test_kubeconfig__of_kubeadm__is_read() -> None:
    found = kubeconfig.parse(yaml.safe_dump(document()))
    assert (found.name, found.port, found.namespace) == (NAME, 6443, "")
    assert found.key == pem("RSA PRIVATE KEY")


@pytest.mark.proves("kubeconfig", "The certificate of the API is checked by its name, at any address.")
def test_text__for_this_machine__has_its_address_and_the_apis_name() -> None:
    found = kubeconfig.parse(yaml.safe_dump(document()))
    data = yaml.safe_load(found.text("aurora", "kubernetes-admin", "10.0.0.1"))
    assert data["clusters"][0]["cluster"] == {
        "server": "https://10.0.0.1:6443",
        "certificate-authority-data": pem("CERTIFICATE"),
        "tls-server-name": NAME,
    }
    assert data["current-context"] == data["contexts"][0]["name"] == "kubernetes-admin@aurora"
    assert kubeconfig.parse(found.text("aurora", "a", NAME)).name == NAME
    assert "tls-server-name" not in found.text("aurora", "a", NAME)
    assert "https://[fd00::1]:6443" in found.text("aurora", "a", "fd00::1")


@pytest.mark.proves("untrusted", "A kubeconfig from a head cannot make kubectl run a program or read a file.")
def test_kubeconfig__with_a_program_or_files__gives_neither() -> None:
    user = {**document()["users"][0]["user"], "exec": {"command": "/bin/sh"}, "tokenFile": "/root/token"}
    cluster = {**document()["clusters"][0]["cluster"], "proxy-url": "http://evil", "insecure-skip-tls-verify": True}
    changed = document(
        users=[{"name": "x", "user": user}],
        clusters=[{"name": "x", "cluster": cluster}],
        extensions=[{"name": "x", "extension": {}}],
    )
    text = kubeconfig.parse(yaml.safe_dump(changed)).text("aurora", "kubernetes-admin", "10.0.0.1")
    for word in ("exec", "/bin/sh", "token", "proxy", "insecure", "extension", "evil"):
        assert word not in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"clusters": []}, "exactly one of clusters"),
        ({"users": document()["users"] * 2}, "exactly one of users"),
        ({"contexts": [{"name": "x", "context": []}]}, "exactly one of contexts"),
        ({"clusters": [{"cluster": {"server": "http://x:6443"}}]}, "no URL of an API server"),
        ({"clusters": [{"cluster": {"server": "https://x:99999"}}]}, "no URL of an API server"),
        ({"clusters": [{"cluster": {"server": "https://x:6443"}}]}, "no certificate-authority-data"),
        ({"users": [{"user": {"client-certificate-data": "x"}}]}, "no client-certificate-data"),
        ({"users": [{"user": {"client-certificate-data": pem("CERTIFICATE")}}]}, "no client-key-data"),
        ({"contexts": [{"context": {"namespace": "a b"}}]}, "its namespace has no valid name"),
    ],
)
def test_kubeconfig__that_is_not_kubeadms__is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(KubeconfigError, match=said):
        kubeconfig.parse(yaml.safe_dump(document(**changes)))


@pytest.mark.parametrize("text", ["", "[", "a: [1", "- 1", "x" * (2 << 20), "!!python/object:os.system x"])
def test_text__that_is_no_kubeconfig__is_refused(text: str) -> None:
    with pytest.raises(KubeconfigError):
        kubeconfig.parse(text)


# --- the verb ---------------------------------------------------------------------------------------------------------


class Heads:
    """Heads of which some respond; keeps the commands that were run."""

    def __init__(self, *down: str, text: str = "") -> None:
        self.down, self.text, self.ran = down, text or yaml.safe_dump(document()), list[tuple[str, ...]]()

    def connect(self, head: inventory.Host, access: object) -> HeadCommands:
        if head.name in self.down:
            raise HeadFailed(f"{head.name}: no answer")
        heads = self

        class Session:
            def run(self, argv: tuple[str, ...], **_: Any) -> tuple[int, str, str]:
                heads.ran.append((head.name, *argv))
                return 0, heads.text, ""

            def close(self) -> None:
                pass

        return HeadCommands(Session(), head.name)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    return tmp_path / "inventory.yaml"


def run(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    heads: Heads,
    user: str | None = None,
    output: Path | None = None,
    namespace: str | None = None,
) -> str:
    monkeypatch.setattr(HeadCommands, "connect", heads.connect)
    said = io.StringIO()
    monkeypatch.setattr("sys.stdout", said)
    assert verb.kubeconfig_command(Options("kubeconfig", path), user, output, namespace) == 0
    return said.getvalue()


@pytest.mark.proves("kubeconfig", "The administrator's kubeconfig is stored with mode 0600, and never printed.")
def test_kubeconfig__of_the_administrator__is_stored(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = Heads("k1")
    said = run(path, monkeypatch, heads)
    made = path.parent / ".clusterctl/kubeconfig"
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    assert stat.S_IMODE(made.parent.stat().st_mode) == 0o700
    assert yaml.safe_load(made.read_text())["clusters"][0]["cluster"]["server"] == "https://10.0.0.2:6443"
    assert heads.ran == [("k2", "cat", "/etc/kubernetes/admin.conf")], "k1 does not respond"
    assert f"Next: export KUBECONFIG={made}" in said
    assert pem("RSA PRIVATE KEY") not in said
    run(path, monkeypatch, Heads())
    assert yaml.safe_load(made.read_text())["clusters"][0]["cluster"]["server"] == "https://10.0.0.1:6443"


@pytest.mark.proves("kubeconfig", "The command prints when the certificate in the kubeconfig ends.")
def test_kubeconfig__with_a_certificate__prints_its_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    issued = certificates.issue_client("seed", "aurora", "kubernetes", "ada")
    user = {
        "client-certificate-data": base64.b64encode(issued.certificate.encode()).decode(),
        "client-key-data": pem("RSA PRIVATE KEY"),
    }
    heads = Heads(text=yaml.safe_dump(document(users=[{"name": "x", "user": user}])))
    assert "Its certificate ends on 2056-01-01. Nothing renews it" in run(path, monkeypatch, heads)
    assert "ends on" not in run(path, monkeypatch, Heads()), "this one cannot be read"


def test_kubeconfig__of_a_person__is_created_on_a_head(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = [{"name": "x", "context": {"cluster": "kubernetes", "user": "ada", "namespace": "ada"}}]
    heads = Heads(text=yaml.safe_dump(document(contexts=context)))
    said = run(path, monkeypatch, heads, user="ada")
    made = yaml.safe_load((path.parent / ".clusterctl/kubeconfig-ada").read_text())
    assert made["contexts"][0]["context"] == {"cluster": "aurora", "user": "ada", "namespace": "ada"}
    assert heads.ran == [("k1", "/usr/local/sbin/kubernetes-user", "ada")]
    assert "It is for the namespace ada." in said


def test_kubeconfig__of_a_person_in_a_team__has_its_namespace(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = [{"name": "x", "context": {"cluster": "kubernetes", "user": "ada", "namespace": "vision"}}]
    heads = Heads(text=yaml.safe_dump(document(contexts=context)))
    said = run(path, monkeypatch, heads, user="ada", namespace="vision")
    assert heads.ran == [("k1", "/usr/local/sbin/kubernetes-user", "ada", "--namespace=vision")]
    assert "It is for the namespace vision." in said


@pytest.mark.parametrize(
    ("user", "namespace", "why"),
    [(None, "vision", "--namespace: is only for a person"), ("ada", "../x", "--namespace: bad name")],
)
def test_namespace__that_is_bad__is_refused_before_any_contact(
    path: Path, monkeypatch: pytest.MonkeyPatch, user: str | None, namespace: str, why: str
) -> None:
    heads = Heads()
    with pytest.raises(InputError) as caught:
        run(path, monkeypatch, heads, user, namespace=namespace)
    assert why in str(caught.value)
    assert heads.ran == []


def test_kubeconfig__in_another_file__is_private_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(path, monkeypatch, Heads(), output=path.parent / "own")
    assert stat.S_IMODE((path.parent / "own").stat().st_mode) == 0o600


@pytest.mark.parametrize(("given", "expected"), [("10.0.0.9", "10.0.0.9"), ("", "10.0.0.1"), (None, "10.0.0.1")])
def test_address__of_the_api__is_the_inventorys_or_the_heads(path: Path, given: str | None, expected: str) -> None:
    head = inventory.load(path).host("k1")
    variables = {verb.ADDRESS: given} if given is not None else {}
    assert verb.address_of(replace(head, variables=variables)) == expected


@pytest.mark.parametrize(
    ("user", "output", "said"),
    [
        ("../x", None, "--user: bad name"),
        ("-x", None, "--user: bad name"),
        ("Ada", None, "--user: bad name"),
        (None, ".", "expected a file in an existing directory"),
        (None, "no/x", "expected a file in an existing directory"),
    ],
)
def test_input__that_is_bad__is_refused_before_any_contact(
    path: Path, monkeypatch: pytest.MonkeyPatch, user: str | None, output: str | None, said: str
) -> None:
    heads = Heads()
    with pytest.raises(InputError) as caught:
        run(path, monkeypatch, heads, user, path.parent / output if output else None)
    assert said in str(caught.value)
    assert heads.ran == []


def test_cluster__without_kubernetes__has_no_kubeconfig(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(INVENTORY.replace("kubernetes_", "slurm_").replace(", k2: {ansible_host: 10.0.0.2}, k3: {}", ""))
    with pytest.raises(InputError, match="has no group kubernetes_head"):
        run(path, monkeypatch, Heads())


def test_heads__that_fail__are_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HeadFailed, match="k1: no answer"):
        run(path, monkeypatch, Heads("k1", "k2", "k3"))
    with pytest.raises(HeadFailed, match="k1: the kubeconfig is not valid: it has not exactly one of clusters"):
        run(path, monkeypatch, Heads(text="{}"))
    assert not (path.parent / ".clusterctl/kubeconfig").exists()


def test_completion__of_people_and_groups__is_from_the_inventory(path: Path) -> None:
    people = "users_accounts: [{name: ada, uid: 5001}, {name: alan, uid: 5002}, {name: grace, uid: 5003}]"
    groups = "kubernetes_workers: {hosts: {gpu01: {}}, children: {a100: {hosts: {gpu02: {}}}}}"
    text = INVENTORY.replace("cluster_name: aurora", f"cluster_name: aurora, {people}")
    path.write_text(text.replace("kubernetes_workers: {hosts: {gpu01: {}}}", groups))
    context: Any = SimpleNamespace(params={"inventory": path}, args=[])
    assert completion.people(context, "a") == ["ada", "alan"]
    assert completion.groups(context, "") == ["kubernetes_workers", "a100"]
    assert completion.workers(context, "") == ["gpu01", "gpu02"]
