"""The answer as one JSON object."""

import glob
import json
import os
import shutil
import socket
import time
from typing import Optional

from clusterctl.nodes.probe.common import MARK, WATCHED, Facts, UnhealthyError
from clusterctl.nodes.probe.drift import drift
from clusterctl.nodes.probe.gpus import gpus, pci_gpus
from clusterctl.nodes.probe.machine import hardware, in_container, key_enrolled, memory_mb, secure_boot
from clusterctl.nodes.probe.mounts import mounts, responding
from clusterctl.nodes.probe.packages import installed_packages, lock_holder, network, security_updates, slurm_packages
from clusterctl.nodes.probe.people import people
from clusterctl.nodes.probe.prometheus import alerts, targets
from clusterctl.nodes.probe.services import before, firewall, head_of, homes, jobs, kubernetes, services, slurm
from clusterctl.nodes.probe.state import records, state


def node(options: Facts, nvml_error: Optional[str]) -> Facts:
    places = ("/", "/var", "/tmp")  # noqa: S108 - read, not written
    free = {path: shutil.disk_usage(path).free >> 20 for path in places if os.path.isdir(path)}
    states = mounts(options.get("mounts") or {})
    return {
        "hostname": socket.gethostname(),
        "root": os.geteuid() == 0,
        "free_mb": free,
        "memory_available_mb": memory_mb("MemAvailable"),
        "pci_gpus": pci_gpus(),
        "nvml_error": nvml_error,
        "container": in_container(),
        "secure_boot": secure_boot(),
        "key_enrolled": key_enrolled(),
        "network": network(options["network"]) if options.get("network") is not None else None,
        "lock_holder": lock_holder(),
        "roles": sorted(os.path.basename(path)[:-5] for path in glob.glob("/var/lib/clusterctl/state/*.json")),
        "cluster": head_of(),
        "before": before(),
        "slurm": slurm(),
        "kubernetes": kubernetes(),
        "swap_mb": memory_mb("SwapTotal"),
        "security_updates": security_updates(),
        "slurm_packages": slurm_packages(options["slurm"]) if options.get("slurm") else None,
        "watched_packages": installed_packages(WATCHED) if options.get("network") is not None else {},
        "jobs": jobs(),
        "firewall": firewall(),
        "services": services(options.get("services") or []),
        "homes": homes(responding(options.get("homes") or [], states)),
        "mounts": states,
        "people": people(options.get("people") or []),
    }


def main(options: Facts) -> None:
    """Print the answer.

    All options are optional. `network`, with the inventory's `proxy`, `no_proxy` and `mirrors`, tests the package
    sources. `mounts` has directories with their sources and types, `services` the units whose state is needed, and
    `people` the users whose IDs are. `drift`, `alerts` and `targets` have the options of these functions. `state` asks
    for the digests of the node's state and of its `records`; without them `state_error` has the reason.
    """
    started = time.time()
    found, driver, nvml_error = gpus()
    answer = {"hardware": hardware(found, driver), "node": node(options, nvml_error), "started": started}
    answer["state"], answer["state_error"] = None, ""
    answer["records"] = {}
    try:
        if options.get("state"):
            recorded = records()
            answer["records"], answer["state"] = recorded, state(found, driver, recorded)
    except UnhealthyError as error:
        answer["state_error"] = str(error)
    for name, function in (("drift", drift), ("alerts", alerts), ("targets", targets)):
        answer[name] = function(options[name]) if options.get(name) else None
    answer["ended"] = time.time()
    print("\n" + MARK + json.dumps(answer), flush=True)
