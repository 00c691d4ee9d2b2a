"""Role kubernetes_head: haproxy at the API's address, beside the API server at the same port."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.systems import rendering
from tests.unit.test_kubernetes_head import Data, call, documents, files, heads
from tests.unit.test_node_state import action

__all__ = ["heads"]

ON = {"kubernetes_node_api_address": "10.0.0.100", "kubernetes_head_haproxy": True}
CHECK = "/usr/libexec/keepalived/kubernetes-api"


def configures(role: rendering.Role) -> Data:
    """Return the arguments of the call that configures haproxy."""
    return next(given for path, given in role.calls() if path.name == "haproxy.yml")


@pytest.mark.parametrize(
    ("variables", "shares"),
    [
        (ON, True),
        (ON | {"kubernetes_head_haproxy": False}, False),
        (ON | {"kubernetes_head_keepalived": False}, False),
        ({"kubernetes_head_haproxy": True}, False),
    ],
)
def test_haproxy__at_the_address__shares_the_port_with_the_api_server(
    heads: Callable[..., rendering.Cluster], variables: Data, shares: bool
) -> None:
    role = heads(3, **variables).role("kubernetes_head", "head2")
    options = {one["name"]: one["value"] for one in documents(role)["ClusterConfiguration"]["apiServer"]["extraArgs"]}
    assert options.get("permit-port-sharing") == ("true" if shares else None)
    assert "bind-address" not in options
    assert ("haproxy" in role.value("__kubernetes_head_packages")) is shares
    # A head that is set up once more finds haproxy at the port.
    assert ("Port-6443" in role.value("__kubernetes_head_wanted")["ignore"]) is shares
    assert (b"haproxy" in (files(role).get(CHECK) or b"")) is shares
    assert "haproxy" not in [*call(role)["packages"], *(unit["name"] for unit in call(role)["units"])]


@pytest.mark.proves("kubernetes", "haproxy checks each head's API server with its verified certificate.")
@pytest.mark.parametrize(
    ("address", "expected"), [("10.0.0.100", "10.0.0.100:7443"), ("fd00::100", "[fd00::100]:7443")]
)
def test_haproxy__configuration__has_all_heads_with_verified_checks(
    heads: Callable[..., rendering.Cluster], address: str, expected: str
) -> None:
    known = ON | {"kubernetes_node_api_address": address, "kubernetes_node_api_port": 7443}
    role = heads(3, **known).role("kubernetes_head", "head2")
    given = configures(role)
    action.normalise({"name": "kubernetes_head", **given}, lambda how, name: f"{how} {name}")
    written = {item["dest"]: role.content(item) for item in given["files"]}
    lines = [line.strip() for line in (written["/etc/haproxy/haproxy.cfg"] or b"").decode().splitlines()]
    assert f"bind {expected} transparent" in lines
    assert [line for line in lines if line.startswith("server ")] == [
        f"server head{number} 10.0.0.{number}:7443 verifyhost head{number}" for number in (1, 2, 3)
    ]
    (server,) = (line for line in lines if line.startswith("default-server "))
    assert " check-ssl verify required ca-file /etc/haproxy/kubernetes-ca.crt " in server
    assert not [line for line in lines if line.startswith("stats")]
    assert list(written)[-1] == "/etc/haproxy/haproxy.cfg", "haproxy reads the others when it checks this one"
    assert given["units"] == [{"name": "haproxy", "restart_on": ["package:haproxy"], "reload_on": list(written)}]


def test_haproxy__tasks__follow_and_precede_the_api_servers() -> None:
    """Both can have the port only if the API server shares it."""
    folder = rendering.CONTENT / "roles/kubernetes_head/tasks"
    main, steps = rendering.load(folder / "main.yml"), rendering.load(folder / "control_plane.yml")
    parts = {
        task[key]: at for at, task in enumerate(main) for key in task if key.endswith(("include_tasks", "import_tasks"))
    }
    assert parts["control_plane.yml"] < parts["haproxy.yml"]
    assert main[parts["haproxy.yml"]]["when"] == "__kubernetes_head_shares"
    assert steps[0]["node_state"] == {"name": "kubernetes_head_haproxy", "state": "absent", "now": True}
    assert steps[0]["when"] == "not __kubernetes_head_shares"


@pytest.mark.proves(
    "kubernetes", "keepalived's check asks what responds at the address: haproxy, or else the API server."
)
@pytest.mark.parametrize(
    ("active", "socket", "own", "passes"),
    [(True, True, False, True), (True, False, True, False), (False, True, False, False), (False, False, True, True)],
)
def test_keepalived__check_with_haproxy__asks_what_responds_at_the_address(
    heads: Callable[..., rendering.Cluster], tmp_path: Path, active: bool, socket: bool, own: bool, passes: bool
) -> None:
    text = files(heads(3, **ON).role("kubernetes_head", "head2"))[CHECK] or b""
    by_socket = "--unix-socket /run/haproxy-kubernetes.sock https://kubernetes-api.aurora.cluster:6443/readyz"
    curl = f"""\
case "$*" in
*' {by_socket}') exit {0 if socket else 35} ;;
*' --unix-socket '*) exit 99 ;;
*' https://10.0.0.2:6443/readyz') exit {0 if own else 7} ;;
esac
exit 99
"""
    for name, script in {"systemctl": f"exit {0 if active else 3}\n", "curl": curl}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    check = tmp_path / "check"
    check.write_text(text.decode().replace("/usr/bin/", f"{tmp_path}/"), encoding="utf-8")
    status = subprocess.run(["sh", check], check=False, timeout=20).returncode
    assert status != 99
    assert (status == 0) is passes
