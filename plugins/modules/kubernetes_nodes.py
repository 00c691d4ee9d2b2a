#!/usr/bin/python
"""Ansible module: converge the labels and taints of Kubernetes' workers, and cordon new ones until they are proven."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.kubectl import as_list, get, kubectl
from ansible.module_utils.node_state.tools import NodeError, change, run

DOCUMENTATION = r"""
module: kubernetes_nodes
author: the clusterctl authors
short_description: Converge labels and taints of Kubernetes' workers
description:
  - Labels nodes by server-side apply as the field manager C(clusterctl-labels), so that a label that is no longer given
    is removed. Labels of others are not changed.
  - A worker joins with the taint C(clusterctl/new), which keeps pods away. Such a worker is cordoned for the cause
    C(new) of kubernetes-drain, and loses the taint. Role verify removes the cause.
  - Deletes the tokens with which these nodes joined. A run that was killed after the join has left one.
  - Runs on a head, as root.
options:
  nodes:
    description:
      - The nodes; for each its C(labels), its C(taints) (keys; the effect is NoSchedule), and C(is_head), whether the
        node is also a head, which then accepts all pods.
    type: dict
    default: {}
  joining:
    description:
      - Nodes that will join, for which tokens are made. Those that are registered join again. They are cordoned for the
        cause C(new) and marked as not ready, because kubeadm refuses to replace a node that is still ready.
      - A problem is returned for the node concerned, and is no failure of the module.
    type: list
    elements: str
    default: []
  joined:
    description: Nodes whose tokens are deleted. What fails is a note, as tokens last minutes.
    type: list
    elements: str
    default: []
  timeout:
    description: Seconds to wait until the nodes are registered.
    type: int
    default: 60
attributes:
  check_mode: {support: full, description: Reports what would change.}
"""

EXAMPLES = r"""
- name: Label a worker
  kubernetes_nodes:
    nodes:
      gpu01: {labels: {clusterctl/gpu-model: a100}, taints: [], is_head: false}
"""

RETURN = r"""
joining:
  description:
    - For each of the nodes that will join the C(discovery), which contains a token, or the C(problem).
  type: dict
  returned: always
notes:
  description: Messages for the user.
  type: list
  elements: str
  returned: always
registered:
  description: All nodes of the cluster.
  type: list
  elements: str
  returned: always
missing:
  description: Those of C(nodes) that are not registered.
  type: list
  elements: str
  returned: always
authority:
  description: SHA-256 of the cluster's certificate authority; empty if there is no cluster yet.
  type: str
  returned: always
version:
  description: Version of the API server, such as C(1.36.3); empty if there is no cluster yet.
  type: str
  returned: always
changes:
  description: The changes; mappings with kind, name, action and what.
  type: list
  returned: always
"""

AUTHORITY = Path("/etc/kubernetes/pki/ca.crt")
DRAIN = "/usr/local/sbin/kubernetes-drain"
JOIN = "/usr/local/sbin/kubernetes-join"
CAUSE, REASON = "new", "not proven yet"
MANAGER = "clusterctl-labels"
KNOWN = "clusterctl/known"  # kubernetes-drain's mark of a node that is not new
NEW = "clusterctl/new"
TAINTED = "clusterctl/tainted"  # a label: this module has set the taint
OFF = "node.kubernetes.io/out-of-service"
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"


def labels_of(node):
    """Return a node's labels."""
    return node["metadata"].get("labels") or {}


def taints_of(node, effect="NoSchedule"):
    """Return the keys of a node's taints with an effect."""
    return {one["key"] for one in node["spec"].get("taints") or [] if one["effect"] == effect}


def is_ready(node):
    """Return whether the node's kubelet reports that it is ready."""
    conditions = node.get("status", {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def owned(node):
    """Return the names of the labels that this module has applied."""
    found = set()
    for entry in node["metadata"].get("managedFields") or []:
        if entry.get("manager") == MANAGER and entry.get("operation") == "Apply":
            fields = entry.get("fieldsV1", {}).get("f:metadata", {}).get("f:labels", {})
            found |= {key[2:] for key in fields if key.startswith("f:")}
    return found


def wanted_labels(given):
    """Return the labels of a node, with the mark of its taint."""
    return {**given["labels"], **({TAINTED: ""} if given["taints"] else {})}


def differences(node, labels):
    """Return what differs in a node's labels, as texts for people."""
    has = labels_of(node)
    lines = [f"{name}={value}" for name, value in sorted(labels.items()) if has.get(name) != value]
    return lines + [f"{name} removed" for name in sorted(owned(node) - labels.keys()) if name in has]


def taint_steps(nodes, given):
    """Return the changes of taints: (taint as for kubectl, nodes), in the order in which they are due.

    A taint that is no longer wanted is removed only from a node that got it here. That of new nodes is removed last.
    """
    add, remove = {}, {}
    for name, node in sorted(nodes.items()):
        has, wants = taints_of(node), set(given[name]["taints"])
        for key in wants - has:
            add.setdefault(key, []).append(name)
        unwanted = {"nvidia.com/gpu"} - wants if TAINTED in labels_of(node) else set()
        unwanted |= {CONTROL_PLANE} if given[name]["is_head"] else set()
        for key in (unwanted | {NEW}) & has:
            remove.setdefault(key, []).append(name)
    steps = [(f"{key}:NoSchedule", names) for key, names in sorted(add.items())]
    # Set for a node that was off, by an interrupted `remove-node --dead`.
    back = [name for name, node in sorted(nodes.items()) if is_ready(node) and OFF in taints_of(node, "NoExecute")]
    steps += [(f"{OFF}:NoExecute-", back)] if back else []
    return steps + [(f"{key}:NoSchedule-", remove[key]) for key in sorted(remove, key=lambda key: (key == NEW, key))]


def is_new(node):
    """Return whether a node was never in the ledger of kubernetes-drain."""
    return NEW in taints_of(node) or KNOWN not in (node["metadata"].get("annotations") or {})


def authority():
    """Return the hash of the cluster's authority, as kubernetes_join compares it."""
    return hashlib.sha256(AUTHORITY.read_bytes()).hexdigest() if AUTHORITY.exists() else ""


def api_version():
    """Return the version of the API server, such as 1.36.3; empty if there is none yet."""
    status, out, _ = kubectl("get", "--raw=/version", check=False)
    return json.loads(out)["gitVersion"].lstrip("v") if status == 0 else ""


def registered():
    """Return all nodes of the cluster by name."""
    return {node["metadata"]["name"]: node for node in get("nodes", "--show-managed-fields")}


def wait_for(names, seconds):
    """Return all nodes of the cluster, once these are registered or the time is over."""
    deadline = time.monotonic() + seconds
    while True:
        found = registered()
        if set(names) <= found.keys() or time.monotonic() >= deadline:
            return found
        time.sleep(1)


class Workers:
    """The workers of the cluster; collects what changes."""

    def __init__(self, check):
        self.check, self.changes, self.notes = check, [], []

    def note(self, name, what, action="changed"):
        """Collect a change of a node."""
        self.changes.append(change("node", name, action, what))

    def converge(self, nodes, given):
        """Cordon new nodes, then set labels and taints."""
        new = {name: node for name, node in sorted(nodes.items()) if is_new(node)}
        # With the taint a node is new, also if a report on its health has entered it into the ledger meanwhile.
        self.cordon([name for name, node in new.items() if NEW in taints_of(node)])
        self.cordon([name for name, node in new.items() if NEW not in taints_of(node)], "--new")
        due = []
        for name, node in sorted(nodes.items()):
            labels = wanted_labels(given[name])
            if lines := differences(node, labels):
                self.note(name, f"labels: {', '.join(lines)}")
                due.append({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
        if due and not self.check:
            options = ["--server-side", f"--field-manager={MANAGER}", "--force-conflicts", "--filename=-"]
            kubectl("apply", *options, stdin=as_list(due))
        for taint, names in taint_steps(nodes, given):
            if not self.check:
                kubectl("taint", "nodes", *names, taint, "--overwrite")
            for name in names if not taint.startswith(NEW) else ():
                self.note(name, f"taint {taint[:-1]} removed" if taint.endswith("-") else f"taint {taint}")

    def cordon(self, names, *options):
        """Cordon nodes; with the option `--new`, those that are not in the ledger yet."""
        if not names:
            return
        if self.check:
            for name in names:
                self.note(name, f"cordoned: {REASON}")
            return
        _, printed = run(DRAIN, CAUSE, *options, "--out", ",".join(names), "--reason", REASON)
        for line in printed.splitlines():
            self.note(line.partition(" ")[0], f"cordoned: {REASON}")

    def replace(self, name):
        """Prepare a node that will join again: keep pods away, and mark it as not ready."""
        run(DRAIN, CAUSE, "--out", name, "--reason", REASON)
        condition = {
            "type": "Ready",
            "status": "Unknown",
            "reason": "JoinsAgain",
            "message": "The node joins again.",
        }
        patch = {"status": {"conditions": [condition]}}
        options = ["--subresource=status", "--type=strategic", "--patch-file=/dev/stdin"]
        kubectl("patch", "node", name, *options, stdin=patch)

    def admit(self, names, known):
        """Prepare nodes for a join; return the discovery file or the problem of each."""
        if self.check:
            return {}
        answer = {}
        for name in set(names) & set(known):
            try:
                self.replace(name)
            except NodeError as error:
                answer[name] = {"problem": str(error)}
        due = sorted(set(names) - answer.keys())
        try:
            files = json.loads(run(JOIN, "--each", ",".join(due))[1]) if due else {}
            unknown = "it is not among the nodes that the head knows. Run clusterctl without --limit"
        except NodeError as error:
            files, unknown = {}, str(error)
        for name in due:
            answer[name] = {"discovery": json.dumps(files[name])} if name in files else {"problem": unknown}
        return answer

    def forget(self, names):
        """Delete the tokens of nodes."""
        try:
            if names and not self.check:
                run(JOIN, "--delete", ",".join(sorted(names)))
        except NodeError as error:
            self.notes.append(f"tokens of nodes were not deleted, and expire in some minutes: {error}")


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "nodes": {"type": "dict", "default": {}},
            "joining": {"type": "list", "elements": "str", "default": []},
            "joined": {"type": "list", "elements": "str", "default": []},
            "timeout": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    given, workers = module.params["nodes"], Workers(module.check_mode)
    try:
        if module.check_mode and kubectl("version", check=False)[0] != 0:
            # In a dry run on a new head there is no API yet.
            found = {}
        else:
            found = wait_for(given, 0 if module.check_mode else module.params["timeout"])
        missing = sorted(given.keys() - found.keys())
        for name in missing if module.check_mode else ():
            workers.note(name, "joins the cluster", "created")
        admitted = workers.admit(module.params["joining"], found)
        workers.forget({*module.params["joined"], *given})
        workers.converge({name: found[name] for name in given if name in found}, given)
    except NodeError as error:
        module.fail_json(msg=str(error), changes=workers.changes, changed=bool(workers.changes))
    answer = {"joining": admitted, "notes": workers.notes}
    answer |= {"registered": sorted(found), "missing": missing, "authority": authority(), "version": api_version()}
    module.exit_json(changed=bool(workers.changes), changes=workers.changes, **answer)


if __name__ == "__main__":
    main()
