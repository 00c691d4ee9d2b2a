#!/usr/bin/python
"""Ansible module: converge a part of the cluster's Kubernetes objects, and remove those that it no longer has."""

from __future__ import annotations

import copy
import json
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.kubectl import as_list, get, items, kubectl
from ansible.module_utils.node_state.tools import NodeError, change, clean

DOCUMENTATION = r"""
module: kubernetes_objects
author: the clusterctl authors
short_description: Converge a part of the cluster's Kubernetes objects
description:
  - Applies objects with server-side apply as the field manager C(clusterctl), and reports those that changed. Fields
    of other managers that are not in the objects are not changed.
  - Each object gets the label C(clusterctl/part). The part's objects are recorded in a ConfigMap in C(kube-system), and
    an object that is no longer in the part is deleted, unless its label was changed or it has the annotation
    C(clusterctl/keep).
  - Then waits for the pods of Deployments, StatefulSets and DaemonSets to be ready on the heads that respond.
  - Must run on a head, as root, and only on one of several heads at a time.
  - In a play that ends with role C(apply) the calls of the roles wait for it, and are made in one task.
options:
  part:
    description: Name of the part. By default the current role's name.
    type: str
  objects:
    description: The objects.
    type: list
    elements: dict
    default: []
  templates:
    description: Files of the role's templates/ with further objects, as YAML documents.
    type: list
    elements: str
    default: []
  files:
    description: Files of the role's files/ with further objects, as YAML documents.
    type: list
    elements: str
    default: []
  wait:
    description: Seconds to wait until workloads are ready; 0 does not wait.
    type: int
    default: 300
  state:
    description: C(absent) deletes all recorded objects of the part.
      C(flush) makes the calls that wait.
    type: str
    choices: [present, absent, flush]
    default: present
  now:
    description: Do not wait for role C(apply), because something of the role needs the objects.
    type: bool
    default: false
attributes:
  check_mode: {support: full, description: Reports what would change, by dry runs on the server.}
  diff_mode: {support: full, description: Differences of objects; the data of Secrets is hidden.}
"""

EXAMPLES = r"""
- name: Install the network plugin
  kubernetes_objects:
    templates: [flannel.yaml.j2]
"""

RETURN = r"""
changes:
  description: The changes, or those that would be made in check mode; mappings with kind, name and action.
  type: list
  returned: always
"""

MANAGER = "clusterctl"
LABEL = "clusterctl/part"
KEEP = "clusterctl/keep"  # an annotation
NAMESPACE = "kube-system"  # of the records
WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet")
# Fields that cannot be changed, of objects that others do not depend on: ValidateStorageClassUpdate and
# ValidatePriorityClassUpdate in pkg/apis/*/validation/validation.go.
FIXED = {
    "StorageClass": ("provisioner", "parameters", "reclaimPolicy", "volumeBindingMode"),
    "PriorityClass": ("value", "preemptionPolicy"),
}
NEEDED = ("CustomResourceDefinition", "Namespace")
POLL_S = 1
# Set by the server in any update, or by controllers.
SERVERS = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "uid")


def identity(item):
    """Return what identifies an object: version of the API, kind, namespace and name."""
    metadata = item["metadata"]
    return (item["apiVersion"], item["kind"], metadata.get("namespace", ""), metadata["name"])


def stub(who):
    """Return the least object of an identity, as kubectl needs it to find the object."""
    version, kind, namespace, name = who
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
    }


def shown(who):
    """Return an object's name for people."""
    return f"{who[2]}/{who[3]}" if who[2] else who[3]


def labelled(item, part):
    """Return a copy of an object with the label of its part."""
    item = copy.deepcopy(item)
    metadata = item.setdefault("metadata", {})
    metadata["labels"] = {**(metadata.get("labels") or {}), LABEL: part}
    return item


def plain(item):
    """Return an object without what the server and controllers write."""
    kept = {key: value for key, value in item.items() if key != "status"}
    kept["metadata"] = {key: value for key, value in item["metadata"].items() if key not in SERVERS}
    return kept


def text(item):
    """Return an object as text for a difference; the data of a Secret is hidden."""
    if item is None:
        return ""
    item = plain(item)
    if item["kind"] == "Secret":
        item.update({key: "hidden" for key in ("data", "stringData") if key in item})
    return json.dumps(item, indent=1, sort_keys=True) + "\n"


def ordered(wanted):
    """Return the objects that others need, then the others, then those of kinds that are defined in the part itself."""
    definitions = [item for item in wanted if item["kind"] == "CustomResourceDefinition"]
    namespaces = [item for item in wanted if item["kind"] == "Namespace"]
    own = {(item["spec"]["group"], item["spec"]["names"]["kind"]) for item in definitions}
    custom = [item for item in wanted if (item["apiVersion"].partition("/")[0], item["kind"]) in own]
    first = [*namespaces, *definitions]
    return first + [item for item in wanted if item not in first and item not in custom], custom


class Part:
    """A part of the cluster's objects: reads, applies and deletes them, and collects what changed."""

    def __init__(self, name, check):
        self.name, self.check = name, check
        self.changes, self.diff, self.applied = [], [], []
        self.known = None  # the recorded objects, once they are read
        self.was = {}  # the objects that exist, by identity, as far as they were read beforehand

    @property
    def record(self):
        """The name of the ConfigMap with the part's objects."""
        return "clusterctl-objects-" + self.name.replace("_", "-")

    def recorded(self):
        """Return the identities of the objects that earlier runs applied. They are read once."""
        if self.known is None:
            read_records([self])
        return self.known

    def record_of(self, identities):
        """Return the ConfigMap that records objects of the part."""
        data = {"objects": json.dumps(sorted(identities), indent=1)}
        metadata = {"name": self.record, "namespace": NAMESPACE}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}

    def apply(self, wanted):
        """Apply objects; return them as the server has them then."""
        dry = ["--dry-run=server"] if self.check else []
        own = ["--server-side", f"--field-manager={MANAGER}", "--force-conflicts"]
        return items(kubectl("apply", *own, *dry, "--output=json", "--filename=-", stdin=as_list(wanted))[1])

    def note(self, before, after):
        """Collect the change of one object."""
        who = identity(after or before)
        action = "created" if before is None else "removed" if after is None else "changed"
        self.changes.append(change(who[1], shown(who), action))
        header = f"{who[1]} {shown(who)}"
        self.diff.append(
            {"before": text(before), "after": text(after), "before_header": header, "after_header": header}
        )

    def converge(self, wanted):
        """Apply the objects, and delete recorded ones that are not among them. Keeps what was applied."""
        wanted = [labelled(item, self.name) for item in wanted]
        known = self.recorded()
        goal = [identity(item) for item in wanted]
        # There may be one default class: the old one ends first. A dry run of the new one would be refused.
        classes = [item for item in wanted if item["kind"] == "PriorityClass"]
        obsolete = [who for who in known if who[1] == "PriorityClass" and who not in goal]
        self.delete(obsolete)
        self.settle([item for item in classes if not item.get("globalDefault")], ())
        first, custom = ordered([item for item in wanted if item not in classes or item.get("globalDefault")])
        missing = self.settle(first, ())
        if custom and not self.check:
            names = [item["metadata"]["name"] for item in first if item["kind"] == "CustomResourceDefinition"]
            crds = [f"crd/{name}" for name in names]
            kubectl("wait", "--for=condition=Established", "--timeout=60s", *crds)
        if custom:
            self.settle(custom, missing)
        self.delete([who for who in known if who not in goal and who not in obsolete])

    def settle(self, wanted, missing):
        """Apply objects, and note those that changed; return what was missing before, of namespaces and definitions.

        In a dry run, an object in a namespace or of a kind that does not exist yet cannot be asked for.
        """
        missing = set(missing)
        due = [item for item in wanted if not self.depends(item, missing)]
        unread = [item for item in due if identity(item) not in self.was]
        before = {who: old for who, old in {**self.was, **existing(unread)}.items() if old}
        for item in wanted:
            if item["kind"] in NEEDED and identity(item) not in before:
                missing.add(key_of(item))
        due = [item for item in wanted if not (self.check and self.depends(item, missing))]
        due = [item for item in due if not self.replaces(item, before)]
        if self.check:
            due = [item for item in due if not becomes_default(item, before)]
        after = {identity(item): item for item in (self.apply(due) if due else [])}
        self.applied += after.values()
        for item in wanted:
            who = found(after, item)
            old, new = before.get(who or identity(item)), after[who] if who else item
            if old is None or plain(old) != plain(new):
                self.note(old, new)
        return missing

    def replaces(self, item, before):
        """Delete an object whose fixed fields change, so that it is created again; return whether it is not due."""
        old = before.get(identity(item))
        if not old or all(old.get(key) == item.get(key) for key in FIXED.get(item["kind"], ())):
            return False
        if not self.check:
            kubectl("delete", "--filename=-", stdin=stub(identity(item)))
        return self.check  # the server refuses the change in a dry run

    def depends(self, item, missing):
        """Return whether an object needs a namespace or a definition that is missing."""
        group = item["apiVersion"].partition("/")[0]
        return bool({("Namespace", item["metadata"].get("namespace", "")), ("CRD", group, item["kind"])} & missing)

    def delete(self, identities):
        """Delete recorded objects of this part. One with another label, or the annotation KEEP, stays.

        The quotas of a namespace that stays do so, too: its persons would have no limit.
        """
        # What others need last: a definition or a namespace takes all its objects with it.
        for who in sorted(identities, key=lambda who: NEEDED.index(who[1]) if who[1] in NEEDED else -1):
            if who[1] == "ResourceQuota" and ("v1", "Namespace", "", who[2]) in identities and self.is_kept(who[2]):
                continue
            options = {"stdin": stub(who), "check": False}
            status, out, err = kubectl("get", "--filename=-", "--ignore-not-found", "--output=json", **options)
            if status and "no matches for kind" not in err and "the server doesn't have a resource type" not in err:
                raise NodeError(f"{who[1]} {shown(who)}: {clean(err.strip())}")
            for item in [] if status else items(out):
                labels, annotations = (item["metadata"].get(key) or {} for key in ("labels", "annotations"))
                if labels.get(LABEL) == self.name and annotations.get(KEEP) != "true":
                    if not self.check:
                        kubectl("delete", "--filename=-", "--ignore-not-found", "--timeout=100s", stdin=stub(who))
                    self.note(item, None)

    def is_kept(self, namespace):
        """Return whether a namespace has the annotation KEEP."""
        found = get("namespace", namespace, "--ignore-not-found")
        return any((one["metadata"].get("annotations") or {}).get(KEEP) == "true" for one in found)

    def remove(self):
        """Delete all objects of the part, and its record."""
        known = self.recorded()
        self.delete(known)
        if known and not self.check:
            kubectl("delete", "configmap", self.record, f"--namespace={NAMESPACE}", "--ignore-not-found")

    def wait(self, seconds):
        """Wait until the applied workloads are ready. Raises NodeError with the reasons why they are not."""
        deadline = time.monotonic() + seconds
        waiting = [identity(item) for item in self.applied if item["kind"] in WORKLOADS]
        while waiting:
            ended = time.monotonic() >= deadline
            late = self.late(waiting, explain=ended)
            if not late:
                return
            if ended:
                raise NodeError(f"not ready after {seconds} s: " + "; ".join(late))
            time.sleep(POLL_S)

    def late(self, identities, explain):
        """Return the workloads that are not ready, with reasons; `explain` adds the last warning about their pods."""
        current = [item for item in get("--filename=-", stdin=as_list(map(stub, identities))) if not is_ready(item)]
        nodes = get("nodes") if current else []
        excluded = {node["metadata"]["name"] for node in nodes if not (is_head(node) and responds(node))}
        cordoned = any(node["spec"].get("unschedulable") for node in nodes)
        lines = []
        for item in current:
            labels = item["spec"]["selector"].get("matchLabels") or {}
            selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
            pods = get("pods", f"--namespace={item['metadata']['namespace']}", f"--selector={selector}")
            if why := lateness(item, pods, excluded, cordoned):
                own = [pod for pod in pods if not is_excused(pod, excluded, cordoned)]
                warned = warning(own) if explain else ""
                lines.append(f"{item['kind']} {shown(identity(item))}: {why}{warned}")
        return lines


def existing(wanted):
    """Return those of the objects that exist, by identity."""
    if not wanted:
        return {}
    present = get("--filename=-", "--ignore-not-found", stdin=as_list(map(stub, map(identity, wanted))))
    return {identity(item): item for item in present}


def read_records(parts):
    """Read what earlier runs applied of several parts."""
    names = [part.record for part in parts]
    found = get("configmap", *names, f"--namespace={NAMESPACE}", "--ignore-not-found")
    records = {item["metadata"]["name"]: item for item in found}
    for part in parts:
        try:
            text_ = records[part.record]["data"]["objects"] if part.record in records else "[]"
            part.known = [tuple(who) for who in json.loads(text_)]
        except (KeyError, TypeError, ValueError):
            raise NodeError(f"ConfigMap {NAMESPACE}/{part.record} is damaged: delete it") from None


def converge(given, check):
    """Converge parts in their order, each a mapping with part, objects, wait and state; return the result of each.

    It ends with the first that fails. What all of them need is read and recorded by one call of kubectl each.
    """
    due = [(Part(one["part"], check), {identity(item) for item in one["objects"]}, one) for one in given]
    parts = [part for part, _, _ in due]
    read_records(parts)
    new = [part.record_of({*part.known, *goal}) for part, goal, _ in due if goal - {*part.known}]
    if new and not check:
        parts[0].apply(new)  # first: a killed run must not leave objects that no record has
    if len(parts) > 1:
        read_objects(parts, [item for one in given for item in ordered(one["objects"])[0]])
    results, done = [], []
    for part, goal, one in due:
        began, failed = time.monotonic(), {}
        try:
            if one["state"] == "absent":
                part.remove()
            else:
                part.converge(one["objects"])
                done += [part.record_of(goal)] if {*part.known} != goal else []
                if one["wait"] and not check:
                    part.wait(one["wait"])
        except NodeError as error:
            failed = {"failed": True, "msg": f"{part.name}: {error}"}
        result = {"changes": part.changes, "changed": bool(part.changes), "diff": part.diff, **failed}
        results.append({**result, "seconds": round(time.monotonic() - began, 3)})
        if failed:
            break
    try:
        if done and not check:
            parts[0].apply(done)
    except NodeError as error:
        results[-1] = {"failed": True, "msg": f"{part.name}: {error}", **results[-1]}
    return results


def read_objects(parts, wanted):
    """Read the objects that exist for several parts; a part reads by itself what cannot be read in one call."""
    try:
        found = existing(wanted)
    except NodeError:
        return
    for part in parts:
        part.was = {**{identity(item): None for item in wanted}, **found}


def key_of(item):
    """Return what others depend on: a namespace, or a kind of a group."""
    if item["kind"] == "Namespace":
        return ("Namespace", item["metadata"]["name"])
    return ("CRD", item["spec"]["group"], item["spec"]["names"]["kind"])


def becomes_default(item, before):
    """Return whether a priority class becomes the default, which the server refuses while there is another one."""
    is_default = item["kind"] == "PriorityClass" and item.get("globalDefault")
    return bool(is_default) and not (before.get(identity(item)) or {}).get("globalDefault")


def found(after, item):
    """Return the identity that the server has for an object: it adds the default namespace."""
    who = identity(item)
    return next((one for one in (who, (*who[:2], "default", who[3])) if one in after), None)


def is_seen(item):
    """Return whether the controller has seen the last change of a workload."""
    return item.get("status", {}).get("observedGeneration", 0) >= item["metadata"].get("generation", 0)


def is_ready(item):
    """Return whether all pods of a workload run its last version and are ready."""
    status = item.get("status", {})
    if item["kind"] == "DaemonSet":
        counts = [status.get(key, 0) for key in ("updatedNumberScheduled", "numberReady")]
        wanted = status.get("desiredNumberScheduled", 0)
    else:
        counts = [status.get(key, 0) for key in ("updatedReplicas", "readyReplicas", "replicas")]
        wanted = item["spec"].get("replicas", 1)
    return is_seen(item) and all(count == wanted for count in counts)


def lateness(item, pods, excluded, cordoned):
    """Return why a workload is not ready; nothing if only because of excluded nodes, or of nodes that are drained.

    Workers are excluded: one that is broken must not stop the heads, and the run configures it after them.
    """
    if not is_seen(item):
        return "its controller has not seen the change yet"
    # The pod of a drained head waits for the end of the drain, which may wait for this run.
    excused = [pod for pod in pods if is_excused(pod, excluded, cordoned)]
    own = [pod for pod in pods if pod not in excused]
    waits = troubles(own)
    if waits or (excused and not any(is_older(item, pod) for pod in own)):
        return waits
    return "pods are missing or have an older version"


def is_older(item, pod):
    """Return whether a pod of a DaemonSet runs an older version of it."""
    wanted = (item["metadata"].get("annotations") or {}).get("deprecated.daemonset.template.generation")
    found = (pod["metadata"].get("labels") or {}).get("pod-template-generation")
    return bool(wanted and found) and wanted != found


def is_excused(pod, excluded, cordoned):
    """Return whether a pod is on an excluded node, or waits for a node while one is cordoned."""
    node = pod["spec"].get("nodeName", "")
    return node in excluded or (cordoned and not node)


def is_head(node):
    """Return whether a node has a control plane."""
    return "node-role.kubernetes.io/control-plane" in (node["metadata"].get("labels") or {})


def responds(node):
    """Return whether a node's kubelet responds; without a network plugin it responds and is not ready."""
    ready = [one["status"] for one in node.get("status", {}).get("conditions", []) if one["type"] == "Ready"]
    return bool(ready) and ready[0] != "Unknown"


def warning(pods):
    """Return the last warning about pods in brackets: the kubelet reports there why it cannot create a container."""
    ids = {pod["metadata"]["uid"] for pod in pods}
    spaces = {pod["metadata"]["namespace"] for pod in pods}
    events = []
    for space in spaces:
        argv = ("get", "events", f"--namespace={space}", "--field-selector=type=Warning", "--output=json")
        status, out, _ = kubectl(*argv, check=False)
        events += items(out) if status == 0 else []
    about = [one for one in events if one.get("involvedObject", {}).get("uid") in ids and one.get("message")]
    about.sort(key=lambda one: one.get("lastTimestamp") or one.get("eventTime") or "")
    return f" ({' '.join(clean(about[-1]['message'], 300).split())})" if about else ""


def troubles(pods):
    """Return the pods that are not ready, with the reasons; at most three."""
    lines = []
    for pod in pods:
        status = pod.get("status", {})
        conditions = {one["type"]: one for one in status.get("conditions", [])}
        if conditions.get("Ready", {}).get("status") == "True" or status.get("phase") == "Succeeded":
            continue
        states = status.get("initContainerStatuses", []) + status.get("containerStatuses", [])
        waits = [state["state"]["waiting"] for state in states if "waiting" in state.get("state", {})]
        ended = [
            state["state"]["terminated"]
            for state in states
            if state.get("state", {}).get("terminated", {}).get("exitCode")
        ]
        cause = [*ended, *waits, conditions.get("PodScheduled", {}), {"reason": status.get("phase", "Pending")}]
        first = next(one for one in cause if one.get("reason"))
        why = " ".join(part for part in (first["reason"], first.get("message", "")) if part)
        lines.append(f"{pod['metadata']['name']} on {pod['spec'].get('nodeName', 'no node')}: {clean(why, 200)}")
    return "; ".join(lines[:3]) + (f"; and {len(lines) - 3} more" if len(lines) > 3 else "")


def check_objects(objects, about=""):
    """Raise NodeError for something that is no object, or is given twice; `about` begins the message."""
    seen = set()
    for item in objects:
        if not isinstance(item, dict) or not item.get("apiVersion") or not item.get("kind"):
            raise NodeError(f"{about}an object has no apiVersion or kind: {clean(json.dumps(item), 100)}")
        if not (item.get("metadata") or {}).get("name"):
            raise NodeError(f"{about}a {item['kind']} has no name")
        if identity(item) in seen:
            raise NodeError(f"{about}{item['kind']} {shown(identity(item))} is given twice")
        seen.add(identity(item))


def main():
    """Ansible's entry point. The action plugin has put the content of files and templates into `objects`."""
    module = AnsibleModule(
        argument_spec={"calls": {"type": "list", "elements": "dict", "required": True}}, supports_check_mode=True
    )
    given, check = module.params["calls"], module.check_mode
    try:
        for one in given:
            check_objects(one["objects"], f"{one['part']}: ")
        if check and kubectl("version", check=False)[0] != 0:
            results = [planned(one) for one in given]
        else:
            results = converge(given, check)
    except NodeError as error:
        module.fail_json(msg=str(error))
    failed = {"failed": True, "msg": results[-1]["msg"]} if "failed" in results[-1] else {}
    module.exit_json(changed=any(one["changed"] for one in results), results=results, **failed)


def planned(one):
    """Return the result of a dry run on a new head: there is no API yet, so all objects would be created."""
    part = Part(one["part"], True)
    for item in one["objects"] if one["state"] == "present" else []:
        part.note(None, item)
    return {"changes": part.changes, "changed": bool(part.changes), "diff": part.diff}


if __name__ == "__main__":
    main()
