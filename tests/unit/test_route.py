"""The way to a node, as ssh's own configuration says it."""

import shlex
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from clusterctl.inventory.model import Host
from clusterctl.nodes import parallel, remote, route
from clusterctl.nodes.remote import Access
from clusterctl.nodes.route import Route
from clusterctl.nodes.session import ContactError, Failure, Session
from clusterctl.util import paths
from clusterctl.util.errors import InputError

from .ssh_server import Server, host


@pytest.mark.proves("preflight", "A jump host becomes an ssh command with strict host keys.")
@pytest.mark.parametrize(
    ("jump", "command"),
    [
        ("bastion", "-W '[10.0.0.1]:22' -- bastion"),
        (
            "ops@bastion:2222",
            "-l ops -p 2222 -W '[10.0.0.1]:22' -- bastion",
        ),
        (
            "ssh://ops@[fd00::1]:2222",
            "-l ops -p 2222 -W '[10.0.0.1]:22' -- fd00::1",
        ),
        (
            "first,me@second",
            "-J first -l me -W '[10.0.0.1]:22' -- second",
        ),
        ("a$(b)", "-W '[10.0.0.1]:22' -- 'a$(b)'"),
    ],
)
def test_a_jump_host_is_the_command_that_ssh_makes_of_it(jump: str, command: str) -> None:
    strict = "ssh -o BatchMode=yes -o StrictHostKeyChecking=yes "
    assert route._proxy("", jump, "10.0.0.1", 22, "ops", "gpu01") == strict + command


def test_a_proxy_command_has_the_tokens_of_ssh_config() -> None:
    assert route._proxy("nc %h %p %r %n 100%%", "", "10.0.0.1", 22, "ops", "gpu01") == "nc 10.0.0.1 22 ops gpu01 100%"
    with pytest.raises(InputError, match="%Z is not supported"):
        route._proxy("nc %Z", "", "10.0.0.1", 22, "ops", "gpu01")


def test_what_the_inventory_says_comes_before_the_configuration() -> None:
    way = route.of(host(2222, Path("/keys/id")))
    assert (way.address, way.port, way.user, way.name, way.keys) == (
        "127.0.0.1", 2222, "ops", "[127.0.0.1]:2222", (Path("/keys/id"),),
    )  # fmt: skip


PIPE = """
import os, socket, sys, threading
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def pump():
    while data := os.read(0, 65536):
        peer.sendall(data)
threading.Thread(target=pump, daemon=True).start()
while data := peer.recv(65536):
    os.write(1, data)
"""


def through(proxy: str, server: Server, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Connect as if ssh's configuration had this proxy for the server; it leads there, the address does not."""
    way = Route("192.0.2.1", server.port, "ops", f"[127.0.0.1]:{server.port}", (directory / "id",), False, proxy)
    monkeypatch.setattr(route, "of", lambda one: way)
    return remote.connect(host(server.port, directory / "id"), Access(directory / "known_hosts"))


@pytest.mark.proves("preflight", "A proxy command carries the connection of preflight.")
def test_a_proxy_carries_the_connection(tmp_path: Path, node: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pipe.py").write_text(PIPE)
    proxy = f"{sys.executable} {tmp_path}/pipe.py 127.0.0.1 {node.port}"
    with through(proxy, node, tmp_path, monkeypatch) as session:
        assert session.run(["echo", "there"]) == (0, "there\n", "")
        process = session.line.proxy
    assert process is not None
    assert process.poll() is not None


def test_a_proxy_that_fails_says_why(tmp_path: Path, node: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ContactError, match="no tunnel today") as caught:
        through("sh -c 'echo no tunnel today >&2'", node, tmp_path, monkeypatch)
    assert caught.value.failure is Failure.NO_ROUTE


def test_what_a_failed_proxy_left_running_is_not_waited_for(
    tmp_path: Path, node: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that ssh keeps for later, for instance, which has the same standard error."""
    began = time.monotonic()
    proxy = "sh -c 'sleep 20 <&- >&- & echo no way there >&2; exit 1'"
    with pytest.raises(ContactError, match="no way there"):
        through(proxy, node, tmp_path, monkeypatch)
    assert time.monotonic() - began < 10


# --- through a host of the cluster ------------------------------------------------------------------------------------


def test_a_jump_host_that_forwards_nothing_is_named(tmp_path: Path, node: Server) -> None:
    """Its own connection is made once, however many nodes are behind it."""
    head = host(node.port, tmp_path / "id", name="head1", group="slurm_head")
    behind = [replace(host(node.port, tmp_path / "id", name=name), jump=head) for name in ("gpu01", "gpu02")]
    try:
        for one in behind:
            with pytest.raises(ContactError, match="head1 cannot reach"):
                remote.connect(one, Access(tmp_path / "known_hosts"))
        assert len(node.attempts) <= 2  # the question whether the key would do, and the login
    finally:
        remote.forget_gateways()


@pytest.mark.proves("preflight", "A key that the jump host refuses is tried once for all nodes.")
def test_a_key_that_the_jump_host_refuses_is_tried_once_there_for_all(tmp_path: Path, node: Server) -> None:
    node.authorized = None
    head = host(node.port, tmp_path / "id", name="head1", group="slurm_head")
    behind = [replace(host(node.port, tmp_path / "id", name=name), jump=head) for name in ("gpu01", "gpu02")]
    found: list[Failure] = []

    def contact(one: Host) -> None:
        with pytest.raises(ContactError) as caught:
            remote.connect(one, Access(tmp_path / "known_hosts"))
        found.append(caught.value.failure)

    try:
        parallel.each([head, *behind, head], contact)
    finally:
        remote.forget_gateways()
    assert sorted(failure.name for failure in found) == ["AUTHENTICATION", "AUTHENTICATION", "NO_ROUTE", "NO_ROUTE"]
    assert len(node.attempts) <= 2  # the question whether the key would do, and the login


@pytest.mark.proves("trust", "A user's SSH configuration cannot disable host key checks.")
def test_a_users_configuration_cannot_switch_off_the_check_of_host_keys(tmp_path: Path) -> None:
    """What Ansible's ssh makes of our options beside a configuration that wants none of it, by `ssh -G`."""
    config = tmp_path / "config"
    # Careless lines that many users have in their ~/.ssh/config, and that ours must overrule. They are fed in here and
    # nobody's setting: ssh is only asked (-G) what it would make of them, and connects nowhere.
    lax = ["StrictHostKeyChecking no", "UserKnownHostsFile /dev/null", "VerifyHostKeyDNS yes", "ForwardAgent yes"]
    lax += ["UpdateHostKeys yes", "KnownHostsCommand /bin/true", "NoHostAuthenticationForLocalhost yes"]
    config.write_text("".join(f"{line}\n" for line in lax))
    shared = yaml.safe_load((paths.content() / "playbooks/group_vars/all.yml").read_text())
    options = shlex.split(shared["__cluster_ssh_trust"].replace("{{ inventory_dir }}", "/site"))
    argv = ["ssh", "-G", "-T", "-F", str(config)]

    def told(*more: str) -> dict[str, str]:
        out = subprocess.run([*argv, *more, "gpu01"], capture_output=True, text=True, check=True).stdout
        return dict(line.split(" ", 1) for line in out.splitlines() if " " in line)

    assert told()["stricthostkeychecking"] == "false"  # the configuration counts where we say nothing
    with_ours = told(*options)
    assert with_ours["stricthostkeychecking"] == "true"
    assert with_ours["userknownhostsfile"] == "/site/known_hosts"
    assert (with_ours["verifyhostkeydns"], with_ours["updatehostkeys"], with_ours["forwardagent"]) == (
        "false",
        "false",
        "no",
    )
    assert with_ours.get("knownhostscommand", "none") == "none"
    assert told()["nohostauthenticationforlocalhost"] == "yes"
    assert with_ours["nohostauthenticationforlocalhost"] == "no"
