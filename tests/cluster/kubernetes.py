"""Kubernetes in a lab: clusters of one or several heads, their API as root of a head has it, and pods started there."""

import base64
import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import yaml

from clusterctl.lab.lab_inventory import KUBERNETES_RECIPES
from tests.cluster.lab import HERE, SSH_LIMIT, TestLab, clusterctl, podman
from tests.faults.injury import container, wait_until
from tests.programs import call, described, output_of

RECIPES = KUBERNETES_RECIPES
"""What a lab here needs of the kit; `scripts/test` builds it before the first test."""
BUSYBOX = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1"
ADMIN = "/etc/kubernetes/admin.conf"
GPU = "nvidia.com/gpu"
LIMIT = "--request-timeout=20s"
"""Of one request of kubectl: an API server that stops may accept it and not answer."""
WATCHING = ("delete", "wait")
"""What kubectl does in one long request, until objects are as they are to be."""
PORT = 8080
Manifest = dict[str, Any]


class Kubernetes(TestLab):
    """A lab under test whose cluster is Kubernetes'."""

    heads: ClassVar[int] = 1

    @property
    def head_names(self) -> list[str]:
        return [f"head{number}" for number in range(1, self.heads + 1)]

    @property
    def worker_names(self) -> list[str]:
        return [f"gpu{number:02}" for number in range(1, self.workers + 1)]

    @property
    def nodes(self) -> list[str]:
        return self.head_names + self.worker_names

    def up(self, *options: str) -> None:
        super().up("--scheduler", "kubernetes", "--heads", str(self.heads), *options)

    # The API

    def ask(self, *argv: str, stdin: str = "", head: str = "head1") -> "subprocess.CompletedProcess[str]":
        """Run kubectl on a head as its root, whatever comes of it."""
        options = [f"--kubeconfig={ADMIN}", "--cache-dir=/var/cache/clusterctl/kubectl"]
        options += [] if argv[0] in WATCHING else [LIMIT]
        command = shlex.join(["kubectl", *options, *argv])
        return call(self.ssh_argv(head, f"sudo {command}"), SSH_LIMIT, input=stdin)

    def kubectl(self, *argv: str, stdin: str = "", head: str = "head1") -> str:
        """Run kubectl, which must succeed; return what it printed."""
        done = self.ask(*argv, stdin=stdin, head=head)
        assert done.returncode == 0, described(done)
        return done.stdout

    def get(self, *argv: str, head: str = "head1") -> Any:
        """Return what kubectl gets as its document: an object, or the objects of a list."""
        document = json.loads(self.kubectl("get", "--output=json", *argv, head=head))
        return document["items"] if document["kind"].endswith("List") else document

    def apply(self, *manifests: Manifest, head: str = "head1") -> None:
        self.kubectl("apply", "--filename=-", stdin=listed(manifests), head=head)

    def delete(self, *manifests: Manifest, head: str = "head1") -> None:
        """Delete objects and wait until they are no more."""
        self.kubectl("delete", "--ignore-not-found", "--filename=-", stdin=listed(manifests), head=head)

    def refused(self, manifest: Manifest) -> str:
        """Return why the API does not take a manifest."""
        done = self.ask("create", "--filename=-", stdin=json.dumps(manifest))
        assert done.returncode != 0, described(done)
        return done.stderr

    # Nodes

    def ready(self, head: str = "head1") -> dict[str, bool]:
        """Return of each node whether kubelet says that it is ready; empty while the API does not answer."""
        done = self.ask("get", "nodes", "--output=json", head=head)
        nodes = json.loads(done.stdout)["items"] if done.returncode == 0 else []
        return {node["metadata"]["name"]: condition(node, "Ready") == "True" for node in nodes}

    def cordoned(self) -> set[str]:
        return {node["metadata"]["name"] for node in self.get("nodes") if node["spec"].get("unschedulable")}

    def ledger(self) -> dict[str, dict[str, str]]:
        """Return what keeps each node out of service: causes and reasons."""
        causes: dict[str, dict[str, str]] = json.loads(self.root("head1", "kubernetes-drain"))
        return causes

    def gpus(self, node: str) -> int:
        """Return how many GPUs of a node pods can have."""
        return int(self.get("node", node)["status"]["allocatable"].get(GPU, "0"))

    def address(self, node: str) -> str:
        shown = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        return podman("inspect", "--format", shown, container(self, node)).strip()

    def inside(self, node: str, *argv: str, stdin: str = "") -> str:
        """Run a command in a node that does not know us any more."""
        command = ["podman", "exec", "--interactive", container(self, node), *argv]
        return output_of(command, SSH_LIMIT, input=stdin)

    def remains(self, node: str) -> dict[str, Any]:
        """Return the manifest of a node that has left."""
        text = self.inside(node, "python3", "-", stdin=(HERE / "manifest.py").read_text())
        found: dict[str, Any] = json.loads(text)
        return found

    # Pods

    def pods(self, *argv: str, head: str = "head1") -> list[Manifest]:
        found: list[Manifest] = self.get("pods", *(argv or ("--all-namespaces",)), head=head)
        return found

    def containers(self, *nodes: str, head: str = "head1") -> dict[str, tuple[str, ...]]:
        """Return the containers of all pods on these nodes that nobody has deleted, by the pods' UIDs.

        With a restart there is another container. Pods that delete a volume do not count: that of verify's test may
        still be deleted after a run.
        """
        return {
            pod["metadata"]["uid"]: (
                pod["metadata"]["name"],
                *(f"{one['containerID']} {one['restartCount']}" for one in pod["status"]["containerStatuses"]),
            )
            for pod in self.pods(head=head)
            if pod["spec"].get("nodeName") in nodes
            and pod["status"]["phase"] == "Running"
            and "deletionTimestamp" not in pod["metadata"]
            and not pod["metadata"]["name"].startswith("helper-pod-")
        }

    def phase(self, pod: Manifest, head: str = "head1") -> str:
        return str(self.get("pod", *named(pod), head=head)["status"]["phase"])

    def logs(self, pod: Manifest, head: str = "head1") -> str:
        return self.kubectl("logs", *named(pod), head=head)

    def output(self, pod: Manifest, head: str = "head1") -> str:
        """Run a pod to its end, which must be a good one; return what it printed."""
        self.apply(pod, head=head)
        try:
            wait_until(
                lambda: self.phase(pod, head) in ("Succeeded", "Failed"),
                lambda: self.kubectl("describe", "pod", *named(pod), head=head),
            )
            printed = self.logs(pod, head)
            assert self.phase(pod, head) == "Succeeded", printed
            return printed
        finally:
            self.delete(pod, head=head)

    @contextmanager
    def running(self, *manifests: Manifest) -> Iterator[None]:
        """Have objects for a while, deployments and pods among them ready."""
        self.apply(*manifests)
        try:
            for manifest in manifests:
                self.wait(manifest)
            yield
        finally:
            self.delete(*manifests)

    def wait(self, manifest: Manifest) -> None:
        """Wait until a deployment or a pod is ready."""
        if manifest["kind"] in ("Deployment", "Pod"):
            kind = manifest["kind"].lower()
            what = "Available" if kind == "deployment" else "Ready"
            done = self.ask("wait", f"--for=condition={what}", "--timeout=240s", kind, *named(manifest))
            assert done.returncode == 0, described(done) + self.kubectl("describe", "pods")


def listed(manifests: Sequence[Manifest]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})


def named(manifest: Manifest) -> tuple[str, str]:
    """Return the arguments by which kubectl finds an object of this kind."""
    metadata = manifest["metadata"]
    return f"--namespace={metadata.get('namespace', 'default')}", metadata["name"]


def condition(node: Mapping[str, Any], kind: str) -> str:
    return next((str(one["status"]) for one in node["status"]["conditions"] if one["type"] == kind), "")


# Manifests


def _spec(image: str, script: str, gpus: int, node: str) -> Manifest:
    one: Manifest = {"name": "main", "image": image, "command": ["sh", "-euc", script]}
    if gpus:
        one["resources"] = {"limits": {GPU: gpus}}
    return {
        "containers": [one],
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": {"kubernetes.io/hostname": node} if node else {},
        "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
    }


def pod(name: str, image: str, script: str, *, gpus: int = 0, node: str = "", **spec: Any) -> Manifest:
    """Return a pod that runs a shell script once; `spec` are further fields of its specification."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {**_spec(image, script, gpus, node), "restartPolicy": "Never", **spec},
    }


def deployment(name: str, script: str, *, replicas: int = 1, node: str = "", image: str = BUSYBOX) -> Manifest:
    """Return a deployment of pods that run a shell script."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": _spec(image, script, 0, node)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }


def website(name: str, *, replicas: int = 1, node: str = "") -> tuple[Manifest, Manifest]:
    """Return a deployment of web servers and its service.

    A pod that is to end is served no more before it does: it waits until all nodes have heard of it.
    """
    # The first process of a container gets no signal that it has not asked for.
    script = f"mkdir -p /www; hostname > /www/index.html; trap 'exit 0' TERM; httpd -f -p {PORT} -h /www & wait"
    found = deployment(name, script, replicas=replicas, node=node)
    spec = found["spec"]["template"]["spec"]
    spec["terminationGracePeriodSeconds"] = 20
    spec["containers"][0] |= {
        "ports": [{"containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": "/", "port": PORT}, "periodSeconds": 1},
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", "5"]}}},
    }
    return found, {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": PORT}]},
    }


def budget(name: str, least: int) -> Manifest:
    """Return a budget: of the pods of this name so many are always to be there."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": name}}},
    }


# What is asked without Kubernetes' own programs


def status_of(lab: TestLab, node: str, url: str, *options: str) -> str:
    """Return the status with which a URL answers curl on a node, 000 where nothing answers."""
    ask = ["curl", "--silent", "--insecure", "--max-time", "5", "--output", "/dev/null", "--write-out", "%{http_code}"]
    return lab.root(node, f"{shlex.join([*ask, *options, url])} || true").strip()


def etcd(lab: TestLab, path: str, question: Mapping[str, Any], head: str = "head1") -> Any:
    """Return what a head's etcd answers by its JSON gateway, asked with the head's own certificate."""
    place = "/etc/kubernetes/pki/etcd"
    asked = json.dumps(question)
    options = (f"--cacert={place}/ca.crt", f"--cert={place}/healthcheck-client.crt",
               f"--key={place}/healthcheck-client.key", f"--data={asked}")  # fmt: skip
    command = ["curl", "--silent", "--fail", *(word for option in options for word in option.split("=", 1))]
    return json.loads(lab.root(head, shlex.join([*command, f"https://127.0.0.1:2379/v3/{path}"])))


def stored(lab: TestLab, key: str) -> bytes:
    """Return what etcd has under a key."""
    answer = etcd(lab, "kv/range", {"key": base64.b64encode(key.encode()).decode()})
    (found,) = answer["kvs"]
    return base64.b64decode(found["value"])


def members(lab: TestLab, head: str) -> set[str]:
    """Return the names of etcd's members, as that of one head has them."""
    return {member.get("name", "not started") for member in etcd(lab, "cluster/member/list", {}, head)["members"]}


def api_url(lab: TestLab, node: str) -> str:
    """Return where a node's kubelet finds the API."""
    (found,) = re.findall(r"server: (https://\S+)", lab.root(node, "cat /etc/kubernetes/kubelet.conf"))
    return str(found)


def tokens(lab: Kubernetes) -> list[str]:
    """Return the tokens with which a node could join: of kubeadm, and as the API has them."""
    listed = lab.root("head1", f"kubeadm token list --kubeconfig {ADMIN} --output json").split()
    kind = "--field-selector=type=bootstrap.kubernetes.io/token"
    return [*listed, *(one["metadata"]["name"] for one in lab.get("secrets", "--namespace=kube-system", kind))]


def kubeconfig(lab: TestLab, *options: str) -> str:
    """Return what `clusterctl kubeconfig` prints."""
    done = clusterctl("kubeconfig", str(lab.inventory), *options)
    assert done.returncode == 0, described(done)
    return done.stdout


def user_of(text: str) -> Mapping[str, Any]:
    """Return the context of a kubeconfig: cluster, user and namespace."""
    document = yaml.safe_load(text)
    (found,) = (one["context"] for one in document["contexts"] if one["name"] == document["current-context"])
    return dict(found)


# Membership


def adding(lab: Kubernetes, node: str) -> tuple[str, ...]:
    """Return what add-node is given for a node that has left."""
    return (node, "--address", lab.address(node), "--yes", "--accept-new-host-keys")
