"""kubectl on a head: pods on nodes, drained nodes, removed nodes."""

import json
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from clusterctl.kubernetes import members, objects
from clusterctl.kubernetes.members import Member
from clusterctl.kubernetes.objects import KubernetesNode, Pod
from clusterctl.kubernetes.state import GET_NODES, GET_PODS, KUBECTL, MAX_REPLY, PROXIES, problem
from clusterctl.nodes.head_commands import HeadCommands
from clusterctl.util.errors import HeadFailed
from clusterctl.util.text import duration, plural, printable

T = TypeVar("T")

# Programs of role kubernetes_head. ETCD refuses a removal that would lose the quorum, too.
DRAIN = "/usr/local/sbin/kubernetes-drain"
ETCD = "/usr/local/sbin/kubernetes-etcd"
_NODE_SECONDS = 5.0  # what DRAIN may take for each node: it runs up to three kubectl processes, one after another
COMPLETE = "/etc/kubernetes/clusterctl/complete"  # what kubernetes_control_plane writes at the end
POLL_SECONDS = 1.0
RETRY_SECONDS = 5.0  # after a refused eviction, as `kubectl drain` waits (k8s.io/kubectl/pkg/drain)
_FEW = 8  # nodes; for more of them, one request for all pods is cheaper
# The pods of a node with this taint are deleted without the kubelet, and their volumes detached: only for a node that
# is known to be off (https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown).
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
# The kubelet stops a static pod whose manifest is gone, and gives it 30 s to end. haproxy may listen on the same port.
_STOP_SECONDS = 90.0
_STOP = (
    f"rm -f /etc/kubernetes/manifests/kube-apiserver.yaml; for i in $(seq {_STOP_SECONDS:.0f}); do"
    " ss -Hltnp | grep -q kube-apiserver || exit 0; sleep 1; done; echo kube-apiserver still listens >&2; exit 1"
)
_MISSING = "(NotFound)"
# For some refusals the API server sets Retry-After; kubectl then retries for up to 100 s (k8s.io/client-go/rest).
_EVICT = ("timeout", "10", *KUBECTL, "create", "--filename=-")
_TIMED_OUT = 124


class KubernetesController(HeadCommands):
    """The API server, through kubectl on a head; run/scheduler.py documents the methods.

    A command that fails raises HeadFailed with its output.
    """

    limit = MAX_REPLY
    unset = PROXIES

    def is_set_up(self) -> bool:
        """Return whether clusterctl has set up Kubernetes on the head."""
        return self._try("test", "-e", COMPLETE)[0] == 0

    # --- nodes ---

    def nodes(self) -> dict[str, KubernetesNode]:
        """Return all nodes."""
        return self._parse(objects.nodes, *GET_NODES)

    def drain(self, cause: str, nodes: Sequence[str], reason: str) -> None:
        """Cordon nodes for this cause."""
        self._run_drain(nodes, cause, "--out", ",".join(nodes), "--reason", reason)

    def resume(self, cause: str, nodes: Sequence[str]) -> None:
        """Remove a cause of nodes."""
        self._run_drain(nodes, cause, "--in", ",".join(nodes))

    def _run_drain(self, nodes: Sequence[str], *argv: str) -> None:
        self._run(DRAIN, *argv, more_seconds=_NODE_SECONDS * len(nodes))

    def drained_for(self, cause: str) -> list[str]:
        """Return the nodes that are drained for this cause, and perhaps others."""
        return [name for name, node in self.nodes().items() if cause in node.causes]

    def drained(self) -> list[str]:
        """Return the cordoned nodes; none if the API server does not respond."""
        status, out, _ = self._try(*GET_NODES)
        return sorted(name for name, node in objects.nodes(out).items() if node.cordoned) if status == 0 else []

    def hears_from(self, node: str) -> bool:
        """Return whether a node's kubelet has reported recently; False for an unknown node."""
        found = self.nodes().get(node)
        return found is not None and found.ready

    def mark_down(self, nodes: Sequence[str], reason: str) -> None:
        """Have the pods of nodes that are off deleted, so that their controllers start them on other nodes."""
        for node in nodes:
            status, _, err = self._try(*_taint(node))
            if status and _MISSING not in err:
                raise self._failed("kubectl taint", status, err)

    def is_other_machine(self, node: str, machine_id: str) -> bool:
        """Return whether a node was registered by another machine: the kubelet reports its /etc/machine-id."""
        found = self.nodes().get(node)
        return found is not None and found.machine_id != machine_id

    def forget(self, nodes: Sequence[str]) -> None:
        """Delete removed nodes, and the members of etcd that ran on them."""
        if nodes and self.is_set_up():
            self.leave(nodes)
            self._run_drain(nodes, "--forget", ",".join(nodes))

    # --- pods ---

    def workloads(self, nodes: Sequence[str]) -> list[Pod]:
        """Return the pods on these nodes that a drain waits for."""
        if len(nodes) > _FEW:
            found = self._parse(objects.pods, *GET_PODS)
        else:
            selectors = [f"--field-selector=spec.nodeName={node}" for node in nodes]
            found = [pod for one in selectors for pod in self._parse(objects.pods, *GET_PODS, one)]
        return [pod for pod in found if pod.is_workload and pod.node in nodes]

    def doomed(self, nodes: Sequence[str]) -> list[Pod]:
        """Evict the pods, and return those that stay: without a controller, or held by a disruption budget."""
        held: dict[str, str] = {}
        pods = self.workloads(nodes)
        self._evict(pods, held, {})
        return [replace(pod, reason=held.get(pod.id, "")) for pod in pods if pod.id in held or not pod.controller]

    def cancel(self, ids: Sequence[str]) -> None:
        """Delete pods; disruption budgets are not respected."""
        names: dict[str, list[str]] = {}
        for namespace, _, name in (one.partition("/") for one in ids):
            names.setdefault(namespace, []).append(name)
        for namespace, of_it in names.items():
            self._run(
                *KUBECTL, "delete", "pods", f"--namespace={namespace}", "--wait=false", "--ignore-not-found", *of_it
            )

    def wait_until_empty(self, nodes: Sequence[str], say: Callable[[str], None], seconds: float | None) -> list[Pod]:
        """Evict pods until none is left on these nodes, for at most `seconds`; return the remaining pods.

        A pod without a controller is not evicted, because nothing would start it again: wait until it ends. An eviction
        that a disruption budget forbids is retried.
        """
        started, reported = time.monotonic(), ""
        held: dict[str, str] = {}
        tried: dict[str, float] = {}
        while True:
            pods = [replace(pod, reason=held.get(pod.id, "")) for pod in self.workloads(nodes)]
            waited = time.monotonic() - started
            if not pods or (seconds is not None and waited >= seconds):
                return pods
            self._evict(pods, held, tried)
            if (now := _progress(pods, held)) != reported:
                reported = now
                limit = "" if seconds is None else f", at most {duration(seconds)}"
                say(f"  waiting for {plural(len(pods), 'pod')} to end{limit}: {now}")
            time.sleep(POLL_SECONDS if seconds is None else min(POLL_SECONDS, max(0.05, seconds - waited)))

    def _evict(self, pods: Sequence[Pod], held: dict[str, str], tried: dict[str, float]) -> None:
        """Request the eviction of each pod with a controller; record in `held` why one was refused.

        `tried` has the time of the last request by pod. https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/
        """
        for pod in pods:
            now = time.monotonic()
            if pod.is_ending or not pod.controller or now < tried.get(pod.id, now - RETRY_SECONDS) + RETRY_SECONDS:
                continue
            tried[pod.id] = now
            body = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": pod.name, "namespace": pod.namespace},
            }
            path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction"
            status, _, err = self._try(*_EVICT, f"--raw={path}", stdin=json.dumps(body))
            held.pop(pod.id, None)
            if status == _TIMED_OUT:
                held[pod.id] = "the API server delays its eviction"
            elif status and _MISSING not in err:
                held[pod.id] = problem(status, err).removeprefix("Error from server (TooManyRequests): ")

    # --- heads ---

    def members(self) -> list[Member]:
        """Return the members of etcd. Fails without a quorum."""
        return self._parse(members.parse, ETCD)

    def require_spare(self, heads: Sequence[str]) -> None:
        """Raise HeadFailed if etcd would lose its quorum while these heads are down. A single head has no spare."""
        found = self.members()
        if len(found) > 1 and (reason := members.quorum_problem(found, heads)):
            raise HeadFailed(f"{self._name}: {reason}")

    def removal_problem(self, nodes: Sequence[str]) -> str:
        """Return why these nodes cannot be removed: etcd would lose its quorum. Empty if they can."""
        try:
            self._removal_order(nodes)
        except members.QuorumError as error:
            return str(error)
        return ""

    def stop_serving(self) -> None:
        """Stop this head's API server, and wait until it does not listen any more. Bootstrap starts it again."""
        self._run("/bin/sh", "-c", _STOP, more_seconds=_STOP_SECONDS)

    def leave(self, nodes: Sequence[str]) -> None:
        """Remove the members of etcd that run on these nodes, one by one. Raises HeadFailed for a lost quorum."""
        try:
            order = self._removal_order(nodes)
        except members.QuorumError as error:
            raise HeadFailed(f"{self._name}: {error}") from None
        for name in order:
            self._run(ETCD, "--remove", name)

    def _removal_order(self, nodes: Sequence[str]) -> list[str]:
        known = self.nodes()
        heads = [name for name in nodes if name in known and known[name].is_head]
        return members.removal_order(self.members(), heads) if heads else []

    def wait_for_head(self, head: str, seconds: float) -> str:
        """Wait until a head's node and its member of etcd are healthy; return what is wrong after `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if not self.hears_from(head):
                    reason = "its node is not ready"
                elif not any(member.name == head and member.healthy for member in self.members()):
                    reason = "its member of etcd is not healthy"
                else:
                    return ""
            except HeadFailed as error:  # the API server restarts
                reason = str(error)
            if time.monotonic() >= deadline:
                return reason
            time.sleep(POLL_SECONDS)

    # --- results ---

    def _parse(self, parse: Callable[[str], T], *argv: str) -> T:
        program = argv[0].rpartition("/")[2]
        status, out, err = self._try(*argv)
        if status:
            raise self._failed(program, status, err)
        try:
            return parse(out)
        except (ValueError, RecursionError) as error:
            text = printable(str(error), 200)
            raise HeadFailed(f"{self._name}: {program} printed invalid output: {text}") from None

    def _failed(self, what: str, status: int, err: str) -> HeadFailed:
        return HeadFailed(f"{self._name}: {what} failed: {problem(status, err)}")

    # --- the commands that an operator types instead ---

    @staticmethod
    def drain_command(cause: str, nodes: Sequence[str], reason: str) -> str:
        """Return the command that cordons nodes."""
        return "sudo " + shlex.join([DRAIN, cause, "--out", ",".join(nodes), "--reason", reason])

    @staticmethod
    def mark_down_commands(nodes: Sequence[str], reason: str) -> list[str]:
        """Return the commands that have the pods of nodes deleted."""
        return ["sudo " + shlex.join(_taint(node)) for node in nodes]

    @staticmethod
    def wait_step(nodes: Sequence[str]) -> str:
        """Return the command that evicts the pods and waits for them."""
        return ": sudo " + shlex.join([*KUBECTL, "drain", "--ignore-daemonsets", "--delete-emptydir-data", *nodes])

    @staticmethod
    def resume_command(cause: str, nodes: Sequence[str]) -> str:
        """Return the command that removes a cause."""
        return "sudo " + shlex.join([DRAIN, cause, "--in", ",".join(nodes)])

    @staticmethod
    def stop_serving_command() -> str:
        """Return the command that stops a head's API server."""
        return "sudo " + shlex.join(["sh", "-c", _STOP])

    @staticmethod
    def forget_command(nodes: Sequence[str]) -> str:
        """Return the command that deletes removed nodes, and their members of etcd."""
        return "sudo " + shlex.join([DRAIN, "--forget", ",".join(nodes)])


def _taint(node: str) -> list[str]:
    return [*KUBECTL, "taint", "nodes", "--overwrite", node, OUT_OF_SERVICE]


def _progress(pods: Sequence[Pod], held: dict[str, str]) -> str:
    """Return the first pod that remains, the number of others, and why some are not evicted."""
    parts = [f"{pods[0]}" + ", ..." * (len(pods) > 1)]
    if alone := sum(not pod.controller for pod in pods):
        parts.append(f"{plural(alone, 'pod')} without a controller, not evicted")
    if refused := sum(pod.id in held for pod in pods):
        parts.append(f"a disruption budget holds {plural(refused, 'pod')}")
    return "; ".join(parts)
