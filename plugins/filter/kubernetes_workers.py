"""Filters that turn hardware records into the labels of Kubernetes' workers and the settings of their GPUs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

Record = Mapping[str, Any]
Data = dict[str, Any]

PREFIX = "clusterctl/"
PLUGIN = "nvidia-device-plugin"
STRATEGIES = ("none", "single", "mixed")
# The part of a label's key after the prefix, and its value (apimachinery/pkg/util/validation, IsQualifiedName).
NAME = re.compile("[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def variant(variables: Mapping[str, Any], slices: int, strategy: str) -> Data:
    """Return the settings of a worker's device plugin: its own, or else these.

    ``label`` is the value of its node label, ``name`` the name of the DaemonSet for all workers with these settings.
    """
    slices = int(variables.get("kubernetes_gpu_time_slices", slices))
    strategy = str(variables.get("kubernetes_gpu_mig_strategy", strategy))
    if slices < 1:
        raise AnsibleFilterError(f"kubernetes_gpu_time_slices is {slices}, expected 1 or more")
    if strategy not in STRATEGIES:
        raise AnsibleFilterError(f"kubernetes_gpu_mig_strategy is {strategy!r}, expected {', '.join(STRATEGIES)}")
    own = "" if (slices, strategy) == (1, "none") else f"-{slices}-{strategy}"
    return {"label": f"slices-{slices}.mig-{strategy}", "name": PLUGIN + own, "slices": slices, "mig": strategy}


def variants(
    workers: Iterable[str], records: Mapping[str, Record], hostvars: Mapping[str, Any], slices: int, strategy: str
) -> list[Data]:
    """Return the different settings of all workers with GPUs, each once."""
    found = {}
    for name in workers:
        if records.get(name, {}).get("gpus"):
            own = variant(hostvars[name], slices, strategy)
            found[own["label"]] = own
    return [found[label] for label in sorted(found)]


def configuration(settings: Mapping[str, Any]) -> Data:
    """Return the configuration file of the device plugin (NVIDIA/k8s-device-plugin v0.19.3, api/config/v1)."""
    flags = {
        "migStrategy": settings["mig"],
        "failOnInitError": True,
        "nvidiaDriverRoot": "/",
        "deviceDiscoveryStrategy": "nvml",
        "plugin": {
            "deviceListStrategy": ["cdi-cri"],
            "deviceIDStrategy": "uuid",
            "containerDriverRoot": "/driver-root",
            "nvidiaCTKPath": "/usr/bin/nvidia-cdi-hook",
        },
    }
    found: Data = {"version": "v1", "flags": flags}
    if settings["slices"] > 1:
        # Two slices may be of one GPU, so a request for two gets no more than one.
        shared = {"name": "nvidia.com/gpu", "replicas": settings["slices"]}
        found["sharing"] = {"timeSlicing": {"failRequestsGreaterThanOne": True, "resources": [shared]}}
    return found


def resources(record: Record, settings: Mapping[str, Any]) -> dict[str, int]:
    """Return the resources that a worker offers, each with its number."""
    found: Counter[str] = Counter()
    for gpu in record["gpus"]:
        profiles = gpu["mig"] if settings["mig"] != "none" else None
        if profiles is None:
            found["nvidia.com/gpu"] += settings["slices"]
        for profile in profiles or ():
            if settings["mig"] == "single":
                found["nvidia.com/gpu"] += settings["slices"]
            else:
                found["nvidia.com/mig-" + profile.replace("+", ".")] += 1
    return dict(found)


def proof(record: Record, settings: Mapping[str, Any]) -> Data:
    """Return what a test pod requests of a worker: ``resource``, its ``count`` there, and the ``request``.

    A request of GPUs that are shared or MIG instances is for one.
    """
    offered = resources(record, settings)
    if not offered:
        return {"resource": "", "count": 0, "request": 0}
    name = min(offered)  # nvidia.com/gpu is before the profiles
    divided = settings["slices"] > 1 or (settings["mig"] != "none" and any(gpu["mig"] for gpu in record["gpus"]))
    return {"resource": name, "count": offered[name], "request": 1 if divided else min(2, offered[name])}


def problems(record: Record, settings: Mapping[str, Any]) -> list[str]:
    """Return why a worker's GPUs do not fit to the settings of its device plugin."""
    layouts = [gpu["mig"] for gpu in record["gpus"]]
    divided = [layout for layout in layouts if layout is not None]
    if divided and settings["mig"] == "none":
        return ["its GPUs have MIG instances: set kubernetes_gpu_mig_strategy to mixed, or to single if all are equal"]
    profiles = {profile for layout in divided for profile in layout}
    if settings["mig"] == "single" and divided and (len(profiles) > 1 or len(divided) < len(layouts)):
        return ["kubernetes_gpu_mig_strategy single needs the same MIG profile on all its GPUs"]
    return []


def labels(record: Record, groups: Iterable[str], settings: Mapping[str, Any], own: Mapping[str, str]) -> Data:
    """Return the labels of a worker: of its sub-groups, its GPUs, and its own ones."""
    found = {"node-role.kubernetes.io/worker": ""}
    for group in groups:
        if not NAME.fullmatch(name := f"group.{group}"):
            raise AnsibleFilterError(
                f"the group {group} cannot be a label: expected letters, digits, . _ - and at most 57"
            )
        found[PREFIX + name] = ""
    gpus = record.get("gpus") or []
    if gpus:
        models = sorted({gpu["type"] for gpu in gpus})
        found["nvidia.com/gpu.present"] = "true"
        found[f"{PREFIX}gpu-model"] = ".".join(models)[:63].rstrip("._-")
        found[f"{PREFIX}gpu-count"] = str(len(gpus))
        found[f"{PREFIX}gpu-memory-gib"] = str(min(gpu["memory_mb"] for gpu in gpus) // 1024)
        found[f"{PREFIX}gpu-nvlink"] = "true" if any(gpu["links"] for gpu in gpus) else "false"
        found[f"{PREFIX}gpu-plugin"] = settings["label"]
    return found | {str(key): str(value) for key, value in own.items()}


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "kubernetes_gpu_problems": problems,
            "kubernetes_gpu_proof": proof,
            "kubernetes_gpu_variant": variant,
            "kubernetes_gpu_variants": variants,
            "kubernetes_labels": labels,
            "kubernetes_plugin_configuration": configuration,
        }
