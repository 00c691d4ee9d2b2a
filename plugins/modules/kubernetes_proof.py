#!/usr/bin/python
"""Ansible module: test Kubernetes with pods. They must reach each other and get exactly the requested GPUs."""

from __future__ import annotations

import json
import time
from datetime import datetime

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.kubectl import as_list, get, kubectl
from ansible.module_utils.node_state.tools import NodeError, clean, run

DOCUMENTATION = r"""
module: kubernetes_proof
author: the clusterctl authors
short_description: Test Kubernetes with pods
description:
  - Waits until every worker is ready and offers its GPUs, and runs a pod on each of up to two of them. The containers
    resolve names, ask the pod on another node through a service, and check which GPUs they can open. Runs on a head, as
    root. The pods are not privileged.
  - If other pods occupy all GPUs, the pods request none, and a note reports it.
  - Changes nothing unless I(admit) is set.
options:
  nodes:
    description:
      - For each worker the C(resource) of its GPUs (empty without GPUs), its C(count), and the C(request) of a pod.
    type: dict
    required: true
  heads:
    description: Heads. If only one worker is tested, the other pod may run on a head.
    type: list
    elements: str
    default: []
  script:
    description: Text of the shell script that the containers run.
    type: str
    required: true
  image:
    description: The image of the containers, with a shell, wget, nslookup and httpd.
    type: str
    required: true
  domain:
    description: DNS domain of services.
    type: str
    default: cluster.local
  outside:
    description: Name of another domain that must resolve in a pod.
    type: str
    required: true
  volume:
    description: Whether a pod writes and reads a volume of the default StorageClass.
    type: bool
    default: false
  admit:
    description:
      - Causes of kubernetes-drain, such as C(new). Test every worker that is cordoned only for these causes, and put
        workers that pass into service.
    type: list
    elements: str
    default: []
attributes:
  check_mode: {support: none}
"""

EXAMPLES = r"""
- name: Prove that two workers run pods
  kubernetes_proof:
    nodes:
      gpu01: {resource: nvidia.com/gpu, count: 4, request: 2}
      gpu02: {resource: nvidia.com/gpu, count: 4, request: 2}
    script: "{{ lookup('ansible.builtin.file', 'pod.sh') }}"
    image: registry.k8s.io/e2e-test-images/busybox:1.37.0-1
    outside: head1.aurora.cluster
"""

RETURN = r"""
msg:
  description: What the tests have shown.
  type: str
  returned: always
notes:
  description: Remarks, such as why no GPUs were requested.
  type: list
  elements: str
  returned: always
down:
  description: What is wrong with each faulty worker. The others were tested without it.
  type: dict
  returned: always
admitted:
  description: Workers that have passed and are now in service.
  type: list
  elements: str
  returned: when workers waited for the test
"""

DRAIN = "/usr/local/sbin/kubernetes-drain"
NAMESPACE = "clusterctl-verify"
READY_S = 180  # for a kubelet that has just started, and for the device plugin
DECIDED_S = 10  # for a worker whose kubelet does not respond
PODS_S = 180  # the pull of an image included
BUSY_S = 20
DEADLINE_S = 600  # after it, a killed run's pods end
LEFT_S = 900  # after it, a volume of an earlier test should be deleted
HOSTNAME = "metadata.name"
USER = 65534


def conditions(item):
    """Return the conditions of a node or pod by type."""
    return {one["type"]: one for one in item.get("status", {}).get("conditions") or []}


def unready(node, given):
    """Return why a worker cannot run pods, or an empty text, and whether that may change soon."""
    if node is None:
        return "it is no node of the cluster: journalctl --unit kubelet", True
    ready = conditions(node).get("Ready", {})
    if ready.get("status") != "True":
        text = ready.get("message") or "its kubelet does not respond"
        return f"it is not ready: {clean(text, 200)}", ready.get("status") == "False"
    offered = int(node["status"].get("allocatable", {}).get(given["resource"], 0)) if given["resource"] else 0
    if given["resource"] and offered != given["count"]:
        hint = "kubectl --namespace nvidia-device-plugin get pods --output wide"
        return f"it offers {offered} {given['resource']}, expected {given['count']}: {hint}", True
    return "", False


def await_ready(nodes):
    """Wait until the workers are ready. Return all nodes of the cluster, and the reason for each that is not ready."""
    began = time.monotonic()
    while True:
        found = {node["metadata"]["name"]: node for node in get("nodes")}
        states = {name: unready(found.get(name), given) for name, given in nodes.items()}
        down = {name: why for name, (why, _) in states.items() if why}
        may_change = any(soon for _, soon in states.values())
        if not down or time.monotonic() - began > (READY_S if may_change else DECIDED_S):
            return found, down
        time.sleep(0.5)


def waiting(nodes, causes, admit):
    """Return the workers that are cordoned for these causes only."""
    return [name for name in sorted(nodes) if causes.get(name) and set(causes[name]) <= set(admit)]


def unhealthy(names, causes, admit):
    """Return the workers that wait for this test and have unhealthy GPUs, each with the reason.

    They count as faulty. Otherwise they would enter service untested as soon as their GPUs are healthy again.
    """
    return {
        name: f"no test pod was run, its GPUs are unhealthy: {causes[name]['health']}"
        for name in names
        if "health" in causes.get(name, {}) and set(admit) & set(causes[name])
    }


def choose(nodes, cluster):
    """Return up to two workers in service for the test; those with most GPUs first."""
    free = [name for name in nodes if not cluster[name]["spec"].get("unschedulable")]
    return sorted(free, key=lambda name: (-nodes[name]["count"], name))[:2]


def helpers(tested, cluster, given, without):
    """Return the node of the other pod if only one worker is tested: another worker, or else a head.

    A node that has just failed is ready for a while, so those that the run has reached are first.
    """
    ready = [name for name, node in cluster.items() if conditions(node).get("Ready", {}).get("status") == "True"]

    def rank(name):
        return (name not in given["nodes"] and name not in given["heads"], name in given["heads"], name)

    others = sorted(set(ready) - {*tested} - {*without}, key=rank)
    return others[:1] if len(tested) == 1 else []


def container(name, mode, given, environment, requests=None, volume=False):
    """Return a container that runs the script in a mode."""
    mounts = [{"name": "work", "mountPath": "/work"}]
    mounts += [{"name": "volume", "mountPath": "/volume"}] if volume else []
    return {
        "name": name,
        "image": given["image"],
        "command": ["sh", "-c", given["script"], "sh", mode],
        "env": [{"name": key, "value": value} for key, value in sorted(environment.items())],
        "resources": {"limits": requests or {}, "requests": {"cpu": "10m", "memory": "16Mi", **(requests or {})}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": mounts,
    }


def pod(node, number, peer, expected, given, requests, volume):
    """Return the test pod of a node. `peer` is the number of the pod that it asks, `expected` that pod's node.

    It goes through the scheduler, and tolerates that the node is cordoned.
    """
    # busybox's nslookup knows no search domains.
    services = f"svc.{given['domain']}"
    environment = {
        "NODE": node,
        "INSIDE": f"kubernetes.default.{services}",
        "OUTSIDE": given["outside"],
        "PEER": f"pod-{peer}.{NAMESPACE}.{services}",
        "EXPECTED": expected,
    }
    field = {"key": HOSTNAME, "operator": "In", "values": [node]}
    required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    containers = [
        container("serve", "serve", given, environment),
        container("plain", "reach", given, environment, volume=volume),
    ]
    containers += [container("gpu", "look", given, environment, requests)] if requests else []
    spec = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": DEADLINE_S,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": containers,
        "volumes": [{"name": "work", "emptyDir": {}}],
    }
    if volume:
        spec["initContainers"] = [container("write", "write", given, environment, volume=True)]
        spec["volumes"].append({"name": "volume", "persistentVolumeClaim": {"claimName": "volume"}})
    metadata = {"name": f"pod-{number}", "namespace": NAMESPACE, "labels": {"clusterctl/proof": str(number)}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def service(number):
    """Return the service of a test pod."""
    metadata = {"name": f"pod-{number}", "namespace": NAMESPACE}
    # A pod with a container that has ended is not ready, but the one that serves still runs.
    spec = {
        "publishNotReadyAddresses": True,
        "selector": {"clusterctl/proof": str(number)},
        "ports": [{"port": 8080}],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def claim():
    """Return a claim of the default StorageClass."""
    metadata = {"name": "volume", "namespace": NAMESPACE}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def objects(ring, nodes, given, with_gpus):
    """Return the objects of a test. The pod on each node of the ring asks the pod of the next one."""
    namespace = {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
    found = [{"apiVersion": "v1", "kind": "Namespace", "metadata": namespace}]
    found += [claim()] if given["volume"] else []
    for number, name in enumerate(ring):
        peer = (number + 1) % len(ring)
        own = nodes.get(name, {"resource": "", "request": 0})
        requests = {own["resource"]: str(own["request"])} if with_gpus and own["request"] else {}
        volume = given["volume"] and number == 0
        found += [service(number), pod(name, number, peer, ring[peer], given, requests, volume)]
    return found


def results(item):
    """Return the termination message of each container of a pod that has ended, by name."""
    statuses = item.get("status", {}).get("containerStatuses") or []
    ended = {one["name"]: one["state"]["terminated"] for one in statuses if "terminated" in one.get("state", {})}
    return {name: state.get("message", "") for name, state in ended.items()}


def is_done(item):
    """Return whether all containers but the server have ended, or the pod cannot run any more."""
    expected = {one["name"] for one in item["spec"]["containers"]} - {"serve"}
    return item.get("status", {}).get("phase") == "Failed" or expected <= results(item).keys()


def hindrance(item):
    """Return why a pod has not started or ended."""
    status = item.get("status", {})
    states = (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or [])
    for one in states:
        for state in one.get("state", {}).values():
            if state.get("reason") and state["reason"] not in ("Completed", "PodInitializing", "ContainerCreating"):
                return clean(f"{state['reason']} {state.get('message', '')}".strip(), 300)
    scheduled = conditions(item).get("PodScheduled", {})
    text = scheduled.get("message") or status.get("message") or status.get("reason") or "its containers have not ended"
    return clean(text, 300)


def is_busy(items):
    """Return whether a pod waits for GPUs that other pods have."""
    pending = [conditions(item).get("PodScheduled", {}) for item in items if not item["spec"].get("nodeName")]
    return any("Insufficient nvidia.com/" in one.get("message", "") for one in pending)


def faults(item, request):
    """Return what is wrong with the node of a pod that has ended."""
    found = []
    messages = results(item)
    for name, number in (("plain", 0), ("gpu", request)):
        lines = messages.get(name, "").splitlines()
        # The node's kubelet writes these lines, so a broken one is the node's fault.
        words = [clean(line, 200).split() for line in lines if line.startswith("gpu ")]
        gpus = [one for one in words if len(one) == len(("gpu", "path", "result"))]
        found += [f"the test pod printed {' '.join(one)}" for one in words if one not in gpus]
        opened = [path for _, path, result in gpus if result == "open"]
        if name in messages and len(opened) != number:
            shown = " ".join(opened) or "none"
            found.append(f"a container requested {number} GPUs and can open {len(opened)} ({shown})")
        found += [f"{path} cannot be opened" for _, path, result in gpus if result != "open"]
        found += [clean(line, 200) for line in lines if " failed: " in line]
    missing = [name for name in ("inside", "outside", "service") if f"{name} ok" not in messages.get("plain", "")]
    if not found and missing:
        found.append(f"the test pod printed nothing about {', '.join(missing)}: {hindrance(item)}")
    return found


def clean_up():
    """Delete the objects of a test without a wait. The next test waits for it."""
    own = f"--namespace={NAMESPACE}"
    kubectl("delete", "pods,services,persistentvolumeclaims", "--all", own, "--wait=false")


def delete():
    """Delete what is in the namespace of the tests, and wait until it is gone."""
    own = f"--namespace={NAMESPACE}"
    every = ("delete", "pods,services,persistentvolumeclaims", "--all", own)
    if kubectl(*every, "--timeout=30s", check=False)[0] != 0:
        # On a node that is down no pod ends.
        kubectl("delete", "pods", "--all", own, "--force", "--grace-period=0")
        kubectl(*every, "--timeout=60s")


def left_volumes():
    """Return a note for each volume of an earlier test that its class should have deleted long ago."""
    found = []
    for volume in get("persistentvolumes"):
        spec, metadata = volume["spec"], volume["metadata"]
        age = time.time() - datetime.fromisoformat(metadata["creationTimestamp"].replace("Z", "+00:00")).timestamp()
        is_own = (spec.get("claimRef") or {}).get("namespace") == NAMESPACE
        if is_own and spec.get("persistentVolumeReclaimPolicy") == "Delete" and age > LEFT_S:
            name = metadata["name"]
            found.append(
                f"the volume {name} of an earlier test was not deleted: kubectl describe persistentvolume {name}"
            )
    return found


def run_pods(ring, nodes, given, with_gpus):
    """Run the test pods; return them when all have ended, after PODS_S, or when GPUs are occupied."""
    kubectl("apply", "--server-side", "--filename=-", stdin=as_list(objects(ring, nodes, given, with_gpus)))
    began = time.monotonic()
    while True:
        items = get("pods", f"--namespace={NAMESPACE}")
        late = time.monotonic() - began
        if all(map(is_done, items)) or late > PODS_S or (late > BUSY_S and is_busy(items)):
            return items
        time.sleep(0.5)


def attempt(tested, nodes, given, cluster, without=()):
    """Test workers with pods. Return the notes, a list of faults by node, and whether GPUs were requested."""
    ring = [*tested, *helpers(tested, cluster, given, without)]
    notes = [] if len(ring) > 1 else ["the service was not asked from another node: there is no other"]
    delete()  # of a killed run
    try:
        with_gpus = True
        items = run_pods(ring, nodes, given, with_gpus)
        if is_busy(items):
            notes.append("other pods have all GPUs: the test pods requested none")
            with_gpus = False
            delete()
            items = run_pods(ring, nodes, given, with_gpus)
    finally:
        clean_up()
    pods = {item["metadata"]["labels"]["clusterctl/proof"]: item for item in items}
    found = {}
    for number, name in enumerate(ring):
        request = nodes[name]["request"] if with_gpus and name in tested else 0
        problems = faults(pods[str(number)], request) if str(number) in pods else ["its test pod was deleted"]
        if problems:
            found[name] = problems
    return notes, found, with_gpus


def examine(tested, nodes, given, cluster):
    """Test workers with pods. Return the result, the notes, and the faults by worker.

    A worker that did not reach the pod of a faulty one is tested again with another.
    """
    notes, found, with_gpus = attempt(tested, nodes, given, cluster)
    silent = [name for name, problems in found.items() if all(one.startswith("service failed") for one in problems)]
    faulty = {name: problems for name, problems in found.items() if name not in silent}
    silent = [name for name in silent if name in tested]
    if silent and faulty:
        _, again, _ = attempt(silent, nodes, given, cluster, faulty)
        found = {**faulty, **again}
    found = {name: problems for name, problems in found.items() if name in tested}
    gpus = {nodes[name]["request"] for name in tested} - {0} if with_gpus else set()
    saw = f"saw exactly {' or '.join(map(str, sorted(gpus)))} GPUs, and " if gpus else ""
    result = f"test pods on {', '.join(tested)} {saw}reached each other through services"
    return "" if found else result, notes, {name: "; ".join(problems) for name, problems in found.items()}


def ledger():
    """Return the causes of each cordoned worker."""
    return json.loads(run(DRAIN)[1])


def prove(given):
    """Test the workers. Return the module's result."""
    nodes = given["nodes"]
    cluster, down = await_ready(nodes)
    causes = ledger()
    if given["admit"]:
        down.update(unhealthy([name for name in nodes if name not in down], causes, given["admit"]))
    usable = {name: one for name, one in nodes.items() if name not in down}
    new = waiting(usable, causes, given["admit"])
    tested = new or choose(usable, cluster)
    if not tested:
        return {"msg": "no worker is in service", "notes": [], "down": down}
    result, notes, found = examine(tested, usable, given, cluster)
    answer = {"msg": result, "notes": notes + left_volumes(), "down": {**down, **found}}
    if not new:
        return answer
    passed = sorted(set(new) - set(found))
    for cause in given["admit"] if passed else ():
        run(DRAIN, cause, "--in", ",".join(passed))
    return {**answer, "admitted": passed}


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "nodes": {"type": "dict", "required": True},
            "heads": {"type": "list", "elements": "str", "default": []},
            "script": {"type": "str", "required": True},
            "image": {"type": "str", "required": True},
            "domain": {"type": "str", "default": "cluster.local"},
            "outside": {"type": "str", "required": True},
            "volume": {"type": "bool", "default": False},
            "admit": {"type": "list", "elements": "str", "default": []},
        },
    )
    try:
        found = prove(module.params)
    except NodeError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(found.get("admitted")), **found)


if __name__ == "__main__":
    main()
