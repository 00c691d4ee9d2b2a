#!/usr/bin/python
"""Ansible module: restart kube-proxy after the API's addresses changed, and spread CoreDNS over nodes."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.kubectl import get, kubectl
from ansible.module_utils.node_state.tools import NodeError, change

DOCUMENTATION = r"""
module: kubernetes_system_pods
author: the clusterctl authors
short_description: Adapt the pods that kubeadm installs
description:
  - Restarts kube-proxy on all nodes after the API's addresses changed. The kubelet copies F(/etc/hosts) into a pod on
    the host's network only when its container starts. The addresses are recorded in the annotation
    C(clusterctl/api-addresses) of the namespace, because C(kubeadm upgrade) replaces the DaemonSet.
  - Does so only if no other node of the inventory is ready. Otherwise a later call does it. The others are recorded,
    too. Their kube-proxy is restarted by the first call after they have the addresses.
  - Once two heads can run pods, each pod of CoreDNS must be on another node, as long as there is one that accepts it.
    kubeadm only prefers that, and starts both on the first head, where they would stay.
    C(kubeadm upgrade) removes this rule, and the next call sets it again.
  - Does not wait for the pods. An object that does not exist is not created.
  - Runs on a head, as root.
options:
  addresses:
    description: What the API's name resolves to in F(/etc/hosts) of the nodes; none for a name in the site's DNS.
    type: list
    elements: str
    default: []
  nodes:
    description: The nodes that have these addresses in F(/etc/hosts).
    type: list
    elements: str
    default: []
  others:
    description:
      - The other nodes of the inventory, which may have former addresses. A registered node that is in neither list is
        being removed, and ignored.
    type: list
    elements: str
    default: []
  is_new:
    description: Whether the cluster was just created. Then kube-proxy has the addresses, and they are only recorded.
    type: bool
    default: false
attributes:
  check_mode: {support: full, description: Reports what would change.}
"""

EXAMPLES = r"""
- name: Restart kube-proxy if the API has other addresses, and spread CoreDNS
  kubernetes_system_pods: {addresses: [10.0.0.10], nodes: [head1, gpu01], others: [gpu02]}
"""

RETURN = r"""
changes:
  description: The changes; mappings with kind, name, action and what.
  type: list
  returned: always
notes:
  description: Messages for the user.
  type: list
  returned: always
"""

NAMESPACE = "--namespace=kube-system"
ADDRESSES = "clusterctl/api-addresses"
WITHOUT = " without "  # in the annotation, before the nodes that were not ready
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
# Nodes with taints that the pods do not tolerate, so cordoned ones and those that are down, do not count: with one node
# left, both pods run on it. Each version of the pods counts alone, or the end of the old ones could leave the new ones
# on one node. https://kubernetes.io/docs/concepts/scheduling-eviction/topology-spread-constraints/
SPREAD = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "DoNotSchedule",
    "nodeAffinityPolicy": "Honor",
    "nodeTaintsPolicy": "Honor",
    "labelSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    "matchLabelKeys": ["pod-template-hash"],
}


def is_ready(node):
    """Return whether the node's kubelet reports that it is ready."""
    conditions = node.get("status", {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def accepts_dns(node):
    """Return whether a node is a head that accepts pods of CoreDNS, which tolerate the taint of heads."""
    taints = {one["key"] for one in node["spec"].get("taints") or [] if one["effect"] != "PreferNoSchedule"}
    is_head = CONTROL_PLANE in (node["metadata"].get("labels") or {})
    return is_head and is_ready(node) and not node["spec"].get("unschedulable") and taints <= {CONTROL_PLANE}


def is_same(one, other):
    """Return whether two constraints exclude each other: the API allows one for each key and effect."""
    return all(one.get(key) == other[key] for key in ("topologyKey", "whenUnsatisfiable"))


class SystemPods:
    """kubeadm's pods; collects what changes."""

    def __init__(self, check):
        self.check, self.changes, self.notes = check, [], []

    def patch(self, item, spec, what):
        """Change the specification of a workload."""
        kind, name = item["kind"], item["metadata"]["name"]
        if not self.check:
            options = ["--type=merge", "--patch-file=/dev/stdin"]
            kubectl("patch", kind.lower(), name, NAMESPACE, *options, stdin={"spec": spec})
        self.changes.append(change(kind, f"kube-system/{name}", "changed", what))

    def restart_proxies(self, addresses, nodes, others=(), is_new=False):
        """Restart kube-proxy on all nodes if its pods started with other addresses of the API."""
        wanted = ",".join(sorted(addresses))
        for item in get("daemonset", "kube-proxy", NAMESPACE, "--ignore-not-found") if wanted else ():
            known = (get("namespace", "kube-system")[0]["metadata"].get("annotations") or {}).get(ADDRESSES, "")
            before, _, missing = known.partition(WITHOUT)
            if before == wanted:
                self.restart_on(set(missing.split(",")) & set(nodes), wanted, set(missing.split(",")))
                continue
            # A node that is not ready may be down for long, so the others do not wait for it.
            late = {node["metadata"]["name"]: is_ready(node) for node in get("nodes")}
            late = {name: ready for name, ready in late.items() if name in others}
            if any(late.values()):
                if before:
                    self.notes.append("kube-proxy uses the API's former addresses until a bootstrap of all nodes")
                continue
            spec = {
                # By default one node that is down would stop the restart. The kernel keeps kube-proxy's rules.
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
                "template": {"metadata": {"annotations": {ADDRESSES: wanted}}},
            }
            if not is_new:
                self.patch(item, spec, f"restart with the API's addresses {wanted}")
            self.record(wanted, late)

    def restart_on(self, nodes, addresses, missing):
        """Restart kube-proxy on nodes that were not ready when all others restarted it."""
        for name in sorted(nodes):
            options = ["--selector=k8s-app=kube-proxy", f"--field-selector=spec.nodeName={name}", "--wait=false"]
            if not self.check:
                kubectl("delete", "pods", NAMESPACE, *options)
            self.changes.append(change("DaemonSet", "kube-system/kube-proxy", "changed", f"restart on {name}"))
        if nodes:
            self.record(addresses, missing - nodes)

    def record(self, addresses, missing):
        """Record the addresses that kube-proxy has, and the nodes on which it may have others."""
        text = f"{addresses}{WITHOUT}{','.join(sorted(missing))}" if missing else addresses
        if not self.check:
            kubectl("annotate", "--overwrite", "namespace", "kube-system", f"{ADDRESSES}={text}")

    def spread_dns(self):
        """Restart CoreDNS on different nodes, unless it has to be on such nodes already."""
        for item in get("deployment", "coredns", NAMESPACE, "--ignore-not-found"):
            known = item["spec"]["template"]["spec"].get("topologySpreadConstraints") or []
            if any(is_same(one, SPREAD) for one in known):
                continue
            # With a single head now, both pods would start on it again, and stay.
            if sum(map(accepts_dns, get("nodes"))) > 1:
                spec = {"template": {"spec": {"topologySpreadConstraints": [*known, SPREAD]}}}
                self.patch(item, spec, "restart its pods on different nodes")


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "addresses": {"type": "list", "elements": "str", "default": []},
            "nodes": {"type": "list", "elements": "str", "default": []},
            "others": {"type": "list", "elements": "str", "default": []},
            "is_new": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    given, pods = module.params, SystemPods(module.check_mode)
    try:
        # In a dry run on a new head there is no API yet, and the new cluster has the addresses from the start.
        if not module.check_mode or kubectl("version", check=False)[0] == 0:
            pods.restart_proxies(given["addresses"], given["nodes"], given["others"], given["is_new"])
            pods.spread_dns()
    except NodeError as error:
        module.fail_json(msg=str(error), changes=pods.changes, changed=bool(pods.changes))
    module.exit_json(changed=bool(pods.changes), changes=pods.changes, notes=pods.notes)


if __name__ == "__main__":
    main()
