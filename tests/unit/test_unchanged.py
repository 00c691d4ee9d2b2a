"""Which nodes a bootstrap leaves out: only those of which all that could have changed is known not to have."""

import io
import json
import re
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from clusterctl.ansible.events import Change, PlaybookStarted, Status
from clusterctl.ansible.events import Result as StageResult
from clusterctl.ansible.outcome import Host as Result
from clusterctl.ansible.outcome import Ledger
from clusterctl.commands import bootstrap
from clusterctl.inventory import bootstrap_plays, model
from clusterctl.nodes import parallel
from clusterctl.nodes.contact import Drift, Item
from clusterctl.nodes.probe import state
from clusterctl.nodes.probe.common import UnhealthyError
from clusterctl.run import context, effects, inputs, plays, proofs, pruning, record, role_variables, unchanged
from clusterctl.run.context import Options, Site
from clusterctl.run.entry import NoteInputs
from clusterctl.run.phases import Run
from clusterctl.run.proofs import Proof
from clusterctl.ui.screen import Screen
from clusterctl.util import paths
from clusterctl.util.errors import ClusterctlError, HeadFailed, WorkersFailed
from clusterctl.workspace import secrets
from tests.unit.test_inputs import INVENTORY, PEM, SECRETS, a_directory, recorded, sealed
from tests.unit.test_role_plugins import plugin

STATE = dict.fromkeys(("accounts", "machine", "packages", "records"), "a" * 64)
RECORDS = dict.fromkeys(("base", "docker", "users"), "a" * 64)
OTHER = STATE | {"machine": "b" * 64}
UP = {"head1": True, "gpu01": True, "gpu02": True}
CLEAN = Drift(None, (), 0, {})
EDITED = Drift(None, (Item("munge", "file", "/etc/munge/munge.key", "edited"),), 0, {})

KUBERNETES = INVENTORY.replace("slurm_", "kubernetes_")

# What the tasks of each role do besides node_state, by module and name. A new task may change what no proof has. Before
# it is added here, see that probe/state.py has it in its digest, or take the role out of PROVEN.
LOOK = plugin("modules/nvidia_look")
NEUTRAL = {"assert", "debug", "fail", "import_tasks", "include_tasks", "include_vars", "meta", "node_state", "set_fact"}
REVIEWED: Mapping[str, set[str]] = {
    "alertmanager": {"command: Install Alertmanager's own release"},  # its programs are in the digest
    "apptainer": {"script: Verify that a user can run a container"},  # what it needs is in the digest
    "base": {
        "command: Enable CodeReady Builder",  # what is enabled is in the digest, as is dnf.conf
        "command: List all repositories",
        "lineinfile: Set the package manager's proxy",
    },
    "dcgm_exporter": {
        "include_role: Set up NVIDIA's repository",  # of nvidia_driver
        "nvidia_look: Read the GPUs and their driver",
    },
    "docker": {  # its group is in the digest
        "command: Remove users from Docker's group",
        "getent: Read who is in Docker's group",
    },
    "gpu_config": {"gpu_config: Configure the GPUs", "gpu_config: Read how the GPUs will be partitioned"},
    "kubernetes_exporter": {"kubernetes_objects: Let Prometheus read the metrics of API servers and kubelets"},
    "kubernetes_gpu": {"kubernetes_objects: Install NVIDIA's device plugin"},
    "kubernetes_head": {
        "command: Allow haproxy the API's port under SELinux",  # the boolean is in the digest
        "command: Check whether SELinux denies haproxy the API's port",
        "command: Delete the nodes and etcd members of replaced heads",  # of a new head
        "include_role: Record that the kubelet of a new head runs",  # of kubernetes_node
        "include_role: Upgrade the kubelet",
        "kubernetes_control_plane: Look for a control plane",
        "kubernetes_control_plane: Set up further heads",  # recorded, or in the digest
        "kubernetes_control_plane: Set up the first head",
        "kubernetes_control_plane: Wait until the static pods run steadily",
        "kubernetes_system_pods: Record the API's addresses in a new cluster",
        "kubernetes_system_pods: Restart kube-proxy if the API has other addresses, and spread CoreDNS",
    },
    "kubernetes_network": {
        "command: Look for nft_queue in the kernel",
        "kubernetes_objects: Install the network plugin",
    },
    "kubernetes_node": {
        "command: List swap, the kernel, and the certificate and release of a node that has joined",
        "copy: Copy these archives",  # they are deleted after the import
        "kubernetes_images: Find the archives whose images are missing on the node",
        "kubernetes_images: Import their images",
    },
    "kubernetes_quota": {
        "kubernetes_objects: Limit the pods of persons, and create the teams' namespaces, quotas and priority classes"
    },
    "kubernetes_storage": {"kubernetes_objects: Install the storage class and its provisioner"},
    "kubernetes_worker": {
        "include_role: Record that the kubelet runs",  # of kubernetes_node
        "kubernetes_join: Check which cluster the worker has joined",  # what it compares is in the digest
        "kubernetes_join: Join the worker",
        "kubernetes_join: Prepare a node that joins again",
        "kubernetes_nodes: Delete the tokens of workers that have not joined",  # after a failure
        "kubernetes_nodes: Label the workers, and cordon new ones",  # in the digest of each worker
        "kubernetes_nodes: List the nodes of the cluster",
        "kubernetes_nodes: Prepare the cluster, and create a token for each worker",
    },
    "logging": {"command: Set users, pipelines and templates in the search engine"},  # what is missing is in the digest
    "nfs_client": {"command: Find what the mounts would hide, and former mounts"},
    "nfs_server": {  # quotas are not in the digest: their inventory is
        "command: Find exports that are no file systems of their own",
        "command: Create the directories to export",
        "nfs_quotas: Check that the homes are on a file system with quotas",
        "nfs_quotas: Set the quotas of homes",
    },
    "munge": {  # of the verb that exchanges the key
        "command: Read the head's clock",
        "munge_key: Schedule the exchange on the head",
        "munge_key: Schedule the exchange on the workers",
        "munge_key: Stage the new key",
        "munge_key: Wait for the exchange",
    },
    "nvidia_container_toolkit": {  # its boolean is in the digest
        "command: Allow containers their devices under SELinux",
        "command: Check whether SELinux keeps containers from devices",
    },
    "nvidia_cuda": {
        "include_role: Set up NVIDIA's repository",
        "nvidia_look: Read the GPUs and their driver",
    },
    "nvidia_driver": {  # packages, built and loaded modules, boot, kernel and GPUs are in the digest
        "file: Clear the stopped mark",
        "include_role: Prepare Kubernetes on the kernel that runs now",
        "include_role: Reboot the node",
        "nvidia_build: Build and load the kernel modules",
        "nvidia_build: Load the driver that could not be replaced",
        "nvidia_look: Check whether the driver would change",
        "nvidia_look: Read the GPUs and their driver",
        "nvidia_persistence: Check the GPUs' persistence mode",  # a note
        "systemd_service: Restart what else used the driver",
    },
    "package_cache": {  # its boolean is in the digest; one finds out whether the site has an nginx
        "command: Allow nginx connections",
        "command: Check whether SELinux denies nginx connections",
        "include_role: Set up the package sources",
        "stat: Find an nginx of the site",
    },
    "packages": {
        "include_role: Set up the package sources",  # of base
    },
    "prometheus": {"command: Install Prometheus's own release"},  # its programs are in the digest
    "pyxis": {"command: Build the plugin for this host's Slurm"},  # it is in the digest
    "slurm_head": {
        "command: Create the accounting database",  # in the digest
        "command: Keep new workers drained until role verify has tested them",  # they are not in service
        "script: Check that the heads share it",
        "script: Move the state of another cluster aside",  # of the verb that adopts a head, which leaves out none
        "script: See whether this head is in control",
        "script: Write to the directory that the heads share",
        "slurm_job_container: Check whether running jobs use shared directories",  # a note
    },
    "slurm_worker": {"command: Restart Slurm's controller"},  # after a change
    "sssd": {
        "getent: Read the node's own accounts",  # filter_users has those of the inventory, too
        "command: Let Slurm's associations follow the directory",  # as its timer does; they are not in the digest
        "node_users: End what people who left have on this node",  # they can no longer log in
    },
    "users": {
        "node_users: Configure groups and users",  # in the digest
        "slurm_accounts: Add QOS, accounts, users and their limits to Slurm",  # in the digest of a head
        "script: Cancel the jobs of departed users",  # users whose jobs remain are kept, with a note
        "slurm_accounts: Remove departed users from Slurm",
        "slurm_reservations: Converge the reservations in Slurm",
    },
    "verify": {
        "command: Drain failed workers of Kubernetes and resume the others",  # a node that is out of service is played
        "command: Verify that every service is enabled and active",  # drift, and the tests of probe/state.py
        "kubernetes_proof: Verify that a pod gets its GPUs and no others, and reaches other nodes",
        "prometheus_targets: Ask Prometheus for its targets",
        "slurm_job_proof: Verify that a user's job gets its GPUs and no others",
    },
}


def tasks_of(role: Path) -> set[str]:
    """Return the tasks of a role, without those that undo it and those that change nothing by themselves."""
    keywords = {"name", "when", "vars", "register", "loop", "loop_control", "run_once", "delegate_to", "environment"}
    keywords |= {"changed_when", "failed_when", "check_mode", "block", "rescue", "always", "no_log", "until", "retries"}
    keywords |= {"delay", "args", "timeout", "become", "tags", "delegate_facts", "any_errors_fatal", "throttle"}
    found: set[str] = set()
    for file in (role / "tasks").glob("*.yml"):
        pending = [] if file.name == "remove.yml" else list(yaml.safe_load(file.read_text()) or [])
        while pending:
            task = pending.pop()
            modules = {key.rpartition(".")[2] for key in task} - keywords - NEUTRAL
            found |= {f"{module}: {task['name']}" for module in modules}
            for part in ("block", "rescue", "always"):
                pending += task.get(part, [])
    return found


@pytest.mark.proves("bootstrap", "Only roles whose whole effect is recorded or in the digest are left out.")
def test_proven__each_role__has_only_reviewed_tasks() -> None:
    roles = paths.content() / "roles"
    assert {name: found for name in effects.PROVEN if (found := tasks_of(roles / name))} == REVIEWED


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return a_directory(tmp_path, monkeypatch)


def a_site(directory: Path, **facts: Any) -> Site:
    inventory = model.load(directory / "inventory.yaml")
    site = context.load(Options("bootstrap", directory / "inventory.yaml"), inventory)
    good: dict[str, Any] = {"drift": CLEAN, "state": STATE, "records": RECORDS, "targets": UP, "state_error": ""}
    known: Any = SimpleNamespace(**(good | {"node": SimpleNamespace(roles=())} | facts))
    return replace(site, facts=dict.fromkeys((host.name for host in inventory.hosts), known))


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    found = {"gpu01", "gpu02"}
    monkeypatch.setattr(unchanged, "_in_service", lambda _site: found)
    return found


def proven(site: Site, *names: str) -> dict[str, Proof]:
    """Store proofs of these hosts, by default of the head and one of the workers."""
    now = inputs.of(site.inventory)
    assert now
    chosen = names or ("gpu01", "head1")
    found = {name: Proof(now.hosts[name], STATE, "2026-11-27 12:00 UTC") for name in chosen}
    proofs.save(site.state, found)
    return found


def decided(site: Site) -> unchanged.Decision:
    return unchanged.decide(site, inputs.of(site.inventory), unchanged.expected_roles(site))


def left_out(site: Site) -> list[str]:
    return [*decided(site).left_out]


@pytest.mark.proves("bootstrap", "Only a worker whose inputs, state, records and service are as proven is left out.")
def test_of__a_worker_as_proven__is_left_out_and_no_other(directory: Path, heard: set[str]) -> None:
    site = a_site(directory)
    assert left_out(site) == []
    proven(site)
    assert left_out(site) == ["gpu01"]  # gpu02 has no proof, and the head knows all nodes
    assert [host.name for host in unchanged.without(site, ["gpu01"]).hosts] == ["head1", "gpu02"]


@pytest.mark.proves("bootstrap", "A head is left out only together with all other nodes.")
def test_of__all_nodes_as_proven__leaves_out_the_head(directory: Path, heard: set[str]) -> None:
    proven(a_site(directory), "head1", "gpu01", "gpu02")
    assert left_out(a_site(directory)) == ["head1", "gpu01", "gpu02"]
    heard.remove("gpu02")
    assert left_out(a_site(directory)) == ["gpu01"]
    heard.add("gpu02")
    proven(a_site(directory), "gpu01", "gpu02")
    assert left_out(a_site(directory)) == ["gpu01", "gpu02"]


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (UP, ["head1", "gpu01", "gpu02"]),
        (UP | {"gpu02": False}, ["gpu01"]),
        ({"head1": True, "gpu01": True}, ["gpu01"]),
        (UP | {"head1": False}, ["gpu01", "gpu02"]),
        (UP | {"https://10.0.0.10:9443/": True}, ["head1", "gpu01", "gpu02"]),
        (UP | {"https://10.0.0.10:9443/": False}, []),  # it is unknown whose that is
        ({}, []),
        (None, []),
    ],
)
def test_of__a_node_that_prometheus_does_not_reach__is_played(
    directory: Path, heard: set[str], targets: dict[str, bool] | None, expected: list[str]
) -> None:
    proven(a_site(directory), "head1", "gpu01", "gpu02")
    assert left_out(a_site(directory, targets=targets)) == expected


CHANGES: Mapping[str, Callable[[Path, set[str]], dict[str, Any]]] = {
    "an edited file": lambda _path, _heard: {"drift": EDITED},
    "more differences than shown": lambda _path, _heard: {"drift": Drift(None, (), 1, {})},
    "no comparison": lambda _path, _heard: {"drift": None},
    "a comparison that failed": lambda _path, _heard: {"drift": Drift("no Python", (), 0, {})},
    "another state": lambda _path, _heard: {"state": OTHER},
    "no state": lambda _path, _heard: {"state": None, "state_error": "munge does not work"},
    "a changed variable": lambda path, _heard: {"_": (path / "group_vars/all.yml").write_text("cluster_timezone: UTC")},
    "a changed file": lambda path, _heard: {"_": (path / "company.pem").write_text(f"{PEM}another")},
    "a silent node": lambda _path, heard: {"_": heard.remove("gpu01") or ""},  # type: ignore[func-returns-value]
    "a silent controller": lambda _path, heard: {"_": heard.clear() or ""},  # type: ignore[func-returns-value]
    "a damaged proof": lambda path, _heard: {"_": (path / ".clusterctl/unchanged.json").write_text('{"gpu01": 3}')},
    "an unknown field": lambda path, _heard: {
        "_": (path / ".clusterctl/unchanged.json").write_text(json.dumps({"gpu01": {"inputs": "", "more": ""}}))
    },
}


ALL_HOSTS = ("head1", "gpu01", "gpu02")
REASONS: Mapping[str, dict[str, list[str]]] = {
    "an edited file": {"it differs from its records": ["head1", "gpu01"]},
    "more differences than shown": {"its files and units could not be compared with its records": ["head1", "gpu01"]},
    "no comparison": {"its files and units could not be compared with its records": ["head1", "gpu01"]},
    "a comparison that failed": {"its files and units could not be compared with its records": ["head1", "gpu01"]},
    "another state": {"its mounts or settings changed": ["head1", "gpu01"]},
    "no state": {"munge does not work": ["head1", "gpu01"]},
    "a changed variable": {"cluster_timezone changed": ["head1", "gpu01"]},
    "a changed file": {unchanged.READ: ["head1", "gpu01"]},
    "a silent node": {"it is not in service in Slurm": ["gpu01"]},
    "a silent controller": {"slurmctld does not answer, a partition is not up, or no node is in service": ["gpu01"]},
    "a damaged proof": {},
    "an unknown field": {},
}


@pytest.mark.proves("bootstrap", "A run says why a node that has a proof is played.")
@pytest.mark.parametrize("name", CHANGES)
def test_reasons__of_a_host_that_may_have_changed__name_the_first(directory: Path, heard: set[str], name: str) -> None:
    proven(a_site(directory))
    facts = {key: value for key, value in CHANGES[name](directory, heard).items() if key != "_"}
    site = a_site(directory, **facts)
    assert decided(site).reasons == REASONS[name]


SET_UP = SimpleNamespace(roles=("base", "munge"))


@pytest.mark.proves("bootstrap", "A run says why a node that was set up before has no proof, too.")
@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ("", {unchanged.UNPROVEN: ["gpu02"]}),
        ("unchanged.json", {unchanged.UNPROVEN: [*ALL_HOSTS]}),
        ("group_vars/all.yml", {unchanged.UNREAD: [*ALL_HOSTS]}),
    ],
)
def test_reasons__of_hosts_without_a_proof__say_so(
    directory: Path, heard: set[str], monkeypatch: pytest.MonkeyPatch, damage: str, expected: dict[str, list[str]]
) -> None:
    proven(a_site(directory))
    if damage == "unchanged.json":
        (directory / ".clusterctl/unchanged.json").unlink()
    elif damage:
        monkeypatch.setattr(inputs, "LIMIT", 10)
    assert decided(a_site(directory, node=SET_UP)).reasons == expected


def test_reasons__of_new_nodes__are_none(directory: Path, heard: set[str]) -> None:
    assert decided(a_site(directory)).reasons == {}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"boot"}, "it was rebooted"),
        ({"boot", "machine"}, "it was rebooted, its mounts or settings changed"),
        ({"objects of kubeadm"}, "objects of kubeadm changed"),
    ],
)
def test_reasons__of_parts_of_a_state__are_said_in_words(
    directory: Path, heard: set[str], changed: set[str], expected: str
) -> None:
    proven(a_site(directory))
    assert decided(a_site(directory, state=STATE | dict.fromkeys(changed, "c" * 64))).reasons == {
        expected: ["head1", "gpu01"]
    }


def test_reasons__after_an_update_of_clusterctl__name_it(
    directory: Path, heard: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    proven(a_site(directory))
    monkeypatch.setattr(inputs, "_of_clusterctl", lambda: "another")
    assert decided(a_site(directory)).reasons == {unchanged.PROGRAM: ["head1", "gpu01"]}
    assert left_out(a_site(directory)) == []


def test_reasons__of_what_prometheus_does_not_reach__name_it(directory: Path, heard: set[str]) -> None:
    proven(a_site(directory))
    for targets, expected in (
        (None, {"it is unknown which nodes Prometheus reaches": ["head1", "gpu01"]}),
        (UP | {"gpu01": False}, {"Prometheus does not reach it": ["gpu01"]}),
        (UP, {}),  # the head is played because gpu02 is
    ):
        site = a_site(directory, targets=targets)
        assert decided(site).reasons == expected


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_of__a_worker_that_may_have_changed__is_played(directory: Path, heard: set[str], change: Any) -> None:
    proven(a_site(directory))
    facts = {key: value for key, value in change(directory, heard).items() if key != "_"}
    assert left_out(a_site(directory, **facts)) == []


@pytest.mark.parametrize(
    ("groups", "is_possible"),
    [
        ("    gpu_metrics: {hosts: {gpu01: {}}}\n", True),
        ("    containerd: {hosts: {gpu01: {}}}\n", True),
        ("    docker: {hosts: {gpu01: {}}}\n", True),
        ("    gpu_config: {hosts: {gpu01: {}}}\n", True),
        ("    logging: {hosts: {gpu01: {}}}\n", True),
        ("    podman: {hosts: {gpu01: {}}}\n", False),
    ],
)
def test_expected_roles__with_a_role_that_is_not_proven__are_none(
    directory: Path, groups: str, is_possible: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "PROVEN", {name: why for name, why in effects.PROVEN.items() if name != "podman"})
    (directory / "inventory.yaml").write_text(INVENTORY + groups)
    site = a_site(directory)
    proven(site)
    assert {*unchanged.expected_roles(site)} == ({"gpu01", "head1"} if is_possible else {"head1"})


def test_proven__roles__are_all_of_the_bootstrap() -> None:
    roles = {role for play in bootstrap_plays.load(paths.content()) for role in play.roles}
    assert effects.PROVEN.keys() == roles - {"apply"}


def test_forget__of_a_run__deletes_the_proofs_of_its_hosts(directory: Path, heard: set[str]) -> None:
    site = a_site(directory)
    found = proven(site)
    proofs.forget(replace(site, hosts=tuple(host for host in site.hosts if host.name == "gpu02")))
    assert proofs.load(site.state) == found
    proofs.forget(site)
    assert proofs.load(site.state) == {}
    assert left_out(site) == []


def answered(state: Mapping[str, str] = STATE, records: Mapping[str, str] = RECORDS, drift: Drift = CLEAN) -> Any:
    return SimpleNamespace(facts=SimpleNamespace(state=state, records=records, drift=drift))


class Answers:
    """What the nodes answer after a run, and the run itself."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state, self.drift = STATE, CLEAN
        self.site = a_site(directory)
        self.run: Any = SimpleNamespace(
            site=self.site,
            inputs=inputs.of(self.site.inventory),
            ledger=Ledger(),
            screen=Screen(io.StringIO()),
            is_whole=True,
            head_lock=None,
        )
        self.run.ledger.hosts = {host.name: Result() for host in self.site.hosts}
        monkeypatch.setattr(secrets, "values", lambda _directory: {"record_key": "key"})
        monkeypatch.setattr(parallel, "each", lambda hosts, *_: {host.name: self.of(host.name) for host in hosts})

    def of(self, _name: str) -> Any:
        return answered(self.state, drift=self.drift)

    def proven(self) -> list[str]:
        unchanged.prove(self.run)
        return sorted(proofs.load(self.site.state))


@pytest.fixture
def answers(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Answers:
    return Answers(directory, monkeypatch)


def test_prove__of_a_run_that_changed_nothing__stores_all(answers: Answers) -> None:
    assert answers.proven() == ["gpu01", "gpu02", "head1"]


@pytest.mark.parametrize("field", ["changed", "failed", "unreachable", "behind"])
def test_prove__of_a_node_with_another_result__stores_none_of_it(answers: Answers, field: str) -> None:
    setattr(answers.run.ledger.hosts["gpu01"], field, 1)
    assert answers.proven() == ["gpu02", "head1"]


@pytest.mark.proves("bootstrap", "A node with a note about work that is left is played again.")
def test_prove__of_a_node_with_a_note__stores_it_or_none(answers: Answers) -> None:
    lasting = LOOK.left(False, ["GPU-1"], "580.1", False, False)
    answers.run.ledger.notes = {"ada stays in Slurm until her jobs have ended": ["head1"], lasting: ["gpu01"]}
    assert answers.proven() == ["gpu01", "gpu02"]
    stored = proofs.load(answers.site.state)
    assert (stored["gpu01"].notes, stored["gpu02"].notes) == ((lasting,), ())


@pytest.mark.proves("bootstrap", "After a note about kube-proxy's old addresses all nodes are played.")
def test_prove__with_a_note_about_all_nodes__stores_nothing(answers: Answers) -> None:
    answers.run.ledger.notes = {unchanged.OF_ALL: ["head1"]}
    assert answers.proven() == []
    assert unchanged.OF_ALL in (paths.content() / "plugins/modules/kubernetes_system_pods.py").read_text()


BUSY = (
    "no test job was run: no node is free: gpu01 is allocated, gpu02 is allocated",
    "MPI was not tested: no node is free: gpu01 is allocated",
    "other pods have all GPUs: the test pods requested none",
)


@pytest.mark.proves("bootstrap", "Nodes whose GPUs are all in use are left out, too.")
@pytest.mark.parametrize("note", BUSY)
def test_prove__of_a_busy_cluster__stores_all_without_that_note(answers: Answers, note: str) -> None:
    answers.run.ledger.notes = {note: ["head1"]}
    assert answers.proven() == ["gpu01", "gpu02", "head1"]
    assert proofs.load(answers.site.state)["head1"].notes == ()


@pytest.mark.parametrize("note", ["no test job was run: no small job could start on gpu01 within 20 s", "MPI failed"])
def test_prove__of_a_test_that_did_not_run_for_another_reason__stores_none_of_the_head(
    answers: Answers, note: str
) -> None:
    answers.run.ledger.notes = {note: ["head1"]}
    assert answers.proven() == ["gpu01", "gpu02"]


def test_busy__notes_of_modules__are_theirs() -> None:
    modules = paths.content() / "plugins/modules"
    jobs, pods = ((modules / f"{name}.py").read_text() for name in ("slurm_job_proof", "kubernetes_proof"))
    assert 'BusyError("no node is free: " +' in jobs and 'f"no test job was run: {busy}"' in jobs
    assert 'f"MPI was not tested: {busy}"' in jobs and f'"{BUSY[-1]}"' in pods


HEADS = KUBERNETES.replace(
    "10.0.0.10}", "10.0.0.10}, head2: {ansible_host: 10.0.0.20}, head3: {ansible_host: 10.0.0.30}"
)
TEAM = Change("ResourceQuota", "vision/clusterctl", "changed")


@pytest.mark.proves("bootstrap", "What one head changes in Kubernetes' API is no change of the others by hand.")
@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("objects of kubernetes_quota", ["gpu01", "gpu02", "head1", "head2", "head3"]),
        ("objects of kubernetes_network", ["gpu01", "gpu02"]),
    ],
)
def test_prove__of_several_heads__allows_what_one_of_them_has_changed(
    directory: Path, monkeypatch: pytest.MonkeyPatch, part: str, expected: list[str]
) -> None:
    (directory / "inventory.yaml").write_text(HEADS)
    answers = Answers(directory, monkeypatch)
    answers.run.ledger.hosts["head1"] = Result(changed=1, changes=[("kubernetes_quota", TEAM)])
    other = answered(STATE | {part: "b" * 64})
    monkeypatch.setattr(Answers, "of", lambda _, name: other if name.startswith("head") else answered())
    assert answers.proven() == expected
    pending = {name: proof.pending for name, proof in proofs.load(answers.site.state).items() if proof.pending}
    assert pending == ({"head1": ("kubernetes_quota",)} if "head1" in expected else {})


def test_lasting__notes_of_modules__are_theirs() -> None:
    proof = (paths.content() / "plugins/modules/kubernetes_proof.py").read_text()
    (alone,) = re.findall(r'"(the service was not asked from another node: [^"]*)"', proof)
    assert unchanged._role_of_note(alone) == "verify"
    text = (paths.content() / "plugins/modules/slurm_job_proof.py").read_text()
    (effect,) = re.findall(r'effect = "(homes are not shared: [^"]*)"', text)
    assert unchanged._role_of_note(f"{effect}, seen on gpu01") == "verify"
    assert unchanged._role_of_note(LOOK.DMA_BUF) == "nvidia_driver"


@pytest.mark.parametrize(
    "change",
    [
        "state",
        "none",
        "drift",
        "inputs",
        "restored",
        "created and deleted",
        "limit",
        "check",
        "aborted",
        "failed contact",
    ],
)
def test_prove__of_what_is_not_known_for_sure__stores_nothing(
    answers: Answers, directory: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    match change:
        case "state":
            answers.state = OTHER
        case "none":
            answers.run.site = a_site(directory, state=None)
        case "drift":
            answers.drift = EDITED
        case "inputs":
            (directory / "company.pem").write_text("another")
        case "restored":
            content = (directory / "company.pem").read_text()
            (directory / "company.pem").write_text("another")
            (directory / "company.pem").write_text(content)
        case "created and deleted":
            (directory / "host_vars/gpu02.yml").touch()
            (directory / "host_vars/gpu02.yml").unlink()
        case "limit":
            answers.run.site = replace(answers.site, options=replace(answers.site.options, limit="gpu01"))
        case "aborted":
            answers.run.is_whole = False
        case "check":
            answers.run.site = replace(answers.site, options=replace(answers.site.options, check=True))
        case _:
            monkeypatch.setattr(Answers, "of", lambda *_: SimpleNamespace(facts=None))
    assert answers.proven() == []


class Played:
    """A bootstrap's phase Configure on a cluster whose gpu02 was left out, with results in place of Ansible."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site = a_site(directory)
        proofs.save(self.site.state, proven(self.site, "gpu01", "gpu02", "head1"), tested=True)
        self.run = Run(unchanged.without(self.site, {"gpu02"}), Screen(io.StringIO()))
        self.run.unchanged = {"gpu02": proofs.load(self.site.state)["gpu02"]}
        self.results: dict[str, list[tuple[str, Status]]] = {"bootstrap": [], "verify": []}
        self.played: list[tuple[str, str]] = []
        monkeypatch.setattr(Run, "directory", lambda _: SimpleNamespace(log=directory / "log", path=directory))
        monkeypatch.setattr(plays, "watch", self.watch)
        monkeypatch.setattr(plays, "_record_new_gpus", lambda *_: [])

    def watch(self, run: Run, site: Site, **_: Any) -> tuple[ClusterctlError | None, None]:
        name = site.command().playbook.stem
        self.played.append((name, ",".join(host.name for host in site.hosts)))
        run.ledger.add(PlaybookStarted(()))
        for host, status in self.results[name]:
            run.ledger.add(StageResult(host, "base", "Task", "", status))
        run.ledger.ended = True
        return run.ledger.error(site.groups(), site.inventory.heads, ()), None

    def left(self) -> list[str]:
        """Run the phase; return whose proofs are left."""
        with suppress(WorkersFailed):
            bootstrap.Configure().run(self.run)
        return sorted(proofs.load(self.site.state))


@pytest.fixture
def played(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(directory, monkeypatch)


def test_configure__head_is_as_it_was__keeps_the_proofs_of_nodes_left_out(played: Played) -> None:
    played.results["bootstrap"] = [("head1", "ok"), ("gpu01", "failed")]
    assert played.left() == ["gpu02"]
    assert played.played == [("bootstrap", "head1,gpu01")]


def test_configure__a_skipped_host_of_the_logs__is_no_changed_head(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no result."""
    (directory / "inventory.yaml").write_text(INVENTORY + "    logging: {hosts: {gpu01: {}}}\n")
    played = Played(directory, monkeypatch)
    played.run.site = replace(played.run.site, skipped=("gpu01",))
    played.results["bootstrap"] = [("head1", "ok")]
    assert played.left() == ["gpu02"]


@pytest.mark.parametrize("other", ["ok", "failed"])
def test_configure__head_has_changed__tests_the_nodes_left_out(played: Played, other: Status) -> None:
    """Also if a worker failed."""
    played.results["bootstrap"] = [("head1", "changed"), ("gpu01", other)]
    played.results["verify"] = [("head1", "ok"), ("gpu02", "ok")]
    assert played.left() == ["gpu02"]
    assert played.played == [("bootstrap", "head1,gpu01"), ("verify", "head1,gpu01,gpu02")]


@pytest.mark.proves("bootstrap", "If another verb changed the head, the next bootstrap tests all nodes.")
def test_configure__head_may_have_changed_since_the_last_test__tests_the_nodes_left_out(played: Played) -> None:
    """Such as by `bootstrap --limit head1`: its test had no workers. Once is enough."""
    proofs.forget(replace(played.site, hosts=tuple(host for host in played.site.hosts if host.is_head)))
    assert not proofs.are_tested(played.site.state)
    played.results["bootstrap"] = [("head1", "ok"), ("gpu01", "ok")]
    played.results["verify"] = [("head1", "ok"), ("gpu02", "ok")]
    assert played.left() == ["gpu02"]
    assert played.played == [("bootstrap", "head1,gpu01"), ("verify", "head1,gpu01,gpu02")]
    assert proofs.are_tested(played.site.state)
    assert played.left() == ["gpu02"]
    assert played.played[2:] == [("bootstrap", "head1,gpu01")]


@pytest.mark.parametrize(
    ("option", "hosts", "tested"),
    [("", ALL_HOSTS, True), ("gpu01", ("gpu01",), True), ("head1", ("head1",), False), ("aborted", ALL_HOSTS, False)],
)
def test_configure__of_all_nodes__has_tested_them(
    played: Played, option: str, hosts: tuple[str, ...], tested: bool
) -> None:
    site = replace(played.site, hosts=tuple(host for host in played.site.hosts if host.name in hosts))
    limit = option if option in ALL_HOSTS else None
    played.run.site, played.run.unchanged = replace(site, options=replace(site.options, limit=limit)), {}
    played.run.is_whole = option != "aborted"
    played.results["bootstrap"] = [(name, "changed") for name in hosts]
    played.left()
    assert proofs.are_tested(played.site.state) is tested


def test_configure__head_has_a_new_copy_of_the_directory__tests_no_other(played: Played) -> None:
    """Each edit of the inventory changes it."""
    variables = yaml.safe_load((paths.content() / "roles/base/vars/main.yml").read_text())
    assert unchanged.COPY in str(variables)
    copy = Change("file", unchanged.COPY, "changed")
    played.run.ledger.hosts["head1"] = Result(changed=1, changes=[("base", copy)])
    played.results["bootstrap"] = [("head1", "ok"), ("gpu01", "changed")]
    assert played.left() == ["gpu02"]
    assert played.played == [("bootstrap", "head1,gpu01")]


def test_configure__node_left_out_fails_the_test__is_reported_and_has_no_proof(played: Played) -> None:
    played.results["bootstrap"] = [("head1", "changed"), ("gpu01", "ok")]
    played.results["verify"] = [("head1", "ok"), ("gpu02", "failed")]
    assert played.left() == []
    assert record._outcome(played.run, None, "")["hosts"]["gpu02"]["status"] == "failed"


@pytest.mark.parametrize("field", ["Log", "Summary"])
def test_page__of_a_run_without_a_log__names_the_summary(
    directory: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    kept = SimpleNamespace(log=directory / "ansible.log", summary=directory / "summary.json")
    kept.summary.touch()
    if field == "Log":
        kept.log.touch()
    monkeypatch.setattr(Run, "directory", lambda _: kept)
    site, text = a_site(directory), io.StringIO()
    proven(site, "head1", "gpu01", "gpu02")
    run = Run(unchanged.without(site, ALL_HOSTS), Screen(text))
    run.unchanged = proofs.load(site.state)
    record.page(run, None, "")
    assert "3 nodes, all unchanged." in text.getvalue()
    found = [line.split()[0] for line in text.getvalue().splitlines() if str(directory) in line and "." in line]
    assert field in found and len({"Log", "Summary"} & {*found}) == 1


def test_configure__with_a_note_about_all_nodes__leaves_no_proof(played: Played) -> None:
    played.run.ledger.notes = {unchanged.OF_ALL: ["head1"]}
    played.results["bootstrap"] = [("head1", "ok"), ("gpu01", "ok")]
    assert played.left() == []


def test_configure__head_fails__leaves_no_proof(played: Played) -> None:
    played.results["bootstrap"] = [("head1", "failed")]
    with pytest.raises(HeadFailed):
        played.left()
    assert proofs.load(played.site.state) == {}


@pytest.mark.parametrize("edit", ["group_vars/all.yml", "company.pem"])
def test_preflight__variables_that_were_edited_since_they_were_read__are_unknown(directory: Path, edit: str) -> None:
    """Ansible reads the new ones."""
    run = Run(a_site(directory), Screen(io.StringIO()))
    NoteInputs().run(run)
    (directory / edit).write_text("base_tools: []\n")
    now = inputs.of(run.site.inventory)
    assert now
    assert (now.variables == run.variables) == (edit == "company.pem")


def test_forget__a_file_that_cannot_be_read__replaces_it(directory: Path) -> None:
    site = a_site(directory)
    (site.state / "unchanged.json").write_text("[" * 100_000)
    proofs.forget(site)
    assert json.loads((site.state / "unchanged.json").read_text()) == {"hosts": {}, "tested": False}


OF_KUBERNETES: Mapping[str, tuple[str, set[str] | None, set[str]]] = {
    "nothing": ("{}", set(), {*ALL_HOSTS}),
    "a team": ("kubernetes_quota_teams: {vision: {}}", {"kubernetes_quota", "head_base"}, {"gpu01", "gpu02"}),
    "a user": ("users_accounts: [{name: ada, uid: 10001}]", {"head_base", "users"}, set()),
    "a label of workers": ("kubernetes_worker_labels: {x: y}", None, set()),
    "what a filter reads": ("kubernetes_gpu_time_slices: 2", None, set()),
    "what a lookup makes of the first head": ("kubernetes_node_service_domain: x.example", None, set()),
}
"""By what has changed for all nodes: the variable, the roles that are played, and the hosts that are left out."""


@pytest.mark.proves("bootstrap", "In a cluster of Kubernetes only roles that a change concerns are played.")
@pytest.mark.parametrize(("text", "roles", "hosts"), OF_KUBERNETES.values(), ids=OF_KUBERNETES)
def test_decide__of_a_cluster_of_kubernetes__plays_the_roles_that_a_change_concerns(
    directory: Path, heard: set[str], text: str, roles: set[str] | None, hosts: set[str]
) -> None:
    heard.clear()  # Slurm has no nodes here
    (directory / "inventory.yaml").write_text(KUBERNETES)
    (directory / "group_vars/all.yml").write_text("{}")
    proven(a_site(directory), *ALL_HOSTS)
    (directory / "group_vars/all.yml").write_text(text)
    decision = decided(a_site(directory))
    assert (decision.roles, {*decision.left_out}) == (None if roles is None else frozenset(roles), hosts)


def unhealthy() -> str:
    """Return what does not work by the state of this machine; empty if it has one."""
    try:
        state.state([], None, state.records())
    except UnhealthyError as error:
        return str(error)
    return ""


def test_state__of_a_link_that_leads_nowhere__is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone.so").symlink_to("nowhere")
    before = state.state([], None, state.records())
    monkeypatch.setattr(state, "_STATUS", (str(tmp_path / "*"),))
    assert state.state([], None, state.records()) not in (before, None)


def test_state__of_a_command_that_hangs__is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_SECONDS", 0.2)
    monkeypatch.setattr(state, "_TESTS", (("munge does not work", "/", "sleep 60"), ("another", "/", "true")))
    with pytest.raises(UnhealthyError, match=r"munge does not work \(no result within 0\.2 s\)"):
        state.state([], None, state.records())


@pytest.mark.parametrize(
    ("findings", "fit"), [([], True), ([{"drains": False}], True), ([{"drains": False}, {"drains": True}], False)]
)
def test_state__of_gpus__is_unknown_if_a_finding_drains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, findings: list[dict[str, bool]], fit: bool
) -> None:
    (tmp_path / "answer").write_text(json.dumps({"findings": findings}))
    monkeypatch.setattr(state, "_TESTS", (("it is unhealthy", "/", f"cat {tmp_path}/answer | {state._FIT}"),))
    assert unhealthy() == ("" if fit else "it is unhealthy")


PACKAGES = next(command for part, _, _, command in state._OUTPUTS if part == "packages")
APT = "adduser all installed\nlibc6 amd64 installed\n"


@pytest.mark.parametrize(
    ("after", "same"),
    [
        (APT, True),
        ("libc6 amd64 installed\nadduser all installed\n", True),  # rpm lists one that was upgraded in another place
        (APT + "curl amd64 installed\n", False),
        ("libc6 amd64 installed\n", False),
        (APT.replace("all installed", "all half-configured"), False),
    ],
)
def test_state__of_packages__differs_by_name_and_status(
    monkeypatch: pytest.MonkeyPatch, after: str, same: bool
) -> None:
    """Not by version: a security update is nothing that a role would change."""
    found = []
    for listed in (APT, after):
        monkeypatch.setattr(state, "_OUTPUTS", (("packages", "", "/", f"printf '{listed}'"),))
        found.append(state.state([], None, state.records()))
    assert (found[0]["packages"] == found[1]["packages"]) is same


@pytest.mark.skipif(not Path("/var/lib/dpkg/status").exists(), reason="the packages of a system with dpkg")
def test_packages__of_this_system__are_listed_without_versions() -> None:
    listed = subprocess.run(["sh", "-c", PACKAGES], check=True, capture_output=True, text=True).stdout
    assert re.search(r"(?m)^dpkg \S+ installed$", listed)
    assert {len(line.split()) for line in listed.splitlines()} == {3}


def test_mounts__of_a_table__are_those_that_are_there() -> None:
    table = (
        "# a comment\nnas:/home /home nfs defaults 0 0\nUUID=1 / ext4 defaults 0 1\nnas:/data /data nfs noauto 0 0\n"
    )
    mounted = "/dev/sda1 / ext4 rw,relatime 0 0\nnas:/home /home nfs4 ro,vers=4.2 0 0\ntmpfs /run tmpfs rw 0 0\n"
    assert state._mounts(table, mounted) == [["/", "ext4", "rw"], ["/home", "nfs4", "ro"]]


def test_output__of_a_database_of_a_head__is_in_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configuration").touch()
    found = set()
    for command in ("echo ada", "echo grace", "echo ada; false"):
        outputs = (("database", "its database does not answer", str(tmp_path / "configuration"), command),)
        monkeypatch.setattr(state, "_OUTPUTS", outputs)
        found.add(unhealthy() or state.state([], None, state.records())["database"])
    assert len(found) == 3
    assert "its database does not answer" in found
    monkeypatch.setattr(state, "_OUTPUTS", (("database", "", str(tmp_path / "none"), "false"),))
    assert state.state([], None, state.records())


@pytest.mark.parametrize(
    ("command", "fit"),
    [
        (f'echo \'{{"changes": [], "notes": []}}\' | {state._AS_SET}', True),
        (f'echo \'{{"changes": [{{"kind": "GPU 0"}}]}}\' | {state._AS_SET}', False),
        (f"false | {state._AS_SET}", False),
        ("head --bytes 1000 /dev/zero", True),
        ("head --bytes 1001 /dev/zero", False),
    ],
)
def test_state__of_settings_and_outputs__is_unknown_if_they_are_not_fit(
    monkeypatch: pytest.MonkeyPatch, command: str, fit: bool
) -> None:
    """A GPU that differs from its settings, and an output that is too large to be read."""
    monkeypatch.setattr(state, "_LARGEST", 1000)
    monkeypatch.setattr(state, "_OUTPUTS", ())
    monkeypatch.setattr(state, "_TESTS", (("it is unhealthy", "/", command),))
    assert unhealthy() == ("" if fit else "it is unhealthy")


@pytest.mark.parametrize(
    ("text", "enabled"),
    [
        ("[rhel-9-baseos-rhui-rpms]\nenabled=1\n", []),
        ("[codeready-builder-for-rhel-9-rhui-rpms]\nname=CRB\nenabled=1\n", ["codeready-builder-for-rhel-9-rhui-rpms"]),
        ("[codeready-builder-for-rhel-9-x86_64-rpms]\nenabled = 0\n[other]\nenabled = 1\n", []),
        ("[a]\n[rhui-codeready-builder-for-rhel-10-rhui-rpms]\n", ["rhui-codeready-builder-for-rhel-10-rhui-rpms"]),
        ("# codeready-builder\n[a]\nname=codeready-builder\n", []),
    ],
)  # fmt: skip
def test_state__of_repositories__has_which_of_codeready_are_enabled(text: str, enabled: list[str]) -> None:
    assert state._enabled(text) == enabled


def test_state__of_a_file_of_repositories__differs_if_one_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any file: on cloud images with RHUI it is not redhat.repo."""
    monkeypatch.setattr(state, "_REPOSITORIES", str(tmp_path / "*.repo"))
    file, found = tmp_path / "redhat-rhui.repo", []
    for number in (1, 0, 1):
        file.write_text(f"[codeready-builder-for-rhel-9-rhui-rpms]\nenabled={number}\n")
        found.append(state.state([], None, state.records()))
    assert found[0] == found[2]
    assert found[0]["machine"] != found[1]["machine"]


def test_state__of_instances_and_networks__differs_by_links_and_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, program, folder, modules = (tmp_path / name for name in ("gi-1", "bridge", "etcd", "6.12.48"))
    for name, value in (("_INSTANCES", (str(link),)), ("_NETWORK_OF_PODS", (str(program),))):
        monkeypatch.setattr(state, name, value)
    monkeypatch.setattr(state, "_ETCD", str(folder))
    monkeypatch.setattr(state, "_KERNELS", str(modules))
    (tmp_path / "cap1").touch()
    (tmp_path / "cap2").touch()
    steps: tuple[Callable[[], object], ...] = (
        lambda: link.symlink_to("cap1"),
        link.unlink,
        lambda: link.symlink_to("cap2"),
        lambda: program.write_text("a"),
        lambda: program.write_text("ab"),
        program.unlink,
        lambda: folder.mkdir(mode=0o700),
        lambda: folder.chmod(0o755),
        modules.mkdir,  # a kernel that was installed
    )
    before = state.state([], None, state.records())
    for number, step in enumerate(steps):
        step()
        now = state.state([], None, state.records())
        parts = {part for part in now if now[part] != before[part]}
        assert parts == {"devices" if number < 3 else "kernel" if number == 8 else "machine"}, number
        before = now
    program.write_text("ab")
    same = state.state([], None, state.records())
    program.write_text("cd")  # flannel's pod writes its own at each start
    assert state.state([], None, state.records()) == same


PARTS = {
    "_ACCOUNTS": "accounts",
    "_BOOT": "boot",
    "_CONTENTS": "machine",
    "_PASSWORDS": "accounts",
    "_RECORDS": "records",
    "_BUILT": "kernel",
    "_DRIVER": "devices",
    "_STATUS": "machine",
}
"""By name of the paths: the part of the state that has them."""


def test_state__of_what_roles_change__differs_in_its_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each path once, here below a folder."""
    moved: list[tuple[Path, str]] = []
    for name, part in PARTS.items():
        value = getattr(state, name)
        paths_ = [tmp_path / path.lstrip("/") for path in ([value] if isinstance(value, str) else value)]
        monkeypatch.setattr(state, name, str(paths_[0]) if isinstance(value, str) else tuple(map(str, paths_)))
        moved += [(path.parent / path.name.replace("*.json", "base.json"), part) for path in paths_]
    before = state.state([], None, state.records())
    for path, part in [*moved, *moved]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.read_text() + "a" if path.exists() else "a")
        now = state.state([], None, state.records())
        assert {key for key in now if now[key] != before[key]} == {part}, path
        before = now
    assert state.state([], None, state.records()) == before
    for other in (
        state.state([], "580.1", state.records()),
        state.state([{"uuid": "GPU-1", "mig": None}], None, state.records()),
    ):
        assert {part for part in other if other[part] != before[part]} == {"devices"}
    monkeypatch.setenv("SUDO_USER", "another")
    other = state.state([], None, state.records())
    assert {part for part in other if other[part] != before[part]} == {"login"}


OF_BASE = Drift(None, (Item("sources", "file", "/etc/apt/sources.list", "edited"),), 0, {})  # a scope of role base
OF_PODMAN = Drift(None, (Item("podman", "file", "/etc/containers/storage.conf", "edited"),), 0, {})
FEW: Mapping[str, tuple[Callable[[Path], dict[str, Any]], set[str] | None, set[str]]] = {
    "nothing": (lambda _path: {}, set(), {*ALL_HOSTS}),
    "a variable": (
        lambda path: {"_": (path / "group_vars/all.yml").write_text("cluster_timezone: UTC")},
        {"base", "filebeat", "packages"},
        set(),
    ),
    "a variable of one worker": (
        lambda path: {"_": (path / "host_vars/gpu01.yml").write_text("cluster_timezone: UTC")},
        {"base", "filebeat", "packages"},
        {"gpu02"},
    ),
    "a variable that other hosts read": (
        lambda path: {"_": (path / "host_vars/gpu01.yml").write_text("node_exporter_port: 9200")},
        {"base", "node_exporter", "packages", "prometheus"},
        {"gpu02"},
    ),
    "a variable of a role that these hosts do not have": (
        lambda path: {
            "_": (path / "group_vars/all.yml").write_text("cluster_timezone: Etc/UTC\ndocker_data_directory: /d")
        },
        {"head_base"},  # for the head's copy of the directory
        {"gpu01", "gpu02"},
    ),
    "a variable of a role that others depend on": (
        lambda path: {"_": (path / "group_vars/all.yml").write_text("slurm_head_conf_extra: {KillWait: 9}")},
        None,
        set(),
    ),
    "a variable that role verify alone reads, which is played with any": (
        lambda path: {"_": (path / "host_vars/head1.yml").write_text("verify_user: grace")},
        {"head_base"},
        {"gpu01", "gpu02"},
    ),
    "a secret": (
        lambda path: {
            "_": (path / "secrets.yml").write_text(sealed(SECRETS | {"alertmanager_slack_url": "https://x.example/"}))
        },
        {"alertmanager", "head_base"},
        {"gpu01", "gpu02"},
    ),
    "a secret that all may read": (
        lambda path: {"_": (path / "secrets.yml").write_text(sealed(SECRETS | {"record_key": "b3RoZXI="}))},
        None,
        set(),
    ),
    "a new worker": (
        lambda path: {
            "_": (path / "inventory.yaml").write_text(INVENTORY.replace("10.0.0.12}", "10.0.0.12}, gpu03: {}"))
        },
        None,
        {"gpu01", "gpu02"},
    ),
    "the hardware of a worker": (
        lambda path: {"_": (path / "hardware/gpu01.json").write_text(recorded("gpu01", 2))},
        None,
        {"gpu02"},
    ),
    "a file that no variable names": (
        lambda path: {"_": (path / "notes.md").write_text("a note")},
        {"head_base"},
        {"gpu01", "gpu02"},
    ),
    "a certificate": (lambda path: {"_": (path / "company.pem").write_text(f"{PEM}another")}, None, set()),
    "an edited file of a role": (lambda _path: {"drift": OF_BASE}, {"base"}, set()),
    "an edited file of a role that others depend on": (lambda _path: {"drift": EDITED}, None, set()),
    "an edited file of a role that is not here": (lambda _path: {"drift": OF_PODMAN}, None, set()),
    "another state": (lambda _path: {"state": OTHER}, None, set()),
}  # fmt: skip
"""By what has changed: how, the roles that are played (None for all), and the hosts that are left out."""


@pytest.mark.proves("bootstrap", "Only roles are played that read a changed variable or wrote an edited file.")
@pytest.mark.parametrize(("change", "roles", "hosts"), FEW.values(), ids=FEW)
def test_decide__after_a_change__plays_the_roles_that_it_concerns(
    directory: Path, heard: set[str], change: Callable[[Path], dict[str, Any]], roles: set[str] | None, hosts: set[str]
) -> None:
    proven(a_site(directory), *ALL_HOSTS)
    facts = {key: value for key, value in change(directory).items() if key != "_"}
    decision = decided(a_site(directory, **facts))
    assert (decision.roles, {*decision.left_out}) == (None if roles is None else frozenset(roles), hosts)
    assert (decision.reasons != {}) == (hosts != {*ALL_HOSTS})


KINDS = ("directory", "file", "package", "pending", "repository", "sysctl", "unit")
OPTIONAL = {
    "head1": ("grafana", "logging", "package_cache"),
    "gpu01": ("apptainer", "docker", "gpu_config", "gpu_metrics", "podman"),
}
OF_SLURM = {"gpu01": ("containerd", "mpi", "nvidia_container_toolkit")}


def with_all_roles(scheduler: str) -> str:
    """Return an inventory whose first worker and head have all roles that they can have."""
    text = INVENTORY if scheduler == "slurm" else KUBERNETES
    for host, groups in OPTIONAL.items():
        for group in (*groups, *(OF_SLURM.get(host, ()) if scheduler == "slurm" else ())):
            text += f"    {group}: {{hosts: {{{host}: {{}}}}}}\n"
    return text + ("    enroot: {hosts: {head1: {}, gpu01: {}, gpu02: {}}}\n" if scheduler == "slurm" else "")


def scopes(scheduler: str) -> list[tuple[str, str]]:
    """Return the hosts and the scopes of the roles that change something there, by the playbook."""
    plays, found = bootstrap_plays.load(paths.content()), []
    tree = yaml.safe_load(with_all_roles(scheduler))["all"]["children"]
    for host in OPTIONAL:
        groups = {"all", host, *(group for group, content in tree.items() if host in content["hosts"])}
        roles = {*bootstrap_plays.roles_of_host(plays, groups)} - {"verify"}
        further = [scope for scope, role in pruning.ROLE_OF.items() if role in roles]
        found += [(host, scope) for scope in sorted([*roles, *further])]
    return found


@pytest.mark.proves("bootstrap", "What was changed by hand plays the role that recorded it, and no unrelated one.")
@pytest.mark.parametrize(
    ("scheduler", "host", "scope"), [(name, *one) for name in ("slurm", "kubernetes") for one in scopes(name)]
)
def test_decide__of_each_recorded_scope__plays_its_role(
    directory: Path, heard: set[str], scheduler: str, host: str, scope: str
) -> None:
    (directory / "inventory.yaml").write_text(with_all_roles(scheduler))
    proven(a_site(directory), *ALL_HOSTS)
    role, found = pruning.ROLE_OF.get(scope, scope), set()
    for kind in KINDS:
        site = a_site(directory)
        edited = Drift(None, (Item(scope, kind, "/etc/x", "edited"),), 0, {})
        site.facts[host] = SimpleNamespace(**{**vars(site.facts[host]), "drift": edited})  # type: ignore[index]
        decision = decided(site)
        assert {*decision.left_out} == {"gpu01", "gpu02"} - {host}
        found.add(decision.roles)
    (roles,) = found
    followers = effects.FOLLOWERS.get(role, set()) if host == "gpu01" else set()
    if not {role, *followers} <= effects.SEPARATE.keys():
        assert roles is None
    elif role == "packages":  # the package may be one of another role
        assert roles is not None
        assert {role} < roles <= effects.SEPARATE.keys() | {"head_base"}
    else:
        alone = {"head_base"} if (host, role) == ("head1", "base") else {role}
        assert roles == frozenset(alone | followers)


def test_decide__with_a_host_without_a_proof__plays_all_roles(directory: Path, heard: set[str]) -> None:
    proven(a_site(directory), "head1", "gpu01")
    (directory / "group_vars/all.yml").write_text("cluster_timezone: UTC")
    assert decided(a_site(directory)).roles is None
    assert left_out(a_site(directory)) == []


@pytest.mark.proves("bootstrap", "Roles that changed a node in its last run are played once more.")
def test_decide__of_a_host_that_was_changed__plays_the_roles_that_changed_it(directory: Path, heard: set[str]) -> None:
    found = proven(a_site(directory), *ALL_HOSTS)
    changed = replace(found["gpu01"], pending=("users",), notes=("driver 1 is already installed and is not changed",))
    proofs.save(a_site(directory).state, found | {"gpu01": changed})
    decision = decided(a_site(directory))
    assert (decision.roles, [*decision.left_out]) == (frozenset({"users"}), ["gpu02"])
    assert decision.reasons == {"users changed it in the last run": ["gpu01"]}
    assert decision.notes == {"driver 1 is already installed and is not changed": ["gpu01"]}, "its role is not played"


@pytest.mark.proves("bootstrap", "Docker's group and Apptainer's proof follow changes of users and of the kernel.")
@pytest.mark.parametrize(
    ("group", "text", "roles"),
    [
        ("docker", "users_accounts: [{name: ada, uid: 10001}]", None),
        ("docker", "cluster_timezone: UTC", {"base", "filebeat", "packages"}),
        ("apptainer", "base_sysctl: {user.max_user_namespaces: 0}", {"apptainer", "base", "packages"}),
        ("mpi", "base_sysctl: {user.max_user_namespaces: 0}", {"base", "packages"}),
    ],
)
def test_decide__with_a_role_that_looks_at_a_change__plays_it_too(
    directory: Path, heard: set[str], group: str, text: str, roles: set[str] | None
) -> None:
    (directory / "inventory.yaml").write_text(INVENTORY + f"    {group}: {{hosts: {{gpu01: {{}}}}}}\n")
    proven(a_site(directory), *ALL_HOSTS)
    (directory / "group_vars/all.yml").write_text(text if "timezone" in text else f"cluster_timezone: Etc/UTC\n{text}")
    assert decided(a_site(directory)).roles == (None if roles is None else frozenset(roles))


def test_reasons__of_a_variable_without_a_reader__is_the_copy_of_the_directory(
    directory: Path, heard: set[str]
) -> None:
    proven(a_site(directory), *ALL_HOSTS)
    (directory / "group_vars/all.yml").write_text("cluster_timezone: Etc/UTC\ndocker_data_directory: /d")
    assert decided(a_site(directory)).reasons == {"its copy of the cluster's directory is not the latest": ["head1"]}


def test_reasons__of_a_part_of_a_variable__name_the_variable(directory: Path, heard: set[str]) -> None:
    proven(a_site(directory), *ALL_HOSTS)
    accounts = "users_accounts: [{name: ada, uid: 500}]"
    (directory / "group_vars/all.yml").write_text(f"cluster_timezone: Etc/UTC\n{accounts}\n")
    assert [*decided(a_site(directory)).reasons] == ["users_accounts changed"]


def test_load__of_proofs_with_other_types__is_none(directory: Path) -> None:
    site = a_site(directory)
    proven(site)
    path = site.state / "unchanged.json"
    for field in ("inputs", "state", "notes"):
        damaged = json.loads(path.read_text())
        damaged["hosts"]["gpu01"][field] = {"variables": [1], "rest": "", "copy": ""} if field == "inputs" else 1
        (site.state / "unchanged.json").write_text(json.dumps(damaged))
        assert proofs.load(site.state) == {}, field
        proven(site)


def test_notes__of_role_verify__are_not_repeated_if_it_is_played(directory: Path, heard: set[str]) -> None:
    found, note = proven(a_site(directory), *ALL_HOSTS), "homes are not shared: x"
    proofs.save(a_site(directory).state, {name: replace(one, notes=(note,)) for name, one in found.items()})
    assert decided(a_site(directory)).notes == {note: ["gpu01", "gpu02", "head1"]}
    (directory / "host_vars/gpu01.yml").write_text("cluster_timezone: UTC")
    assert decided(a_site(directory)).notes == {note: ["gpu02"]}


@pytest.mark.proves("bootstrap", "What another run changed on a node meanwhile is not proven by this one.")
@pytest.mark.parametrize(
    ("changes", "after", "scopes", "pending"),
    [
        ([("users", "task")], {"accounts"}, {"users"}, ("users",)),
        ([("base", "file"), ("users", "file")], set(), {"base", "users"}, ("base", "users")),
        ([("base", "file")], {"accounts"}, set(), None),
        ([("users", "task")], {"machine"}, set(), None),
        ([("users", "task")], {"packages"}, set(), None),
        ([("users", "task")], set(), {"podman"}, None),  # which these hosts do not have
        ([("packages", "package")], {"packages"}, {"base", "packages", "sources"}, ("base", "packages")),
        ([("users", "task")], set(), {"users", "slurm_worker"}, ("slurm_worker", "users")),
        ([("base", "package")], {"packages"}, {"base"}, ("base",)),
        ([("slurm_head", "file")], set(), {"slurm_head"}, None),
        ([], set(), {"base"}, ("base",)),
    ],
)
def test_prove__of_a_changed_node__stores_the_roles_if_they_explain_the_change(
    answers: Answers,
    monkeypatch: pytest.MonkeyPatch,
    changes: list[tuple[str, str]],
    after: set[str],
    scopes: set[str],
    pending: tuple[str, ...] | None,
) -> None:
    host = answers.run.ledger.hosts["gpu01"]
    host.changed, host.changes = len(changes), [(role, Change(kind, "x", "changed")) for role, kind in changes]
    changed = after | ({"records"} if scopes else set())
    of_gpu01 = answered(STATE | dict.fromkeys(changed, "b" * 64), RECORDS | dict.fromkeys(scopes, "b" * 64))
    monkeypatch.setattr(answers, "of", lambda name: of_gpu01 if name == "gpu01" else answered())
    answers.proven()
    stored = proofs.load(answers.site.state)
    assert (stored["gpu01"].pending if "gpu01" in stored else None) == pending
    assert stored["gpu02"].pending == ()


@pytest.mark.parametrize("is_unbroken", [True, False])
def test_prove__after_the_lock_on_the_head_was_lost__stores_nothing(answers: Answers, is_unbroken: bool) -> None:
    answers.run.head_lock = SimpleNamespace(is_unbroken=is_unbroken)
    assert answers.proven() == (["gpu01", "gpu02", "head1"] if is_unbroken else [])


def test_prove__of_a_run_in_which_clusterctl_changed__stores_nothing(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", lambda _name: "2.0")
    assert answers.proven() == []
    inputs.forget_program()


MOVED = Drift(None, (Item("base", "package", "chrony", "version 2, was 1", "1", "2"),), 0, {})


@pytest.mark.parametrize(
    ("after", "scope", "names"),
    [
        ("records", "base", {"gpu01", "gpu02"}),
        ("records", "docker", {"gpu02"}),
        ("machine", "base", {"gpu02"}),
    ],
)
def test_prove__of_a_package_that_was_updated__knows_why_the_record_differs(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, after: str, scope: str, names: set[str]
) -> None:
    facts: Any = answers.run.site.facts
    facts["gpu01"] = SimpleNamespace(**{**vars(facts["gpu01"]), "drift": MOVED})
    of_gpu01 = answered(STATE | {after: "b" * 64}, RECORDS | {scope: "b" * 64})
    monkeypatch.setattr(answers, "of", lambda name: of_gpu01 if name == "gpu01" else answered())
    assert {*answers.proven()} - {"head1"} == names
    assert all(proof.pending == () for proof in proofs.load(answers.site.state).values())


def test_configure__with_few_roles__plays_these_alone_and_tests_all(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    tags = []
    watch = played.watch

    def seen(run: Run, site: Site, **rest: Any) -> Any:
        tags.append(site.command().tags)
        return watch(run, site, **rest)

    monkeypatch.setattr(plays, "watch", seen)
    played.run.roles = frozenset({"users", "base"})
    played.results["bootstrap"] = [("head1", "changed"), ("gpu01", "ok")]
    played.results["verify"] = [("head1", "ok"), ("gpu02", "ok")]
    played.left()
    assert tags == [("facts", "base", "users", "verify"), ()]


def test_separate__roles__are_proven_and_in_the_plays() -> None:
    roles = {role for play in bootstrap_plays.load(paths.content()) for role in play.roles}
    assert effects.SEPARATE.keys() <= effects.PROVEN.keys() & roles
    assert effects.PARTS_OF.keys() | effects.FOLLOWERS.keys() <= effects.SEPARATE.keys()
    assert {*unchanged.LASTING.values()} <= roles


def test_results__of_separate_roles__are_read_by_few_others() -> None:
    """A role that reads a result has more to do if that changes."""
    content = paths.content()
    known, words = role_variables._results(content), role_variables._words_by_role(content)
    pairs = {(reader, role) for role in effects.SEPARATE for reader in effects.PROVEN if words[reader] & known[role]}
    assert {(reader, role) for reader, role in pairs if reader != role} == {
        # These include the sources.
        ("package_cache", "base"),
        ("packages", "base"),
        # These include role kubernetes_node, on nodes of Kubernetes alone.
        ("dcgm_exporter", "base"),
        ("nvidia_cuda", "base"),
        ("nvidia_driver", "base"),
        # These want to know what it has changed in the same run, and which nodes it has reached.
        ("kubernetes_head", "base"),
        ("kubernetes_node", "base"),
        ("kubernetes_worker", "base"),
    }


@pytest.mark.parametrize("role", effects.PROVEN)
def test_text__of_a_proven_role__has_all_that_it_includes(role: str) -> None:
    """No name of an included role is a template, and remove.yml, which the text leaves out, reads no variable."""
    folder = paths.content() / "roles" / role
    for task in role_variables._tasks(folder):
        assert not any("{{" in name for name in role_variables._included(task))
        files = [task[key] for key in ("ansible.builtin.include_tasks", "ansible.builtin.import_tasks") if key in task]
        assert not any("/" in file for file in files)
        if any("remove" in file for file in files):
            assert "{{" not in (folder / "tasks/remove.yml").read_text()
        assert all(re.fullmatch(r"[a-z_]+\.yml|\{\{ 'look' if \w+ else 'settle' \}\}\.yml", file) for file in files)
