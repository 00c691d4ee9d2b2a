#!/usr/bin/python
"""Ansible module: create, join, reconfigure, upgrade and remove the control plane of one head with kubeadm."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.etcd_backup import CRICTL, RESET, bump, clear, restore, tool
from ansible.module_utils.kubeadm import installed
from ansible.module_utils.kubectl import get, items, kubectl
from ansible.module_utils.node_state.items import difference, inspect
from ansible.module_utils.node_state.record import Call
from ansible.module_utils.node_state.tools import NodeError, alone_on_node, change, clean, run, write

DOCUMENTATION = r"""
module: kubernetes_control_plane
author: the clusterctl authors
short_description: Converge the control plane of one Kubernetes head
description:
  - Creates a control plane with C(kubeadm init) or joins one with C(kubeadm join). An interrupted call is resumed.
    Further heads join with the administrator's credentials, which each head issues itself, because all have the
    cluster's certificate authority. They need no token.
  - On a head that is set up, applies a changed configuration, and upgrades the control plane to the version of the
    installed kubeadm. Repairs the manifests of its static pods; they are recorded, so that C(clusterctl status) reports
    a change by hand.
  - Deletes kubeadm's ClusterRoleBinding C(kubeadm:node-autoapprove-bootstrap), with which Kubernetes approves the
    certificate of any node for any join token. kubernetes-certificates approves that of the token's node instead.
  - The files that all heads share in F(/etc/kubernetes/pki), and F(/etc/kubernetes/clusterctl), must exist.
options:
  step:
    description:
      - V(look) returns what there is, V(converge) creates, joins or changes the control plane, V(remove) deletes it.
      - V(wait) waits until all static pods of this head are ready and do not restart any more, after an upgrade of its
        kubelet.
      - V(look) fails if there is a control plane that clusterctl did not set up.
    type: str
    choices: [look, converge, wait, remove]
    required: true
  name:
    description: Name of the node.
    type: str
    required: true
  address:
    description: Address of this head's API server.
    type: str
    default: ""
  port:
    description: Port of the API server.
    type: int
    default: 6443
  create:
    description: Whether this head creates the cluster if it is not set up; otherwise it joins.
    type: bool
    default: false
  ignore:
    description: Checks of kubeadm whose errors are ignored.
    type: list
    elements: str
    default: []
  configured:
    description:
      - What will happen to the files of the configuration. Used in check mode, in which they are not written.
      - V(changed) if the inventory changes one. V(restored) if changes by hand are undone, which changes nothing else.
    type: str
    choices: ["", changed, restored]
    default: ""
  version:
    description: Version of kubeadm that will be installed, empty for no other one. Used in check mode.
    type: str
    default: ""
attributes:
  check_mode: {support: full, description: Reports what would change.}
"""

EXAMPLES = r"""
- name: Look for a control plane
  kubernetes_control_plane: {step: look, name: head1}
  register: found
"""

RETURN = r"""
state:
  description: V(complete), V(init) or V(join) after an interrupted call, or V(new).
  type: str
  returned: step is look
version:
  description: Version of the installed kubeadm, such as C(1.36.3); empty if there is none.
  type: str
  returned: step is look
fixed:
  description: C(pod_network), C(service_network) and C(endpoint), which cannot change; empty unless V(complete).
  type: dict
  returned: step is look
changes:
  description: The changes; mappings with kind, name and action.
  type: list
  returned: always
notes:
  description: Messages for the user.
  type: list
  returned: always
"""

KUBERNETES = Path("/etc/kubernetes")
PKI = KUBERNETES / "pki"
MANIFESTS = KUBERNETES / "manifests"
OWN = KUBERNETES / "clusterctl"
CONFIGURATION, JOIN, PATCHES = OWN / "kubeadm.yaml", OWN / "join.yaml", OWN / "patches"
STARTED, COMPLETE = OWN / "started", OWN / "complete"
UPGRADING = OWN / "upgrading"
STAGED = OWN / "restore.db"  # a snapshot of etcd with which the cluster begins
ETCD = Path("/var/lib/etcd")
COMPONENTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
STATIC_PODS = ("etcd", *COMPONENTS)
# The files that clusterctl writes; kubeadm derives all others from them.
SHARED = (
    "ca.crt",
    "ca.key",
    "front-proxy-ca.crt",
    "front-proxy-ca.key",
    "etcd/ca.crt",
    "etcd/ca.key",
    "sa.key",
    "sa.pub",
)
KUBECONFIGS = ("admin", "super-admin", "kubelet", "bootstrap-kubelet", "controller-manager", "scheduler")
# Errors of kubeadm's checks that a second `kubeadm init` has: names from cmd/kubeadm/app/preflight/checks.go. All
# phases of `kubeadm init` use what exists, or replace it. The API's port is a variable.
RESUMED = (
    "DirAvailable--var-lib-etcd",
    *(f"FileAvailable--etc-kubernetes-manifests-{name}.yaml" for name in STATIC_PODS),
    *(f"Port-{port}" for port in (2379, 2380, 10250, 10257, 10259)),
)
AUTOAPPROVAL = "kubeadm:node-autoapprove-bootstrap"
APPLIES = "applies kubeadm.yaml and patches, which changed since they were last applied"
TOKEN = re.compile(r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b")
KUBEADM_S = 900
READY_S = 300
STEADY_S = 10  # a new kubelet may start the containers of unchanged static pods again, within seconds


def kubeadm(*argv):
    """Run kubeadm. Raises NodeError with the error lines; a token is never in them."""
    try:
        status, output = run("kubeadm", *argv, check=False, timeout=KUBEADM_S, both=True)
    except NodeError as error:
        raise NodeError(TOKEN.sub("TOKEN", str(error))) from None
    if status != 0:
        words = " ".join(word for word in argv[:4] if not word.startswith("-"))
        raise NodeError(f"kubeadm {words} failed: {errors(output)}")
    return output


def errors(output):
    """Return the error of kubeadm's output: from its first line that says so, or else the last lines."""
    lines = [line for line in clean(TOKEN.sub("TOKEN", output), 1 << 16).splitlines() if line.strip()]
    first = next((at for at, line in enumerate(lines) if line.lower().startswith(("error", "[error"))), None)
    kept = lines[first:][:15] if first is not None else lines[-10:]
    return "\n".join(line for line in kept if "To see the stack trace" not in line)


def running():
    """Return the version in the manifest of this head's API server; empty if there is none."""
    found = re.search(r"image: \S*/kube-apiserver:v([0-9.]+)", text_of(MANIFESTS / "kube-apiserver.yaml"))
    return found.group(1) if found else ""


def text_of(path):
    """Return a file's text; empty if it was removed by hand."""
    return path.read_text() if path.exists() else ""


def look():
    """Return the state of this head's control plane. Raises NodeError if clusterctl did not set it up."""
    if COMPLETE.exists():
        return "complete"
    if STARTED.exists():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return {"init": "init", "join": "join"}[json.loads(STARTED.read_text())["step"]]
        raise NodeError(f"{STARTED} is damaged, so it is not known which call was interrupted: run `kubeadm reset`")
    foreign = [
        path
        for path in (MANIFESTS / "kube-apiserver.yaml", KUBERNETES / "admin.conf", ETCD / "member")
        if path.exists()
    ]
    if foreign:
        raise NodeError(
            f"{foreign[0]} exists, but clusterctl did not set up this control plane; "
            "if it is not needed, run `kubeadm reset` and delete /var/lib/etcd"
        )
    return "new"


def fixed():
    """Return what cannot change in this head's cluster, as its files have it: its networks, and the API's endpoint."""
    controllers, access = text_of(MANIFESTS / "kube-controller-manager.yaml"), text_of(KUBERNETES / "admin.conf")
    found = {
        "pod_network": re.search(r"--cluster-cidr=(\S+)", controllers),
        "service_network": re.search(r"--service-cluster-ip-range=(\S+)", controllers),
        "endpoint": re.search(r"^ +server: https://(\S+)$", access, re.MULTILINE),
    }
    return {name: match.group(1) for name, match in found.items() if match}


def digests():
    """Return the digests of the configuration, and of its part for etcd."""
    texts = [path.read_bytes() for path in (CONFIGURATION, *sorted(PATCHES.glob("*")))]
    found = re.search(r"^etcd:\n((?:[ ].*\n)+)", texts[0].decode(), re.MULTILINE)
    etcd = found.group(1).encode() if found else b""
    return {"all": hashlib.sha256(b"\0".join(texts)).hexdigest(), "etcd": hashlib.sha256(etcd).hexdigest()}


def store(path, data):
    """Write one of the markers."""
    write(path, json.dumps(data).encode() + b"\n", mode=0o600)


def delete_derived():
    """Delete everything that kubeadm derives: an interrupted call may have left half of a file."""
    for path in (*(KUBERNETES / f"{name}.conf" for name in KUBECONFIGS), *MANIFESTS.glob("*.yaml")):
        path.unlink(missing_ok=True)
    for path in PKI.rglob("*"):
        if path.is_file() and str(path.relative_to(PKI)) not in SHARED:
            path.unlink()


def reset():
    """Delete a control plane with its data and pods, and keep the shared files.

    kubeadm leaves /etc/kubernetes/clusterctl as it is: cleanup-node in cmd/kubeadm/app/cmd/phases/reset.
    """
    shared = {PKI / name: (PKI / name).read_bytes() for name in SHARED if (PKI / name).exists()}
    kubeadm(*RESET)
    shutil.rmtree(ETCD / "member", ignore_errors=True)
    for path, content in shared.items():
        path.parent.mkdir(mode=0o755, exist_ok=True)
        write(path, content, mode=0o644 if path.suffix in (".crt", ".pub") else 0o600)


def ignoring(checks):
    """Return kubeadm's option for checks whose errors are ignored."""
    return [f"--ignore-preflight-errors={','.join(checks)}"] if checks else []


def create(given, resumed):
    """Create the cluster."""
    store(STARTED, {"step": "init"})
    checks = list(given["ignore"])
    if STAGED.exists():
        if resumed:  # the kubelet may already run etcd on the data that is replaced
            reset()
        begin_with_snapshot(given)
        resumed = True
    if resumed:
        delete_derived()
        checks += [*RESUMED, f"Port-{given['port']}"]
    kubeadm(
        "init", f"--config={CONFIGURATION}", "--skip-phases=show-join-command", "--skip-token-print", *ignoring(checks)
    )
    # kubeadm always creates a token (SetDefaults_BootstrapTokens), which is not used.
    kind = "--field-selector=type=bootstrap.kubernetes.io/token"
    kubectl("delete", "secrets", "--namespace=kube-system", kind, "--ignore-not-found")
    delete_autoapproval(False)
    STAGED.unlink(missing_ok=True)


def delete_autoapproval(check):
    """Delete the binding that lets Kubernetes approve any node's certificate for any token; return whether it existed.

    `kubeadm init` and `kubeadm upgrade apply` create it: AutoApproveNodeBootstrapTokens in
    cmd/kubeadm/app/phases/bootstraptoken/node/tlsbootstrap.go. The binding for renewals of a node's own one stays.
    """
    options = ("--ignore-not-found", "--output=name")
    # In a dry run the API may not answer: then nothing is known of the binding.
    status, found, _ = kubectl("get", "clusterrolebinding", AUTOAPPROVAL, *options, check=not check)
    if status != 0 or not found.strip():
        return False
    if not check:
        kubectl("delete", "clusterrolebinding", AUTOAPPROVAL, "--ignore-not-found")
    return True


def begin_with_snapshot(given):
    """Make etcd's data from a staged snapshot; `kubeadm init` continues with it. A killed call is repeated."""
    images = kubeadm("config", "images", "list", f"--config={CONFIGURATION}").split()
    image = next((one for one in images if re.search(r"/etcd:[^/]+$", one)), None)
    if image is None:
        raise NodeError("kubeadm lists no image of etcd")
    run(*CRICTL, "pull", image)
    place = OWN / "restore"
    clear(place)
    place.mkdir(mode=0o700)
    ETCD.mkdir(mode=0o700, exist_ok=True)
    new = ETCD / ".restore"  # in the same filesystem: the directory may be a mount
    shutil.rmtree(new, ignore_errors=True)
    address = f"[{given['address']}]" if ":" in given["address"] else given["address"]
    with tool(image, "etcdutl", place) as etcdutl:
        restore(etcdutl, STAGED, new, given["name"], f"https://{address}:2380", *bump())
    clear(place)
    shutil.rmtree(ETCD / "member", ignore_errors=True)
    (new / "member").rename(ETCD / "member")
    new.rmdir()


def join(given, resumed):
    """Join the cluster as a further head."""
    store(STARTED, {"step": "join"})
    STAGED.unlink(missing_ok=True)  # of an interrupted restore
    if resumed:
        reset()
    # With the cluster's authority, this head issues its administrator's credentials itself, and joins with them.
    kubeadm("init", "phase", "kubeconfig", "admin", f"--config={CONFIGURATION}")
    kubeadm("join", f"--config={JOIN}", *ignoring(given["ignore"]))


def is_ready(given):
    """Return whether this head's API server is ready. Its certificate is not needed for that."""
    return server(given, "get", "--raw=/readyz")[0] == 0


def server(given, *argv):
    """Run kubectl with this head's own API server; return (exit status, standard output, standard error)."""
    address = f"[{given['address']}]" if ":" in given["address"] else given["address"]
    return kubectl(*argv, f"--server=https://{address}:{given['port']}", check=False, seconds=30)


def pods(given):
    """Return the static pods of this head that are ready, by component, as its own API server has them."""
    selector = "--selector=tier=control-plane"
    _, out, _ = server(given, "get", "pods", "--namespace=kube-system", selector, "--output=json")
    found = {}
    for pod in items(out):
        conditions = {one["type"]: one["status"] for one in pod.get("status", {}).get("conditions", [])}
        if pod["spec"].get("nodeName") == given["name"] and conditions.get("Ready") == "True":
            found[pod["metadata"]["labels"].get("component", "")] = pod
    return found


def containers(pod):
    """Return the identifiers of a pod's containers."""
    return {one.get("containerID") for one in pod.get("status", {}).get("containerStatuses", [])}


def manifest(component):
    """Return the manifest of a static pod as an object; kubectl parses it, and asks no server."""
    path = MANIFESTS / f"{component}.yaml"
    return json.loads(kubectl("label", "--local", f"--filename={path}", "--output=json", "none-")[1])


def has(there, wanted):
    """Return whether an object of the API has all fields of a manifest. It has others: defaults and the kubelet's."""
    if isinstance(wanted, dict):
        return isinstance(there, dict) and all(name in there and has(there[name], wanted[name]) for name in wanted)
    if isinstance(wanted, list):
        return isinstance(there, list) and len(there) == len(wanted) and all(map(has, there, wanted))
    return there == wanted


def matches(there, wanted):
    """Return whether a static pod's object is the one of this manifest: the kubelet adds the node to its name."""
    kept = {name: wanted["metadata"][name] for name in ("labels", "annotations") if name in wanted["metadata"]}
    return has(there["metadata"], kept) and has(there["spec"], wanted["spec"])


def wait(given):
    """Wait until the static pods of this head are those of the manifests, are ready, and do not restart any more."""
    deadline, ran, since = time.monotonic() + READY_S, None, 0.0
    wanted = {component: manifest(component) for component in STATIC_PODS}
    while True:
        found = pods(given)
        late = [name for name, one in wanted.items() if name not in found or not matches(found[name], one)]
        now = {name: containers(found[name]) for name in wanted if name in found}
        if late or now != ran or not is_ready(given):
            ran, since = now, time.monotonic()
        elif time.monotonic() - since >= STEADY_S:
            return
        if time.monotonic() > deadline:
            waits = ", ".join(late) or "the API server"
            raise NodeError(f"{waits} did not become ready in {READY_S} s with the new configuration: see crictl ps -a")
        time.sleep(1)


def reconfigure(given, known, wanted):
    """Apply a changed configuration."""
    # Its names may have changed. kubeadm keeps an existing certificate; the API server reloads a new one.
    for name in ("apiserver.crt", "apiserver.key"):
        (PKI / name).unlink(missing_ok=True)
    option = f"--config={CONFIGURATION}"
    kubeadm("init", "phase", "certs", "apiserver", option)
    kubeadm("init", "phase", "upload-config", "kubeadm", option)
    kubeadm("init", "phase", "upload-config", "kubelet", option)  # for joins and `kubeadm upgrade node`
    write_manifests([*COMPONENTS, *(["etcd"] if known.get("etcd") != wanted["etcd"] else [])])
    wait(given)


def write_manifests(components):
    """Write manifests of static pods from the configuration."""
    option = f"--config={CONFIGURATION}"
    if "etcd" in components:
        kubeadm("init", "phase", "etcd", "local", option)
    if any(name != "etcd" for name in components):
        kubeadm("init", "phase", "control-plane", "all", option)


def recorded():
    """Return the record of the role, in which the manifests are, too."""
    call = Call("kubernetes_head")
    call.open()
    return call


def edited():
    """Return the manifests that differ from the record: their components, and the differences as text."""
    known = recorded().record["items"]
    paths = {name: f"{MANIFESTS}/{name}.yaml" for name in STATIC_PODS if f"file:{MANIFESTS}/{name}.yaml" in known}
    differences = {name: difference(inspect(path), known[f"file:{path}"]["now"]) for name, path in paths.items()}
    return {name: what for name, what in differences.items() if what}


def record():
    """Record the manifests. Without clusterctl there are none."""
    call = recorded()
    for name in STATIC_PODS:
        path = f"{MANIFESTS}/{name}.yaml"
        call.record["items"].setdefault(f"file:{path}", {"before": {"type": "absent"}})
        call.note(f"file:{path}", inspect(path), secret=False)
    call.save()


def repair(given, components):
    """Write manifests that were changed by hand as they were. An operator's comment alone restarts nothing."""
    known = recorded().record["items"]
    write_manifests(components)
    for path in [MANIFESTS / f"{name}.yaml" for name in components]:
        now = known[f"file:{path}"]["now"]
        os.chown(path, now["uid"], now["gid"])
        path.chmod(int(now["mode"], 8))
    wait(given)


def upgrade(given, version):
    """Upgrade the control plane: the first head the whole cluster's, each other one its own.

    A killed call is repeated as it was: the manifests and the cluster's configuration change before its end.
    """
    if not UPGRADING.exists():
        found = get("configmap", "kubeadm-config", "--namespace=kube-system")
        text = found[0]["data"]["ClusterConfiguration"]
        store(UPGRADING, {"whole": f"kubernetesVersion: v{version}\n" not in text + "\n"})
    # CreateJob runs a pod, for which there may be no node: this one is drained, and others may have taints.
    options = [f"--patches={PATCHES}", *ignoring([*given["ignore"], "CreateJob"])]
    if json.loads(UPGRADING.read_text())["whole"]:
        kubeadm("upgrade", "apply", f"v{version}", "--yes", *options)
        delete_autoapproval(False)
    else:
        kubeadm("upgrade", "node", *options)
    UPGRADING.unlink()


def converge(given, check):
    """Create, join or change the control plane; return the changes."""
    state, name = look(), given["name"]
    if state != "complete":
        action = "created" if given["create"] else "joined"
        if not check:
            if given["create"]:
                if state == "join":
                    reset()
                create(given, state == "init")
            else:
                join(given, state != "new")
            close(ETCD, check)
            record()
            store(COMPLETE, digests())
            STARTED.unlink()
        return [change("control plane", name, "created", action)]
    changes, version, before = [], (given["version"] if check else "") or installed(), running()
    if version and before and (numbers(version) > numbers(before) or UPGRADING.exists()):
        if not check:
            upgrade(given, version)
        was = f", was {before}" if before != version else ""  # the same in a resumed upgrade
        changes.append(change("control plane", name, "upgraded", f"version {version}{was}", before, version))
    by_hand = {} if changes else edited()
    if by_hand:
        if not check:
            repair(given, by_hand)
        changes += [change("file", f"{MANIFESTS}/{one}.yaml", "repaired", what) for one, what in by_hand.items()]
    known, wanted = json.loads(COMPLETE.read_text() or "{}"), digests() if CONFIGURATION.exists() else {}
    # The files are those of the inventory, except in check mode.
    if (given["configured"] == "changed") if check and given["configured"] else known != wanted:
        if not check:
            reconfigure(given, known, wanted)
            store(COMPLETE, wanted)
        changes.append(change("control plane", name, "changed", APPLIES))
    if delete_autoapproval(check):  # the API answers: what was wrong is repaired
        changes.append(change("ClusterRoleBinding", AUTOAPPROVAL, "removed", "kubernetes-certificates approves joins"))
    if not check:
        record()
    if close(ETCD, check):
        changes.append(change("directory", str(ETCD), "changed", "mode 0700"))
    return changes


def close(path, check):
    """Give a directory the mode with which kubeadm creates it: it may be a mount. Return whether it had another one."""
    if not path.is_dir() or path.stat().st_mode & 0o777 == 0o700:
        return False
    if not check:
        path.chmod(0o700)
    return True


def numbers(version):
    """Return a comparable version."""
    return [int(part) for part in re.findall(r"\d+", version)]


def remove(given, check):
    """Delete the control plane; return the changes."""
    if not (COMPLETE.exists() or STARTED.exists()):
        return []
    if not check:
        if shutil.which("kubeadm"):
            reset()
        shutil.rmtree(ETCD, ignore_errors=True)
        for path in (COMPLETE, STARTED, UPGRADING, STAGED, OWN / "renewed.json"):
            path.unlink(missing_ok=True)
    return [change("control plane", given["name"], "removed")]


def settle(given, check):
    """Wait after an upgrade of the kubelet; return no changes."""
    if not check and COMPLETE.exists():
        wait(given)
    return []


STEPS = {"converge": converge, "wait": settle, "remove": remove}


def main():
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={
            "step": {"type": "str", "choices": ["look", "converge", "wait", "remove"], "required": True},
            "name": {"type": "str", "required": True},
            "address": {"type": "str", "default": ""},
            "port": {"type": "int", "default": 6443},
            "create": {"type": "bool", "default": False},
            "ignore": {"type": "list", "elements": "str", "default": []},
            "configured": {"type": "str", "choices": ["", "changed", "restored"], "default": ""},
            "version": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    given, check = module.params, module.check_mode
    try:
        if given["step"] == "look":
            state = look()
            known = fixed() if state == "complete" else {}
            module.exit_json(changed=False, changes=[], notes=[], state=state, version=installed(), fixed=known)
        notes = []
        with contextlib.nullcontext() if check else alone_on_node(notes):
            changes = STEPS[given["step"]](given, check)
    except (NodeError, OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(changes), changes=changes, notes=notes)


if __name__ == "__main__":
    main()
