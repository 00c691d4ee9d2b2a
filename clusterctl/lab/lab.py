"""A lab: heads and workers as containers, and their network. lab_inventory.py has the inventory that describes them."""

import contextlib
import fcntl
import hashlib
import ipaddress
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

from clusterctl.lab import cache, fault, image, kit, kit_recipe, lab_inventory
from clusterctl.lab.lab_inventory import USER
from clusterctl.lab.podman import (
    LIMITS,
    LabError,
    as_root,
    container_state,
    host_has_v1,
    podman,
    podman_json,
    remove_cgroups,
    remove_containers,
    require_programs,
    run_as_root,
    runtime_options,
)
from clusterctl.lab.settings import SHARED, Node, NodeStatus, Scheduler, Settings
from clusterctl.util.errors import InputError
from clusterctl.util.text import did_you_mean
from clusterctl.workspace import secrets

HEAD = "head1"
_SUBNETS = ipaddress.ip_network("10.213.0.0/16")
# A nested container engine needs a file system other than the container's overlay, and etcd one that syncs fast.
_VOLUMES = ("/var/lib/containers", "/var/lib/docker", "/var/lib/containerd", "/var/lib/kubelet")
_KUBERNETES_VOLUMES = ("/var/lib/etcd",)
REACHABLE_WITHIN = 120.0  # seconds
# inotify instances of root in a node: systemd, journald, udevd and logind; with Kubernetes also containerd, kubelet and
# the pods of a head, counted in a lab.
INOTIFY_PER_NODE: Mapping[str, int] = {Scheduler.slurm: 5, Scheduler.kubernetes: 22}
_DIRECTORY_LABEL, _SCHEDULER_LABEL = "clusterctl.lab.directory", "clusterctl.lab.scheduler"
# Settings that cannot change after a node's first boot.
_FIXED = ("scheduler", "os", "worker_os", "gpus", "gpu_model", "cgroups")


def _state_directory() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "clusterctl" / "labs"


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Hold the lock of all labs: they share images, the package cache and the kit's server."""
    root = _state_directory()
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def names() -> list[str]:
    """Return the names of this user's labs."""
    return sorted(path.parent.parent.name for path in _state_directory().glob("*/.lab/lab.json"))


class Lab:
    """A lab by name. Every method raises LabError with a message for the user."""

    def __init__(self, name: str) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,29}", name):
            raise LabError(
                f"--name {name!r}: lower-case letters, digits and hyphens, at most 30, beginning with a letter"
            )
        self.name = name
        self.directory = _state_directory() / name
        self.network = f"clusterctl-{name}"
        self.inventory = self.directory / "inventory.yaml"
        self.known_hosts = self.directory / "known_hosts"
        self.key = self.directory / "id_ed25519"
        self._private = self.directory / ".lab"
        self._storage = f"{self.network}-shared"

    # Settings

    def settings(self) -> Settings | None:
        """Return the stored settings, or None if there is no such lab."""
        path = self._private / "lab.json"
        try:
            return Settings(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise LabError(
                f"{path}: cannot be read ({error}); remove it: clusterctl lab down --name {self.name}"
            ) from None

    def container(self, node: str) -> str:
        """Return the name of a node's container."""
        return f"clusterctl-{self.name}-{node}"

    # Verbs

    def up(self, wanted: Settings, say: Callable[[str], None] = lambda step: None) -> tuple[list[Node], bool]:
        """Create or repair the lab; return its nodes and whether an image was built; call `say` with each step."""
        _require_consistent(wanted)
        self._require_growth(wanted)  # before a kit is built, which may take minutes
        require_programs()
        built_kit = kit.build(kit_recipe.load(tuple(wanted.recipes)), say, wanted.mirror) if wanted.kit else None
        with locked():
            self._require_growth(wanted)
            self._require_ours()
            self._require_inotify(wanted)
            names = {d.name: d for d in (image.choose(wanted.os), image.choose(wanted.worker_os or wanted.os))}
            built = [image.ensure(distribution, wanted.mirror) for distribution in names.values()]
            images = {name: built[i][0] for i, name in enumerate(names)}
            self._private.mkdir(parents=True, exist_ok=True, mode=0o700)
            settings = replace(wanted, subnet=self._ensure_network())
            nodes = settings.nodes()
            self._write_private(settings, nodes)
            proxy = cache.ensure(lambda: image.ensure(image.choose(cache.DISTRIBUTION), settings.mirror)[0])
            # Hold the lock until the lab has containers: `down` of another lab removes a server without users.
            served = kit.serve(built_kit, say) if built_kit else None
            with ThreadPoolExecutor(4) as pool:
                list(
                    pool.map(lambda node: self._ensure_container(node, settings, images[node.distribution.name]), nodes)
                )
            variables = lab_inventory.variables(settings, self.directory, served, host_has_v1=host_has_v1())
            self._write_inventory(lab_inventory.text(settings, nodes, self.key, proxy, variables))
        self._wait_reachable(nodes)
        return nodes, any(was_built for _, was_built in built)

    def down(self) -> bool:
        """Remove the lab's containers, volumes, network and directory; return whether any of them existed."""
        with locked():
            self._require_ours()
            existed = bool(self._containers()) or self.directory.exists()
            if containers := self._containers():
                remove_containers(*containers)
                if host_has_v1():
                    remove_cgroups(*containers)
            if not podman_json("ps", "--all", "--filter", "label=clusterctl.lab"):
                cache.remove()
                kit.remove()
            podman("network", "rm", "--force", self.network, check=False)
            podman("volume", "rm", "--force", self._storage, check=False)
            with contextlib.suppress(InputError):  # an unreadable inventory has no password to forget
                secrets.forget(self.directory)
            shutil.rmtree(self.directory, ignore_errors=True)
        return existed

    def status(self) -> tuple[Settings, list[NodeStatus]]:
        """Return the lab's settings and the state of each node's container."""
        settings = self._existing()
        rows = []
        for node in settings.nodes():
            state = container_state(self.container(node.name)) or "missing"
            gpus = f"{node.gpus} x {settings.gpu_model} (simulated)" if node.gpus else "none"
            rows.append(NodeStatus(node.name, node.address, state, node.distribution.name, gpus))
        return settings, rows

    def ssh_command(self, node: str, command: list[str]) -> list[str]:
        """Return the ssh command to a node as the lab's administrator, with the lab's keys only."""
        return self._ssh(self._node(node), command)

    def fault(self, node: str, name: str, xid: int | None, gpu: int | None) -> None:
        """Inject a fault into a GPU of a node, by default the first. `clear` without a GPU clears all GPUs."""
        settings = self._existing()
        found = self._node(node)
        if name not in fault.FAULTS:
            hint = did_you_mean(name, fault.FAULTS) or f"choose from {', '.join(fault.FAULTS)}"
            raise LabError(f"{name}: no such fault; {hint}")
        if (name == "gpu-xid") != (xid is not None):
            raise LabError(f"{name}: {'an XID is missing, for example 79' if xid is None else 'accepts no number'}")
        if gpu not in (None, *range(found.gpus)):
            has = f"its GPUs: {', '.join(map(str, range(found.gpus)))}" if found.gpus else "it has none"
            raise LabError(f"{node} has no GPU {gpu}; {has}")
        if not found.gpus:
            raise LabError(f"{node} has no GPUs")
        if (state := container_state(self.container(node)) or "missing") != "running":
            raise LabError(f"{node} is not running ({state}); start it: clusterctl lab up --name {self.name}")
        gpus = range(found.gpus) if name == "clear" and gpu is None else [gpu or 0]
        fault.inject(self.container(node), name, xid, settings.gpu_model, gpus)

    # Parts

    def _existing(self) -> Settings:
        """Return the lab's settings; LabError with the existing labs if it is not one of them."""
        settings = self.settings()
        if settings is None:
            others = f" (existing labs: {', '.join(names())})" if names() else ""
            create = f"clusterctl lab up --name {self.name}"
            raise LabError(f"there is no lab named {self.name}; create it: {create}{others}")
        return settings

    def _node(self, name: str) -> Node:
        nodes = {node.name: node for node in self._existing().nodes()}
        if name not in nodes:
            known = f"its nodes: {', '.join(nodes)}"
            raise LabError(f"lab {self.name} has no node {name}; {did_you_mean(name, nodes) or known}")
        return nodes[name]

    def _containers(self) -> list[str]:
        listing = podman_json("ps", "--all", "--filter", f"label=clusterctl.lab={self.name}")
        return [str(container["Names"][0]) for container in listing]

    def _ensure_network(self) -> str:
        existing = podman_json("network", "ls", "--filter", f"name=^{self.network}$")
        if existing:
            return str(existing[0]["subnets"][0]["subnet"])
        taken = {
            ipaddress.ip_network(subnet["subnet"])
            for network in podman_json("network", "ls")
            for subnet in network.get("subnets") or []
        }
        routes = subprocess.run(["ip", "-4", "route"], capture_output=True, text=True, check=True).stdout
        for line in routes.splitlines():
            with contextlib.suppress(ValueError):
                taken.add(ipaddress.ip_network(line.split()[0]))
        for subnet in _SUBNETS.subnets(new_prefix=24):
            if not any(subnet.overlaps(other) for other in taken if other.version == 4):
                label = f"clusterctl.lab={self.name}"
                podman("network", "create", "--label", label, "--subnet", str(subnet), self.network)
                return str(subnet)
        raise LabError(f"no free network is left in {_SUBNETS}")

    def _write_private(self, settings: Settings, nodes: list[Node]) -> None:
        if not self.key.exists():
            _ssh_keygen(self.key, f"clusterctl lab {self.name}")
        profile = (image.HERE / "nvml" / "profiles" / f"{settings.gpu_model}.conf").read_text() if settings.gpus else ""
        extra = image.extra_certificates()
        lines = []
        for node in nodes:
            folder = self._private / node.name
            folder.mkdir(exist_ok=True)
            host_key = folder / "ssh_host_ed25519_key"
            if not host_key.exists():
                _ssh_keygen(host_key, node.name)
            kind, key, *_ = host_key.with_suffix(".pub").read_text().split()
            lines.append(f"{node.address} {kind} {key}\n")
            shutil.copy(self.key.with_suffix(".pub"), folder / "authorized_keys")
            (folder / "scheduler").write_text(f"{settings.scheduler}\n")
            # Also set gpus=0 for a node without GPUs, or it would show the GPUs of the container's host.
            gpus = f"{profile}gpus={node.gpus}\nnode_seed={self.name}/{node.name}\n" if node.gpus else "gpus=0\n"
            (folder / "simulated-nvml.conf").write_text(gpus)
            if extra:
                (folder / "certificates").mkdir(exist_ok=True)
                for number, pem in enumerate(extra):
                    (folder / "certificates" / f"host-{number}.crt").write_text(pem)
        known = self.known_hosts.read_text() if self.known_hosts.exists() else ""
        self.known_hosts.write_text(known + "".join(line for line in lines if line not in known))
        self.known_hosts.chmod(0o600)
        (self._private / "lab.json").write_text(json.dumps(asdict(settings), indent=2) + "\n")

    def _require_growth(self, wanted: Settings) -> None:
        """Refuse settings that an existing lab cannot change to: more nodes are all that it can get."""
        stored = self.settings()
        if stored is None:
            return
        first = f"first run: clusterctl lab down --name {self.name}"
        if different := [key for key in _FIXED if getattr(stored, key) != getattr(wanted, key)]:
            has = ", ".join(f"--{key.replace('_', '-')} {getattr(stored, key)}" for key in different)
            raise LabError(f"lab {self.name} exists with {has}; to change that, {first}")
        if wanted.scheduler == Scheduler.slurm and wanted.heads != stored.heads:
            raise LabError(f"lab {self.name} exists with --heads {stored.heads}; to change that, {first}")
        for kind in ("heads", "workers"):
            if getattr(wanted, kind) < (count := getattr(stored, kind)):
                raise LabError(f"lab {self.name} has {count} {kind} and cannot shrink; to make a smaller one, {first}")

    def _require_ours(self) -> None:
        """Refuse a lab of the same name that belongs to another user or state directory on this machine."""
        for container in podman_json("ps", "--all", "--filter", f"label=clusterctl.lab={self.name}"):
            owner = (container.get("Labels") or {}).get(_DIRECTORY_LABEL, str(self.directory))
            if owner != str(self.directory):
                raise LabError(f"lab {self.name} belongs to {owner}; choose another --name, or use it from there")

    def _require_inotify(self, wanted: Settings) -> None:
        """Refuse more nodes than root's limit of inotify instances allows: systemd would not start in the last ones."""
        running = [node.get("Labels") or {} for node in podman_json("ps", "--filter", "label=clusterctl.lab")]
        new = wanted.heads + wanted.workers - sum(labels["clusterctl.lab"] == self.name for labels in running)
        limit = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
        find = ["find", "/proc", "-maxdepth", "3", "-path", "/proc/[0-9]*/fd/*", "-user", "root", "-lname"]
        # find fails if a process ends during the search; its output is still complete enough.
        used = run_as_root([*find, "anon_inode:inotify"], check=False).stdout.count("\n")
        # A cluster that is not bootstrapped yet will use more than it does now.
        used = max(used, sum(INOTIFY_PER_NODE[labels.get(_SCHEDULER_LABEL, Scheduler.slurm)] for labels in running))
        each = INOTIFY_PER_NODE[wanted.scheduler]
        if used + new * each > limit:
            raising = " ".join(as_root(["sysctl", f"fs.inotify.max_user_instances={used + new * each + 128}"]))
            fewer = "--workers" if wanted.heads == 1 else "--heads or --workers"
            raise LabError(
                f"{new} more nodes need {new * each} inotify instances, {each} each, and this machine allows root "
                f"{limit}, of which {used} are in use. Use fewer {fewer}, or raise the limit until the next boot:\n"
                f"  {raising}"
            )

    def _ensure_container(self, node: Node, settings: Settings, image_name: str) -> None:
        name = self.container(node.name)
        state = container_state(name)
        if state in ("exited", "created"):
            run_as_root(["podman", "start", name], check=False)
            state = container_state(name)
        if state == "running":
            return
        if state:  # after a host's reboot or a kill -9 podman's state may be stale: make a new container
            remove_containers(name)
        podman(
            *runtime_options(), "run", "--detach", "--name", name, "--hostname", node.name,
            "--label", f"clusterctl.lab={self.name}", "--label", f"{_DIRECTORY_LABEL}={self.directory}",
            "--label", f"{_SCHEDULER_LABEL}={settings.scheduler}",
            "--network", f"{self.network}:ip={node.address}",
            "--network-alias", node.name, "--systemd=always", "--restart=on-failure",
            # Everything that nested containers and cgroups need, without access to the host's clock, modules and swap.
            "--cap-add=ALL", "--cap-drop=SYS_TIME", "--cap-drop=SYS_MODULE",
            "--security-opt", f"seccomp={image.HERE / 'node' / 'seccomp.json'}",
            "--security-opt", "label=disable", "--security-opt", "apparmor=unconfined",
            "--device-cgroup-rule", "a *:* rwm", *LIMITS,
            "--volume", f"{self._private / node.name}:/opt/lab-node:ro", *self._shared(node, settings),
            *(f"--volume={path}" for path in _volumes(settings)),
            image_name, "/usr/local/lib/lab-node/init", name, str(settings.cgroups),
        )  # fmt: skip

    def _shared(self, node: Node, settings: Settings) -> tuple[str, ...]:
        """Return the options that give two heads of Slurm one volume of this machine: simulated shared storage."""
        several = settings.heads > 1 and settings.scheduler == Scheduler.slurm
        return ("--volume", f"{self._storage}:{SHARED}") if several and node.is_head else ()

    def _write_inventory(self, text: str) -> None:
        """Write inventory.yaml, unless it was edited since the last write."""
        marker = self._private / "inventory.sha256"
        if self.inventory.exists():
            digest = hashlib.sha256(self.inventory.read_bytes()).hexdigest()
            if not marker.exists() or marker.read_text() != digest:
                return
        self.inventory.write_text(text)
        marker.write_text(hashlib.sha256(text.encode()).hexdigest())

    def _ssh(self, node: Node, command: list[str], *options: str) -> list[str]:
        return [
            "ssh", "-F", "none", "-i", str(self.key), "-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=yes",
            "-o", f"UserKnownHostsFile={self.known_hosts}", "-o", "GlobalKnownHostsFile=none", *options,
            f"{USER}@{node.address}", *command,
        ]  # fmt: skip

    def _wait_reachable(self, nodes: list[Node]) -> None:
        deadline = time.monotonic() + REACHABLE_WITHIN

        def wait(node: Node) -> str:
            last = ""
            while time.monotonic() < deadline:
                argv = self._ssh(node, ["true"], "-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
                done = subprocess.run(argv, capture_output=True, text=True, check=False)
                if done.returncode == 0:
                    return ""
                last = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no answer"
                time.sleep(0.3)
            return f"{node.name} ({node.address}): {last}"

        with ThreadPoolExecutor(8) as pool:
            failed = [text for text in pool.map(wait, nodes) if text]
        if failed:
            raise LabError("these nodes did not answer over SSH:\n  " + "\n  ".join(failed))


def _volumes(settings: Settings) -> tuple[str, ...]:
    return _VOLUMES + (_KUBERNETES_VOLUMES if settings.scheduler == Scheduler.kubernetes else ())


def _require_consistent(wanted: Settings) -> None:
    """Refuse settings that contradict each other or this machine."""
    kubernetes = wanted.scheduler == Scheduler.kubernetes
    if wanted.heads > 2 and not kubernetes:
        raise LabError(f"--heads {wanted.heads}: a Slurm cluster has one head or two; more need --scheduler kubernetes")
    if wanted.heads % 2 == 0 and kubernetes:
        raise LabError(f"--heads {wanted.heads}: expected an odd number, so that etcd has a majority when a head fails")
    if wanted.cgroups == 1 and not host_has_v1():
        raise LabError("--cgroups 1: this machine has only version 2 of cgroups")
    if wanted.cgroups == 2 and kubernetes and host_has_v1():
        raise LabError(
            "--cgroups 2: kubelet needs the controllers, which version 1 has on this machine; use --cgroups 1"
        )


def _ssh_keygen(path: Path, comment: str) -> None:
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
