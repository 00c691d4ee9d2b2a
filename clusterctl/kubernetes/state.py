"""The state of a Kubernetes cluster for `status`: its nodes, its GPUs, and the pods that wait."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from clusterctl.kubernetes import objects
from clusterctl.kubernetes.objects import KubernetesNode, Pod
from clusterctl.nodes.session import ContactError, Session
from clusterctl.util.text import printable

# --cache-dir: kubectl writes the API's list of resources to /root/.kube otherwise, which is not ours.
KUBECTL = (
    "kubectl",
    "--kubeconfig=/etc/kubernetes/admin.conf",
    "--cache-dir=/var/cache/clusterctl/kubectl",
    "--request-timeout=20s",
)
# A site's proxies do not reach the API, and Go's programs use them for all but local addresses. A command has them from
# /etc/environment: sshd sets it for root, and sudo of Ubuntu and RHEL (pam_env in /etc/pam.d) for others.
PROXIES = tuple(name for kind in ("http", "https", "all") for name in (f"{kind}_proxy", f"{kind}_proxy".upper()))
MAX_REPLY = 256 << 20  # bytes; enough for 500 nodes of 300 kB, or their 25,000 pods with 10 kB of fields each
GET_NODES = (*KUBECTL, "get", "nodes", "--output=json")
GET_PODS = (*KUBECTL, "get", "pods", "--all-namespaces", f"--output={objects.POD_OUTPUT}")
_SECONDS = 30.0
_NO_SUCH_COMMAND = 127  # exit code of a shell; sudo prints a message and exits with 1
MAX_WAITING = 1000


@dataclass(frozen=True)
class Kubernetes:
    """The state of the API server; pods by phase. `problem` is set if the API server did not respond."""

    nodes: Mapping[str, KubernetesNode] = field(default_factory=dict)
    pods: Mapping[str, int] = field(default_factory=dict)
    """The number of workloads by phase; without the pods of the system that each node has."""
    waiting: tuple[Pod, ...] = ()
    """The pods that wait for more than their images and volumes."""
    problem: str = ""


def ask_kubernetes(session: Session) -> Kubernetes:
    """Return the state of the cluster, from the connected head."""
    answers = []
    try:
        for argv in (GET_NODES, GET_PODS):
            status, out, err = session.run(argv, root=True, timeout=_SECONDS, limit=MAX_REPLY, unset=PROXIES)
            if status:
                return Kubernetes(problem=problem(status, err))
            answers.append(out)
        return state(*answers)
    except ContactError as error:
        return Kubernetes(problem=error.found)
    except (ValueError, RecursionError) as error:
        return Kubernetes(problem=f"kubectl printed invalid output: {printable(str(error), 200)}")


def state(nodes: str, pods: str) -> Kubernetes:
    """Return the state from kubectl's nodes and pods. Raises ValueError for invalid output."""
    found = objects.pods(pods)
    on_node: dict[str, list[Pod]] = defaultdict(list)
    for pod in found:
        on_node[pod.node].append(pod)
    known = {
        name: replace(node, allocated=objects.allocated(on_node[name], node.model))
        for name, node in objects.nodes(nodes).items()
    }
    counts = Counter(pod.phase for pod in found if pod.is_workload)
    return Kubernetes(known, dict(counts), tuple(pod for pod in found if pod.is_stuck)[:MAX_WAITING])


def problem(status: int, err: str) -> str:
    """Return kubectl's error in one line: the last one, because lines of its log precede it."""
    if status == _NO_SUCH_COMMAND or "command not found" in err:
        return "Kubernetes is not installed on the head yet"
    lines = [line for line in err.splitlines() if line.strip()]
    return printable(lines[-1], 200) if lines else f"kubectl failed with exit code {status}"


def reasons(pods: Sequence[Pod]) -> dict[str, list[str]]:
    """Return the pods that wait by their reason; pods of one controller often have the same."""
    found: dict[str, list[str]] = {}
    for pod in pods:
        found.setdefault(pod.reason, []).append(pod.id)
    return found
