#!/usr/bin/python
"""Ansible module: join this host to a Kubernetes cluster as a worker, and keep its kubelet at kubeadm's version."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.kubeadm import installed
from ansible.module_utils.node_state.tools import RUN, STORE, NodeError, change, clean, run, write

DOCUMENTATION = r"""
module: kubernetes_join
author: the clusterctl authors
short_description: Join a host to a Kubernetes cluster as a worker
description:
  - A complete join is marked on the host with a copy of the cluster's certificate authority. An incomplete one is
    undone and repeated by the next call.
  - The discovery file is in memory only (/run) and is deleted, so no token is left on the host.
  - When kubeadm was upgraded, gets the cluster's configuration of the kubelet (C(kubeadm upgrade node)).
options:
  state:
    description:
      - V(look) returns whether the host has joined the cluster, and upgrades the kubelet's configuration if it has.
      - V(reset) undoes an incomplete join, or one to another cluster. V(joined) does so, too, and joins.
    type: str
    choices: [look, reset, joined]
    default: look
  authority:
    description: SHA-256 of the cluster's certificate authority, from kubernetes_nodes.
    type: str
    default: ""
  discovery:
    description: Content of the discovery file, from kubernetes-join on a head.
    type: str
    default: ""
  problem:
    description: Why there is no discovery file; reported in place of a join.
    type: str
    default: ""
  configuration:
    description: The JoinConfiguration of C(kubeadm join).
    type: dict
    default: {}
  ignore:
    description: Checks whose errors C(kubeadm upgrade node) ignores. A join has them in its configuration.
    type: list
    elements: str
    default: []
attributes:
  check_mode: {support: full, description: Reports what would change.}
"""

EXAMPLES = r"""
- name: Check whether the host has joined
  kubernetes_join:
    authority: "{{ cluster.authority }}"
  register: this_host
"""

RETURN = r"""
joined:
  description: Whether the host has joined the cluster with this authority completely.
  type: bool
  returned: always
changes:
  description: The changes; mappings with kind, name, action and what.
  type: list
  returned: always
"""

KUBERNETES = Path("/etc/kubernetes")
AUTHORITY = KUBERNETES / "pki/ca.crt"
JOINED = KUBERNETES / "clusterctl/joined.crt"
CONFIGURATION = RUN / "kubernetes-join.json"
LOCK = RUN / "kubernetes-join.lock"
# kubeadm's version when it last wrote the configuration of the kubelet.
VERSION = STORE / "kubernetes-worker.version"
# What a join leaves if it is incomplete, or was to another cluster.
LEFT = (AUTHORITY, KUBERNETES / "kubelet.conf", KUBERNETES / "bootstrap-kubelet.conf")
SOCKET = "unix:///run/containerd/containerd.sock"


def has_joined(authority):
    """Return whether the host has joined the cluster with this authority completely."""
    return bool(authority) and JOINED.exists() and hashlib.sha256(JOINED.read_bytes()).hexdigest() == authority


def look(authority, ignore, check):
    """Return the changes of a host that has joined: kubelet's configuration after an upgrade of kubeadm."""
    if not has_joined(authority):
        return []
    version, last = f"v{installed()}", VERSION.read_text().strip() if VERSION.exists() else ""
    if version == last:
        return []
    if not check:
        run("kubeadm", "upgrade", "node", *([f"--ignore-preflight-errors={','.join(ignore)}"] if ignore else []))
        run("systemctl", "restart", "kubelet.service")
        write(VERSION, f"{version}\n".encode())
    return [change("kubelet", "configuration", "upgraded", f"for {version}", last, version)]


def reset(check):
    """Undo what an earlier join has left; return the changes."""
    if not any(path.exists() for path in LEFT):
        return []
    if not check:
        JOINED.unlink(missing_ok=True)
        run("kubeadm", "reset", "--force", f"--cri-socket={SOCKET}")
    return [change("kubernetes", "node", "removed", "an incomplete join, or one to another cluster")]


def join(discovery, configuration, check):
    """Join the cluster; return the changes."""
    if not check:
        # kubeadm starts the kubelet but does not enable it, and neither does its package for the RHEL family.
        run("systemctl", "enable", "kubelet.service")
        token = Path(configuration["discovery"]["file"]["kubeConfigPath"])
        try:
            write(token, discovery.encode())
            write(CONFIGURATION, json.dumps(configuration).encode())
            run("kubeadm", "join", f"--config={CONFIGURATION}")
        finally:
            token.unlink(missing_ok=True)
            CONFIGURATION.unlink(missing_ok=True)
        JOINED.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write(VERSION, f"v{installed()}\n".encode())
        shutil.copyfile(AUTHORITY, JOINED)
    return [change("kubernetes", "node", "created", "joined the cluster")]


def main():
    """Ansible's entry point. A killed run's join may still be at work, so only one call at a time does something."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["look", "reset", "joined"], "default": "look"},
            "authority": {"type": "str", "default": ""},
            "discovery": {"type": "str", "default": "", "no_log": True},
            "problem": {"type": "str", "default": ""},
            "configuration": {"type": "dict", "default": {}},
            "ignore": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        RUN.mkdir(mode=0o700, exist_ok=True)
        with LOCK.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if given["state"] == "look":
                changes = look(given["authority"], given["ignore"], module.check_mode)
            elif given["state"] == "reset":
                changes = reset(module.check_mode)
            else:
                if given["problem"]:
                    raise NodeError(given["problem"])
                changes = reset(module.check_mode)
                changes += join(given["discovery"], given["configuration"], module.check_mode)
    except NodeError as error:
        module.fail_json(msg=clean(str(error)))
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}")
    module.exit_json(changed=bool(changes), changes=changes, joined=has_joined(given["authority"]))


if __name__ == "__main__":
    main()
