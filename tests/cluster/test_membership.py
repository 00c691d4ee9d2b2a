"""A cluster's nodes come and go while jobs run: add-node, remove-node, replace-node, and what a plan says of them."""

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cluster.conftest import HERE, TestLab, clusterctl, podman
from tests.cluster.test_bootstrap import ALICE, differences
from tests.faults.injury import begin, container, ended, fails, in_service, latest_run, wait_until
from tests.labs import lab_name

# Each job says when it begins, then counts; it ends when it is told to.
JOB = r"""#!/bin/sh
echo begin >> /var/tmp/count.$SLURM_ARRAY_TASK_ID
until [ -e /tmp/enough ]; do echo x >> /var/tmp/count.$SLURM_ARRAY_TASK_ID; sleep 2; done
echo end >> /var/tmp/count.$SLURM_ARRAY_TASK_ID
"""
JOBS, AT_ONCE = 100, 50
# Fifty of them at a time on two nodes of few processors.
# A worker may say nothing for long, for tests are slow on a busy machine.
PATIENT = "slurm_head_conf_extra: {SlurmdTimeout: 3000}"
CROWDED = "slurm_head_partitions: [{name: main, default: true, options: {OverSubscribe: 'FORCE:40'}}]"
NEW_HOST_KEY = (
    "cd /etc/ssh; rm ssh_host_*; ssh-keygen -q -t ed25519 -N '' -f ssh_host_ed25519_key; systemctl restart ssh"
)
OLD = ("head1", "gpu01", "gpu02")


class Cluster(TestLab):
    """A lab of which the inventory has all workers but the last."""

    @property
    def last(self) -> str:
        return self.nodes[-1]

    @property
    def address(self) -> str:
        """The address of the last."""
        return podman("inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}",
                      container(self, self.last)).strip()  # fmt: skip

    @property
    def line(self) -> str:
        """The line of the inventory that the last one has in a lab."""
        return f"        {self.last}: {{ansible_host: {self.address}}}\n"

    def up(self, *options: str) -> None:
        """Start what is not there; the inventory stays as it is, once there is one."""
        text = self.inventory.read_text() if self.inventory.exists() else None
        super().up(*options)
        self.inventory.write_text(text or self.inventory.read_text().replace(self.line, ""))

    def inside(self, node: str, *argv: str, stdin: str = "") -> str:
        """Run a command in a node whose host key nobody believes any more."""
        command = ["podman", "exec", "--interactive", container(self, node), *argv]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=True).stdout

    def remains(self) -> Any:
        """The manifest of the last once it has left."""
        return json.loads(self.inside(self.last, "python3", "-", stdin=(HERE / "manifest.py").read_text()))

    def verb(self, name: str, *options: str, expect: int = 0) -> str:
        return fails(self, expect, *options, verb=name)

    @property
    def adding(self) -> tuple[str, ...]:
        """What add-node is given; a host key went with its node the last time."""
        return (self.last, "--address", self.address, "--yes", "--accept-new-host-keys")

    def add(self) -> str:
        return self.verb("add-node", *self.adding)

    def submit(self, script: str) -> str:
        """Submit a job that only the last can run, and return its number once it runs."""
        options = ["--parsable", f"--nodelist={self.last}", "--mem=1M", "--chdir=/", "--output=none"]
        number = self.ssh("head1", *ALICE, "sbatch", *options, stdin=f"#!/bin/sh\n{script}\n").strip()
        wait_until(lambda: "RUNNING" in states(self, number))
        return number

    def unchanged(self) -> None:
        """See that a run has nothing to do."""
        summary = self.run("bootstrap")
        assert {name: host["changed"] for name, host in summary["hosts"].items()} == dict.fromkeys(summary["hosts"], 0)


@contextmanager
def cluster(purpose: str, workers: int) -> Iterator[Cluster]:
    lab = Cluster(lab_name(purpose), workers)
    lab.down()
    lab.up()
    more = f"    # Many jobs to a processor.\n    {CROWDED}\n    {PATIENT}\n"
    lab.inventory.write_text(lab.inventory.read_text().replace("  vars:\n", f"  vars:\n{more}", 1))
    lab.run("bootstrap")
    yield lab
    lab.down()


@pytest.fixture(scope="module")
def lab() -> Iterator[Cluster]:
    with cluster("members", 3) as lab:
        yield lab


@pytest.fixture(scope="module")
def jobs(lab: Cluster) -> str:
    """Fifty jobs that run on the first two workers, and fifty that wait for them; the array's number."""
    submit = ["sbatch", "--parsable", f"--array=1-{JOBS}%{AT_ONCE}", "--mem=1M", "--chdir=/", "--output=none"]
    number = lab.ssh("head1", *ALICE, *submit, stdin=JOB).strip()
    wait_until(lambda: states(lab, number).count("RUNNING") == AT_ONCE)
    return number


def states(lab: TestLab, number: str) -> list[str]:
    argv = ["sacct", "--noheader", "--parsable2", "--allocations", "--array", f"--jobs={number}", "--format=State"]
    return lab.ssh("head1", *argv).split()


@contextmanager
def paused(lab: Cluster, node: str) -> Iterator[None]:
    """Let a node be as if it were dead."""
    podman("pause", container(lab, node))
    try:
        yield
    finally:
        podman("unpause", container(lab, node))


def accounted(lab: TestLab, number: str, nodes: Sequence[str]) -> None:
    """Every job has begun once and ended once, on these nodes and in accounting."""
    wait_until(lambda: states(lab, number).count("COMPLETED") == JOBS)
    assert states(lab, number) == ["COMPLETED"] * JOBS
    restarts = lab.ssh("head1", "sacct", "--noheader", "--parsable2", "--allocations", "--array", f"--jobs={number}",
                       "--format=Restarts").split()  # fmt: skip
    assert restarts == ["0"] * JOBS
    counts = "".join(lab.root(node, "cat /var/tmp/count.*") for node in nodes)
    assert (counts.count("begin"), counts.count("end")) == (JOBS, JOBS)


def connections(lab: Cluster, node: str) -> int:
    """How many logins a node's sshd has seen, ours for asking this one included."""
    return int(lab.root(node, "journalctl --quiet --unit ssh --grep 'Accepted publickey' --output cat | wc -l"))


def test_a_plan_of_a_new_node_changes_nothing(lab: Cluster, jobs: str) -> None:
    before, text = lab.manifests(), lab.inventory.read_text()
    files = sorted(lab.inventory.parent.glob("h*/*"))
    done = clusterctl("plan", "add-node", str(lab.inventory), "gpu03", "--address", lab.address)
    assert done.returncode == 10, done.stdout + done.stderr
    for told in ("package slurmd: installed  gpu03", "/etc/slurm/slurm.conf: content  head1", "no running job"):
        assert told in done.stdout
    assert (lab.inventory.read_text(), sorted(lab.inventory.parent.glob("h*/*"))) == (text, files)
    assert differences(before, lab.manifests()) == []


def grows(lab: Cluster) -> None:
    """Add the last worker; no other is contacted or changed, and what runs there goes on."""
    others = lab.nodes[1:-1]
    before = lab.manifests(*others)
    steps = {node: lab.root(node, "pgrep slurmstepd | sort") for node in others}
    logins = {node: connections(lab, node) for node in others}
    text = lab.inventory.read_text()
    said = lab.add()
    assert {node: connections(lab, node) - 1 for node in others} == logins
    assert f"+{lab.line}" in said
    assert lab.inventory.read_text().replace(lab.line, "") == text
    after = lab.manifests(*others)
    # slurmd has started itself anew, as Slurm lets it on a new configuration.
    changed = [line for line in differences(before, after) if "/daemons/slurmd.service/" not in line]
    assert changed == []
    assert all(steps.values())
    assert {node: lab.root(node, "pgrep slurmstepd | sort") for node in others} == steps
    assert in_service(lab)[lab.last] in ("idle", "mixed", "allocated")
    lab.unchanged()


def test_a_node_is_added_and_nobody_else_is_contacted(lab: Cluster, jobs: str) -> None:
    grows(lab)


def test_a_reinstalled_node_is_taken_in_under_its_name(lab: Cluster, jobs: str) -> None:
    podman("rm", "--force", "--volumes", "--time", "0", container(lab, "gpu03"))
    lab.up()
    lab.root("gpu03", NEW_HOST_KEY)
    record = lab.inventory.parent / "hardware/gpu03.json"
    record.write_text(record.read_text().replace('"memory_mb": ', '"memory_mb": 9', 1))  # what the old hardware had
    assert "clusterctl trust" in lab.verb("bootstrap", expect=3)
    said = lab.verb("replace-node", "gpu03", "--accept-new-host-keys")
    assert "new hardware: gpu03: memory: recorded 9" in said
    assert in_service(lab)["gpu03"] in ("idle", "mixed", "allocated")


def test_a_node_with_jobs_is_not_removed_before_they_end(lab: Cluster, jobs: str) -> None:
    """Nor does it matter that another worker is dead."""
    number = lab.submit("until [ -e /tmp/go ]; do sleep 1; done")
    text = lab.inventory.read_text()
    with paused(lab, "gpu02"):
        said = lab.verb("remove-node", "gpu03", "--timeout", "0.05", "--yes", expect=4)
        assert f"job {number} of alice" in said
        assert "nothing was removed" in said
        assert lab.inventory.read_text() == text
        assert in_service(lab)["gpu03"] == "draining"
        planned = clusterctl("plan", "remove-node", str(lab.inventory), "gpu03")
        assert planned.returncode == 10, planned.stdout + planned.stderr
        assert f"would be waited for: job {number} of alice" in planned.stdout
        lab.root("gpu03", "touch /tmp/go")
        lab.verb("remove-node", "gpu03", "--yes")
        assert states(lab, number) == ["COMPLETED"]
        assert sorted(in_service(lab)) == ["gpu01", "gpu02"]
    assert "gpu03" not in lab.inventory.read_text()
    assert lab.root("head1", "slurm-drain").strip() == "{}"
    assert not list(lab.inventory.parent.glob("hardware/gpu03*"))


def test_a_removed_node_keeps_nothing_of_the_cluster(lab: Cluster) -> None:
    """What came first goes last."""
    events = map(json.loads, (latest_run(lab) / "events.jsonl").read_text().splitlines())
    tasks = [event["task"] for event in events if event["event"] == "result" and event["host"] == "gpu03"]
    parts = ["the node exporter", "Slurm's worker", "munge", "keys and sudo", "the base of the node", "the packages"]
    assert [task for task in tasks if task.removeprefix("Take back ") in parts] == [f"Take back {one}" for one in parts]
    left = lab.remains()
    key = lab.manifest("head1")["files"]["/etc/munge/munge.key"][3]
    assert key not in [what for *_, what in left["files"].values()]
    assert not [path for path in left["files"] if path.startswith("/var/lib/clusterctl")]
    assert not [line for line in left["packages"] if line.split()[0] in ("slurmd", "munge") and line.endswith("ii ")]
    listening = lab.inside("gpu03", "ss", "--no-header", "--listening", "--tcp", "--numeric", "--processes")
    assert not [name for name in ("slurmd", "node_exporter", "prometheus") if name in listening]


def pasted(lab: Cluster, verb: str, *options: str) -> None:
    """Run the command that a verb prints, in a shell."""
    printed = clusterctl(verb, str(lab.inventory), *options, "--print-command")
    assert printed.returncode == 0, printed.stderr
    done = subprocess.run(["bash", "-c", printed.stdout], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_dead_worker_holds_up_no_other(lab: Cluster, jobs: str) -> None:
    """The node is added as one can by hand: written into the inventory, met, and the printed command."""
    text = lab.inventory.read_text()
    lab.inventory.write_text(text.replace("    monitoring:", f"{lab.line}    monitoring:", 1))
    with paused(lab, "gpu02"):
        done = clusterctl("validate", "--online", str(lab.inventory), "--limit", "gpu03", "--accept-new-host-keys")
        assert done.returncode == 0, done.stdout + done.stderr
        pasted(lab, "add-node", "gpu03")
        assert in_service(lab)["gpu03"] == "idle"


def test_a_dead_worker_is_removed_from_the_head_alone(lab: Cluster, jobs: str) -> None:
    assert "it answers" in lab.verb("remove-node", "gpu03", "--dead", "--yes", expect=3)
    podman("stop", "--time", "0", container(lab, "gpu03"))
    assert "--dead" in lab.verb("remove-node", "gpu03", "--yes", expect=3)
    said = lab.verb("remove-node", "gpu03", "--dead", "--yes")
    assert "munge key" in said
    assert sorted(in_service(lab)) == ["gpu01", "gpu02"]


def dies(lab: Cluster, sign: str, verb: str, *options: str) -> str:
    """Kill the last worker when a sign is in the events of a run of this verb, and start it again; what it said."""
    run = begin(lab, verb, *options)
    log = latest_run(lab) / "events.jsonl"
    wait_until(lambda: sign in log.read_text() or run.poll() is not None)
    podman("kill", container(lab, lab.last))
    said = ended(run, 4)
    assert lab.last in said
    lab.up()
    return said


@pytest.mark.long
@pytest.mark.parametrize("role", ["packages", "slurm_worker", "verify"])
def test_a_node_that_dies_while_it_is_added_is_added_by_the_same_command(lab: Cluster, jobs: str, role: str) -> None:
    lab.up()
    dies(lab, f'"host": "gpu03", "role": "{role}"', "add-node", *lab.adding)
    assert in_service(lab).get("gpu03", "down") not in ("idle", "mixed", "allocated")
    lab.add()
    assert in_service(lab)["gpu03"] in ("idle", "mixed", "allocated")
    lab.unchanged()
    lab.verb("remove-node", "gpu03", "--yes")


@pytest.mark.long
def test_a_node_that_dies_while_it_is_replaced_is_replaced_by_the_same_command(lab: Cluster, jobs: str) -> None:
    lab.add()
    podman("rm", "--force", "--volumes", "--time", "0", container(lab, "gpu03"))
    lab.up()
    lab.root("gpu03", NEW_HOST_KEY)
    dies(lab, '"host": "gpu03", "role": "slurm_worker"', "replace-node", "gpu03", "--accept-new-host-keys")
    assert in_service(lab)["gpu03"] not in ("idle", "mixed", "allocated")
    lab.verb("replace-node", "gpu03")
    assert in_service(lab)["gpu03"] in ("idle", "mixed", "allocated")
    lab.unchanged()
    lab.verb("remove-node", "gpu03", "--yes")


@pytest.mark.long
def test_a_node_that_dies_while_it_is_cleaned_is_cleaned_by_the_same_command(lab: Cluster, jobs: str) -> None:
    """Its jobs are not waited for, but killed, as was asked."""
    lab.add()
    number = lab.submit("sleep 3000")
    dies(lab, '"task": "Take back munge"', "remove-node", "gpu03", "--force", "--yes")
    assert states(lab, number)[0].startswith("CANCELLED")
    assert "gpu03" not in lab.inventory.read_text()
    told = lab.run("status", expect=4)["leaving"]
    assert told == {"gpu03": f"clusterctl remove-node {lab.inventory} gpu03"}
    lab.verb("remove-node", "gpu03")
    assert lab.run("status")["leaving"] == {}
    assert not [path for path in lab.remains()["files"] if path.startswith("/var/lib/clusterctl")]


@pytest.mark.long
def test_a_twelfth_worker_is_added_as_a_third_is() -> None:
    """What it costs is `scripts/bench grow`."""
    with cluster("twelve", 12) as lab:
        argv = ["sbatch", "--parsable", "--nodes=11", "--ntasks-per-node=1", "--mem=1M", "--chdir=/", "--output=none"]
        number = lab.ssh("head1", *ALICE, *argv, stdin="#!/bin/sh\nsrun sleep 30000\n").strip()
        wait_until(lambda: all(lab.root(node, "pgrep slurmstepd || true") for node in lab.nodes[1:-1]))
        grows(lab)
        assert states(lab, number) == ["RUNNING"]


# Five changes: a line of the inventory and what takes its place, or what is done on a node.
CHANGES: dict[str, Any] = {
    "time zone": ("cluster_name: ", "cluster_timezone: Asia/Tokyo\n    cluster_name: "),
    "a user": ("- {name: alice,", "- {name: bob, uid: 5002}\n      - {name: alice,"),
    "Slurm's configuration": ("SlurmdTimeout: 3000", "SlurmdTimeout: 3000, MaxJobCount: 9999"),
    "metrics' interval": ("cluster_name: ", "slurm_exporter_interval: 20\n    cluster_name: "),
    "by hand": {"gpu01": "echo >> /etc/chrony/chrony.conf; systemctl disable --quiet munge",
                "gpu02": "apt-get -qq remove -y prometheus-node-exporter; chmod 0600 /etc/hosts"},
}  # fmt: skip
# Our own records; what enables a unit; what a package brings and takes with it.
CARRIED = "/var/lib/clusterctl/(state|original|drain)|/etc/systemd/system/.*[.]wants|/etc/(init|rc.)[.]d/"
# What the manifest looks at.
(_trees,) = re.findall(r"^TREES = (\[.*\])$", (HERE / "manifest.py").read_text(), re.MULTILINE)
SEEN = tuple(f"{tree}/" for tree in json.loads(_trees))
ACCOUNTS = {f"/etc/{name}" for name in ("passwd", "group", "shadow", "gshadow", "subuid", "subgid")}


def planned(lab: Cluster) -> set[tuple[str, str, str]]:
    """Node, kind and name of all that a plan lists; what is a command or a task shows by its effects."""
    done = clusterctl("plan", "bootstrap", str(lab.inventory), "--output", "json")
    assert done.returncode == 10, done.stdout + done.stderr
    kinds = {"file": "path", "directory": "path", "user": "account", "group": "account"}
    found = {
        (host, kinds.get(change["kind"], change["kind"]), change["name"])
        for change in json.loads(done.stdout)["changes"]
        if change["kind"] not in ("command", "task")
        for host in change["hosts"]
    }
    return {(host, kind, name) for host, kind, name in found if kind != "path" or name.startswith(SEEN)}


def accounts(manifest: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What is said of each user and group; that a user is in a group is said of the user."""
    for line in manifest["users"]:
        name, *rest = line.split(":")
        if len(rest) == 3:
            yield name, rest[1]
            yield from ((member, name) for member in rest[2].split(",") if member)
        else:
            yield name, line


def actual(before: dict[str, Any], after: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Kind and name of all that differs between two manifests of a node."""
    for kind in ("packages", "units"):
        for line in {*before[kind]} ^ {*after[kind]}:
            yield {"packages": "package", "units": "unit"}[kind], re.split("[ ]", line)[0]
    for name, _ in {*accounts(before)} ^ {*accounts(after)}:
        yield "account", name
    for path in before["files"].keys() | after["files"].keys():
        if before["files"].get(path) == after["files"].get(path) or path.removesuffix("-") in ACCOUNTS:
            continue
        if path.startswith("/home/"):
            yield "account", path.split("/")[2]
        elif not re.match(CARRIED, path):
            yield "path", path
    for unit in before["daemons"].keys() | after["daemons"].keys():
        if before["daemons"].get(unit) != after["daemons"].get(unit):
            yield "unit", unit


@pytest.mark.parametrize("what", CHANGES)
def test_a_run_changes_what_the_plan_has_listed(lab: Cluster, jobs: str, what: str) -> None:
    text, change = lab.inventory.read_text(), CHANGES[what]
    if isinstance(change, dict):
        for node, script in change.items():
            lab.root(node, script)
    else:
        old, new = change
        assert old in text
        lab.inventory.write_text(text.replace(old, new, 1))
    if what == "Slurm's configuration":  # and something else for which slurmctld is started anew
        lab.root("head1", "echo >> /etc/systemd/system/slurmctld.service.d/clusterctl.conf")
    before = lab.manifests(*OLD)
    plan = planned(lab)
    if what == "by hand":  # it has most kinds of item
        assert differences(before, lab.manifests(*OLD)) == []
    lab.run("bootstrap")
    after = lab.manifests(*OLD)
    done = {(node, *item) for node in OLD for item in actual(before[node], after[node])}
    if ("head1", "unit", "slurmctld.service") in plan:  # the plan says this in words
        done -= {(node, "unit", "slurmd.service") for node in OLD}
    # A unit that reads its configuration again has the same process.
    assert done <= plan
    assert {item for item in plan - done if item[1] != "unit"} == set()
    if what == "Slurm's configuration":
        for node in OLD[1:]:
            assert "MaxJobCount=9999" in lab.root(node, "cat /var/lib/slurm/slurmd/conf-cache/slurm.conf")


def test_the_jobs_never_noticed(lab: Cluster, jobs: str) -> None:
    """Beside all that was before they outlive slurmctld's sudden end, and a minute without the database."""
    assert "9999" in lab.ssh("head1", "scontrol", "show", "config")
    lab.root("head1", "systemctl kill --signal KILL slurmctld; systemctl stop mariadb")
    lab.root("head1", "sleep 60; systemctl start mariadb")
    lab.run("bootstrap")
    for node in OLD[1:]:
        lab.root(node, "touch /tmp/enough")
    accounted(lab, jobs, OLD[1:])
