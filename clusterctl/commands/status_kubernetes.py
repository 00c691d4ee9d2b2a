"""The parts of `status` about Kubernetes: why a node is out of service, which pods wait, and the command that helps."""

import re
from collections.abc import Iterator, Mapping

from clusterctl.commands.status_report import Status
from clusterctl.kubernetes.objects import KubernetesNode
from clusterctl.kubernetes.state import Kubernetes, reasons
from clusterctl.util.text import plural

MAX_REASONS = 10
_NAMES = 3
_KUBECTL = "sudo kubectl --kubeconfig=/etc/kubernetes/admin.conf"
# Templates of commands, as in status_page.
_UNCORDON = f"on a head: {_KUBECTL} uncordon {{spaces}}"
_FORGET = "on a head: sudo /usr/local/sbin/kubernetes-drain --forget {commas}"
_ADMIT = "on a head: sudo /usr/local/sbin/kubernetes-drain {cause} --in {{commas}}"


def remedy(node: KubernetesNode, line: str, causes: Mapping[str, str], bootstrap: str) -> str:
    """Return the command that helps with a line of `KubernetesNode.why`; `causes` are commands by cause of a drain."""
    prefix = line.partition(": ")[0]
    cause = prefix.rpartition(" ")[2]
    is_recorded = cause in node.causes and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", cause)
    if is_recorded and prefix == f"drained by {cause}":
        return causes.get(cause, _ADMIT.format(cause=cause))
    if is_recorded and prefix.startswith("not cordoned, though"):
        return _ADMIT.format(cause=cause)
    if line.startswith("cordoned"):
        return _UNCORDON
    return "" if node.ready else bootstrap


def notes(status: Status, bootstrap: str) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the text and the remedy of each note about the cluster and its pods."""
    kubernetes = status.kubernetes
    if kubernetes is None:
        return
    if kubernetes.problem:
        yield "kubernetes", kubernetes.problem, ""
        return
    yield from ((name, "has not joined Kubernetes", bootstrap) for name in status.unjoined)
    strange = [name for name in kubernetes.nodes if name not in {node.name for node in status.nodes}]
    yield from ((name, "is in Kubernetes, and not in the inventory", _FORGET) for name in strange)
    for name, node in kubernetes.nodes.items():
        for kind, count in node.unhealthy.items():
            yield name, f"{count} of its {kind} GPUs cannot be allocated", "clusterctl health {inventory} {braces}"
    waiting = reasons(kubernetes.waiting)
    for reason, pods in list(waiting.items())[:MAX_REASONS]:
        more = f" and {len(pods) - _NAMES} more" if len(pods) > _NAMES else ""
        wait = "waits" if len(pods) == 1 else "wait"
        yield "pods", f"{', '.join(pods[:_NAMES])}{more} {wait}: {reason}", ""
    if len(waiting) > MAX_REASONS:
        yield "pods", f"{plural(len(waiting) - MAX_REASONS, 'more reason')} to wait; --output json has all pods", ""


def pods(kubernetes: Kubernetes) -> str:
    """Return the number of pods by phase, without those that each node has."""
    return ", ".join(f"{count} {phase.lower()}" for phase, count in sorted(kubernetes.pods.items())) or "none"
