"""kubectl of the modules: what fails because an API server starts is repeated, and nothing else."""

from pathlib import Path

import pytest
from ansible.module_utils import kubeadm, kubectl
from ansible.module_utils.node_state.tools import NodeError, run

import tests.unit.test_node_state  # noqa: F401 - lets the modules of the nodes be found
from tests.unit.head_programs import load

# As kubectl 1.36 prints them. The second one is of a control plane in a lab whose kubelet was upgraded.
STARTS = (
    "The connection to the server 10.0.0.10:6443 was refused - did you specify the right host or port?",
    'Error from server (Forbidden): configmaps "a" is forbidden: User "kubernetes-admin" cannot get resource'
    ' "configmaps" in API group "" in the namespace "kube-system"',
    "Unable to connect to the server: net/http: TLS handshake timeout",
    "Unable to connect to the server: EOF",
    'error: error validating "STDIN": error validating data: unknown; if you choose to ignore these errors, turn'
    " validation off with --validate=false",
    "Error from server: etcdserver: request timed out",
    'Error from server (Forbidden): pods "a" is forbidden: not yet ready to handle request',
)
FAILS = (
    'Error from server (NotFound): configmaps "a" not found',
    'Error from server (Forbidden): configmaps "a" is forbidden: User "ada" cannot get resource "configmaps"',
    'The Pod "a" is invalid: spec.containers[0].image: Required value',
)


def program(folder: Path, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a kubectl in PATH that fails once with this text, and then prints `done`."""
    (folder / "said").write_text(said + "\n")
    (folder / "kubectl").write_text(
        f"#!/bin/sh\ncd {folder}\n[ -e said ] || {{ echo done; exit 0; }}\ncat said >&2; rm said; exit 1\n"
    )
    (folder / "kubectl").chmod(0o755)
    monkeypatch.setitem(kubectl.ENVIRONMENT, "PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.proves("kubernetes", "A call that fails because the API server starts is repeated.")
@pytest.mark.parametrize("said", STARTS)
def test_kubectl__the_api_server_starts__is_repeated(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, said, monkeypatch)
    monkeypatch.setattr(kubectl.time, "sleep", lambda _: None)
    assert kubectl.kubectl("get", "pods") == (0, "done\n", "")


@pytest.mark.parametrize("said", FAILS)
def test_kubectl__refused_for_another_reason__fails(said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, said, monkeypatch)
    with pytest.raises(NodeError, match="kubectl get pods: "):
        kubectl.kubectl("get", "pods")


def test_kubectl__without_check__is_called_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, STARTS[0], monkeypatch)
    assert kubectl.kubectl("get", "pods", check=False) == (1, "", STARTS[0] + "\n")


# As sites have them: upper and lower case.
PROXIES = ("https_proxy", "HTTPS_PROXY", "http_proxy", "NO_PROXY", "All_Proxy")


@pytest.mark.proves("kubernetes", "kubectl and kubeadm on nodes do not use the proxies of the site.")
def test_environment__of_kubectl_and_kubeadm__has_no_proxies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tools, such as package managers, keep them."""
    for name in ("kubectl", "kubeadm", "apt-get"):
        (tmp_path / name).write_text("#!/bin/sh\nenv\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    monkeypatch.setenv("PATH", path)
    monkeypatch.setitem(kubectl.ENVIRONMENT, "PATH", path)
    for name in PROXIES:
        monkeypatch.setenv(name, "http://proxy.example:3128")
    monkeypatch.setenv("PROXY_NAME", "kept")
    api = load("kubernetes_api")
    printed = [kubectl.kubectl("get")[1], api.kubectl("get"), api.run("kubeadm"), run("kubeadm")[1], run("kubectl")[1]]
    for environment in printed:
        assert "PROXY_NAME=kept\n" in environment
        assert "proxy.example" not in environment
    assert run("apt-get")[1].count("proxy.example") == len(PROXIES)


@pytest.mark.parametrize(("is_installed", "version"), [(True, "1.36.3"), (False, "")])
def test_installed__kubeadm_or_none__is_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_installed: bool, version: str
) -> None:
    if is_installed:
        (tmp_path / "kubeadm").write_text('#!/bin/sh\n[ "$*" = "version --output=short" ] && echo v1.36.3\n')
        (tmp_path / "kubeadm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(kubectl.ENVIRONMENT, "PATH", f"{tmp_path}:/usr/bin:/bin")
    assert kubeadm.installed() == version


@pytest.mark.proves("plan", "A plan of a new head has no kubectl, and reports all objects.")
def test_kubectl__not_installed__is_no_answer_of_an_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kubectl.ENVIRONMENT, "PATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert kubectl.kubectl("version", check=False)[0] != 0
    with pytest.raises(NodeError, match="kubectl version: it is not installed"):
        kubectl.kubectl("version")
