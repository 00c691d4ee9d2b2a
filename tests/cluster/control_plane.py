"""A control plane from the files of role kubernetes_head: the kit's programs as processes, in namespaces of their own.

There is no kubelet: nodes are objects alone, and no pod runs. So it starts in seconds, and disturbs nothing.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from clusterctl.lab import kit, kit_recipe
from tests.faults.injury import GUARD
from tests.labs import REPOSITORY
from tests.programs import described
from tests.systems import rendering

ADDRESS = "10.99.0.1"
SYSTEM = "debian-13"
KEY = "a2V5IG9mIDMyIGJ5dGVzIGZvciBhIHRlc3QgYWxvbmU="
"""A key that encrypts nothing of value: the rendered secrets are shorter than the API server demands."""
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager")
# The role's directories are empty in the mount namespace, so nothing of this machine is read or changed.
_ENTER = f"""
set -eu
ip link set lo up
ip address add {ADDRESS}/24 dev lo
ip route add default dev lo
for directory in /etc/kubernetes /var/lib/etcd /var/log/kubernetes /var/lib/kubelet /var/cache/clusterctl \\
    /usr/local/lib/clusterctl /usr/local/sbin; do
  mkdir -p $directory
  mount -t tmpfs tmpfs $directory
done
cp -a "$1"/. /
ln -s "$3"/usr/bin/* "$3"/usr/local/bin/* /usr/local/sbin
echo "{ADDRESS} head1 kubernetes-api.aurora.cluster" > "$2"
mount --bind "$2" /etc/hosts
hostname head1
exec sleep infinity
"""
_CALL = """
import json, sys
import tests.unit.test_node_state  # lets the modules of the nodes be found
from ansible.module_utils import basic
from tests.unit.test_role_plugins import plugin
name, arguments, check = json.load(sys.stdin)
basic._ANSIBLE_ARGS = json.dumps({"ANSIBLE_MODULE_ARGS": {**arguments, "_ansible_check_mode": check}}).encode()
basic._ANSIBLE_PROFILE = "legacy"
plugin(f"modules/{name}").main()
"""


class ControlPlane:
    """The programs of one head in namespaces."""

    def __init__(self, folder: Path, holder: int, rendered: rendering.Cluster) -> None:
        self.folder, self.rendered = folder, rendered
        self._enter = ["nsenter", f"--target={holder}", "--mount", "--net", "--uts", "--ipc", "--pid"]
        path = "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
        self._environment = {"PATH": path, "KUBECONFIG": "/etc/kubernetes/admin.conf", "HOME": str(folder)}
        self._environment["PYTHONPATH"] = str(REPOSITORY)  # a module is of this tree, also in an environment of another

    def ask(self, *argv: str, stdin: object = None, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run a program in the namespaces; `stdin` is text, or an object for JSON."""
        given = stdin if stdin is None or isinstance(stdin, str) else json.dumps(stdin)
        return subprocess.run(
            [*self._enter, *argv], input=given or "", env={**self._environment, **environment},
            cwd=REPOSITORY, text=True, capture_output=True, timeout=GUARD, check=False,
        )  # fmt: skip

    def run(self, *argv: str, stdin: object = None, **environment: str) -> str:
        """Run a program that must succeed; return its output."""
        done = self.ask(*argv, stdin=stdin, **environment)
        assert done.returncode == 0, described(done)
        return done.stdout

    def get(self, *argv: str) -> Any:
        """Return an object, or the items of a list."""
        found = json.loads(self.run("kubectl", "get", *argv, "--output=json"))
        return found.get("items", found)

    def call(self, module: str, arguments: Mapping[str, object], *, check: bool = False) -> dict[str, Any]:
        """Run a module of Ansible on the head; return its result."""
        found: dict[str, Any] = json.loads(self.run(sys.executable, "-c", _CALL, stdin=[module, arguments, check]))
        return found

    def changes(self, module: str, arguments: Mapping[str, object], *, check: bool = False) -> list[str]:
        """Run a module of Ansible on the head; return its changes."""
        return _described(self.call(module, arguments, check=check))

    def apply(self, part: str, objects: Sequence[Mapping[str, object]], *, check: bool = False) -> list[str]:
        """Apply objects as one call of kubernetes_objects that does not wait for pods; return its changes."""
        one = {"part": part, "objects": objects, "wait": 0, "state": "present"}
        done = self.call("kubernetes_objects", {"calls": [one]}, check=check)
        assert not done.get("failed"), done
        (result,) = done["results"]
        return _described(result)

    def objects(self, role: str, **variables: object) -> list[dict[str, Any]]:
        """Return the objects of a role's templates."""
        for name, value in variables.items():
            self.rendered.set("head1", **{name: value})
        found = self.rendered.role(role, "head1")
        texts = [found.content({"template": name}) or b"" for name in found.value(f"__{role}_templates")]
        return [one for text in texts for one in yaml.safe_load_all(text) if one]

    def launch(self, name: str, *argv: str) -> "subprocess.Popen[bytes]":
        """Start a program that runs until the control plane ends at the latest; its output is in `name`.log."""
        with (self.folder / f"{name}.log").open("w") as log:
            return subprocess.Popen([*self._enter, *argv], env=self._environment, stdout=log, stderr=log)

    def start(self) -> None:
        """Write what kubeadm derives, start the programs, and wait until the API server is ready."""
        self._phases("certs all", "kubeconfig all", "etcd local", "control-plane all")
        for component in COMPONENTS:
            manifest = yaml.safe_load(self.run("cat", f"/etc/kubernetes/manifests/{component}.yaml"))
            self.launch(component, *manifest["spec"]["containers"][0]["command"])
            if component == "kube-apiserver":
                self._wait(self.folder / f"{component}.log")
        self._phases("upload-config all", "bootstrap-token", "addon all")
        token = "--field-selector=type=bootstrap.kubernetes.io/token"
        # As the module does.
        self.run("kubectl", "delete", "secrets", "--namespace=kube-system", token)
        self.run("kubectl", "delete", "clusterrolebinding", "kubeadm:node-autoapprove-bootstrap")

    def _phases(self, *names: str) -> None:
        for name in names:
            self.run("kubeadm", "init", "phase", *name.split(), "--config=/etc/kubernetes/clusterctl/kubeadm.yaml")

    def _wait(self, log: Path) -> None:
        deadline = time.monotonic() + GUARD
        while self.ask("kubectl", "get", "--raw=/readyz").stdout != "ok":
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.5)


def _described(done: Mapping[str, Any]) -> list[str]:
    """Return the changes of a module's result as text."""
    assert not done.get("failed"), done
    return [" ".join((one["action"], one["name"], one["what"])).strip() for one in done["changes"]]


def render(folder: Path, files: Mapping[str, str], **variables: object) -> rendering.Cluster:
    """Write what role kubernetes_head gives its head below `folder`/root; return the cluster, which has these files."""
    directory = folder / "cluster"
    (directory / "hardware").mkdir(parents=True)
    for name, text in files.items():
        (directory / name).write_text(text)
    hosts = {"head1": ADDRESS, "gpu01": "10.99.0.11", "gpu02": "10.99.0.12"}
    for name, address in hosts.items():
        record = rendering.record(name, int(name != "head1"), SYSTEM)
        record["nics"][0] |= {"name": "eth0", "addresses": [f"{address}/24"]}
        (directory / f"hardware/{name}.json").write_text(json.dumps(record))
    groups = {"kubernetes_head": ["head1"], "kubernetes_workers": ["gpu01", "gpu02"]}
    children = {
        group: {"hosts": {name: {"ansible_host": hosts[name]} for name in names}} for group, names in groups.items()
    }
    variables = {"cluster_name": "aurora", "cluster_networks": ["10.99.0.0/24"], **variables}
    (directory / "inventory.yaml").write_text(yaml.safe_dump({"all": {"vars": variables, "children": children}}))
    rendering.seal(directory)
    cluster = rendering.Cluster(directory / "inventory.yaml", SYSTEM, {})
    found = {"state": "new", "version": "1.36.3", "fixed": {}}
    role = cluster.role("kubernetes_head", "head1", __kubernetes_head_found=found, ansible_play_hosts=["head1"])
    given: Mapping[str, Any] = next(given for path, given in role.calls() if path.name == "main.yml")
    for item in given["directories"]:
        (folder / "root" / item["path"][1:]).mkdir(parents=True, exist_ok=True)
    for item in given["files"]:
        content = role.content(item)
        if content is not None:
            path = folder / "root" / item["dest"][1:]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(re.sub(b"(?m)secret: [A-Za-z0-9+/=]+$", b"secret: " + KEY.encode(), content))
            path.chmod(int(item.get("mode", "0644"), 8))
    return cluster


def programs(folder: Path) -> Path:
    """Extract the kit's programs of a head; return their directory."""
    made = kit.build(kit_recipe.load(("kubernetes",)), lambda _: None)
    target = folder / "programs"
    target.mkdir()
    for package in made.results["kubernetes"].glob("*.deb"):
        subprocess.run(["dpkg-deb", "--extract", package, target], check=True)
    for recipe, image in (("etcd", "etcd"), *(("kubernetes", name) for name in COMPONENTS[1:])):
        (archive,) = made.results[recipe].glob(f"*+{image}.tar")
        subprocess.run(["tar", "--extract", f"--file={archive}", f"--directory={target}"], check=True)
    return target


@contextmanager
def running(
    folder: Path, files: Mapping[str, str] = MappingProxyType({}), **variables: object
) -> Iterator[ControlPlane]:
    """Start a control plane; all of it ends with the first process of its namespaces.

    `files` are further files of the cluster's directory, by name.
    """
    rendered, found = render(folder, files, **variables), programs(folder)
    argv = ["unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
    script = ["bash", "-c", _ENTER, "bash", str(folder / "root"), str(folder / "hosts"), str(found)]
    holder = subprocess.Popen([*argv, *script])
    try:
        control_plane = ControlPlane(folder, _inner(holder), rendered)
        control_plane.start()
        yield control_plane
    finally:
        holder.kill()
        holder.wait(GUARD)


def _inner(holder: "subprocess.Popen[bytes]") -> int:
    """Return the first process of the namespaces, once it has prepared them."""
    deadline = time.monotonic() + GUARD
    children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
    while time.monotonic() < deadline and holder.poll() is None:
        for child in children.read_text().split():
            if Path(f"/proc/{child}/comm").read_text() == "sleep\n":
                return int(child)
        time.sleep(0.05)
    raise AssertionError("the namespaces of the control plane were not prepared")
