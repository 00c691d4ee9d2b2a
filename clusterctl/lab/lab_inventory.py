"""The inventory of a lab, and the variables in which a lab differs from servers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterctl.inventory import schedulers
from clusterctl.lab.kit import Kit
from clusterctl.lab.settings import SHARED, Node, Scheduler, Settings

USER = "admin"
# What a Kubernetes lab needs of the kit, besides what these recipes need.
KUBERNETES_RECIPES = (
    "busybox", "debian", "flannel", "kubernetes", "local-path-provisioner", "nvidia-container-toolkit",
    "nvidia-device-plugin",
)  # fmt: skip
# kubelet's own thresholds are for a disk and memory that a node has to itself.
_EVICTION = {"memory.available": "50Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"}


def variables(settings: Settings, directory: Path, served: Kit | None, *, host_has_v1: bool) -> dict[str, object]:
    """Return the variables of all hosts of a lab; write the kit's CA certificate beside the inventory."""
    found: dict[str, object] = {}
    if served:
        (directory / "kit").mkdir(exist_ok=True)
        (directory / "kit" / "ca.crt").write_text(served.authority)
        found = {
            "cluster_ca_certificates": ["kit/ca.crt"],
            "cluster_no_proxy": [served.address],
            **served.variables(),
        }
    found["base_security_updates"] = False  # labs must stay reproducible
    if settings.scheduler == Scheduler.slurm and settings.heads > 1:
        found["slurm_head_state_directory"] = f"{SHARED}/slurm"
    if settings.scheduler == Scheduler.kubernetes:
        found |= _kubernetes(settings)
    elif host_has_v1:  # there version 2 cannot limit cores and memory, version 1 cannot limit swap
        found["slurm_head_confine"] = ["devices"] if settings.cgroups == 2 else ["cores", "devices", "memory"]
    return found


def _kubernetes(settings: Settings) -> dict[str, object]:
    """Return what Kubernetes needs in a container: a container cannot do all that a server can, and shares its disk."""
    kubelet: dict[str, Any] = {"failSwapOn": False, "evictionHard": _EVICTION, "imageGCHighThresholdPercent": 100}
    if settings.cgroups == 1:
        # From 1.35 on kubelet refuses version 1 (KEP 5573). systemd in a container does not manage all controllers.
        kubelet |= {"failCgroupV1": False, "cgroupDriver": "cgroupfs"}
    found: dict[str, object] = {
        # A process may not lower its score below that of the container's first process without CAP_SYS_RESOURCE.
        "containerd_cri_options": {"restrict_oom_score_adj": True},
        "kubernetes_node_kubelet_config": kubelet,
        # A container has no configuration of the kernel that kubeadm could read.
        "kubernetes_head_ignore_checks": ["SystemVerification"],
        "kubernetes_worker_ignore_checks": ["SystemVerification"],
        # The table of connections is the host's.
        "kubernetes_head_proxy_config": {"conntrack": {"maxPerCore": 0, "min": 0}},
    }
    if settings.heads > 1:
        found["kubernetes_node_api_address"] = settings.api_address
    return found


def text(settings: Settings, nodes: Sequence[Node], key: Path, proxy: str, variables: Mapping[str, object]) -> str:
    """Return the inventory: the same for both schedulers, but for the names of the groups and their variables."""
    heads, kind = [node for node in nodes if node.is_head], schedulers.named(settings.scheduler)

    def hosts(members: Sequence[Node]) -> str:
        return "".join(f"        {node.name}: {{ansible_host: {node.address}}}\n" for node in members)

    further = "".join(f"    {name}: {json.dumps(value)}\n" for name, value in variables.items())
    return f"""\
# Lab "{settings.name}": containers on this machine, with simulated GPUs. Written by `clusterctl lab up`.
all:
  vars:
    cluster_name: {settings.name}
    cluster_networks: [{settings.subnet}]
    cluster_package_proxy: {proxy}
    ansible_user: {USER}
    ansible_ssh_private_key_file: {key}
    users_accounts:
      - {{name: alice, uid: 5001}}
{further}  children:
    {kind.head}:
      hosts:
{hosts(heads)}    {kind.workers}:
      hosts:
{hosts([node for node in nodes if not node.is_head])}    monitoring:
      hosts:
        {heads[0].name}: {{}}
"""
