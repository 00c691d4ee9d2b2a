"""A cluster's nodes come and go while jobs run: add-node, remove-node, replace-node, and what a plan says of them.

The jobs go on in test_upgrade.py, which has the same lab after this and accounts for each of them.
"""

import json

import pytest

from tests.cluster.lab import ALICE, CALL_LIMIT, clusterctl, podman, submit
from tests.cluster.members import RACK, RACKS, Growing, go_on, growing, of_jobs, states
from tests.cluster.test_plan import done_as_planned, edit, planned
from tests.faults.injury import begin, container, ended, in_service, latest_run, silent, wait_until
from tests.manifests import differences
from tests.programs import output_of

NEW_HOST_KEY = (
    "cd /etc/ssh; rm ssh_host_*; ssh-keygen -q -t ed25519 -N '' -f ssh_host_ed25519_key; systemctl restart ssh"
)


@pytest.fixture(scope="module")
def lab(members: Growing) -> Growing:
    return members


def connections(lab: Growing, node: str) -> int:
    """How many logins a node's sshd has seen, ours for asking this one included."""
    return int(lab.root(node, "journalctl --quiet --unit ssh --grep 'Accepted publickey' --output cat | wc -l"))


@pytest.mark.proves("bootstrap", "While a hundred jobs run and wait, a second run changes nothing.")
def test_a_second_bootstrap_changes_nothing(lab: Growing, jobs: str) -> None:
    lab.unchanged()


def features(lab: Growing) -> dict[str, str]:
    """What Slurm's controller has as the features of each node."""
    rows = lab.ssh("head1", "sinfo", "--noheader", "--Node", "--format='%N %b'").splitlines()
    return dict(row.split(maxsplit=1) for row in rows)


@pytest.mark.proves("jobs", "A group below the workers is a feature; a job asks for it with `--constraint`.")
def test_constraint__a_group_of_workers__runs_there_alone(lab: Growing, jobs: str) -> None:
    assert f" Feature={RACK}" in lab.root("head1", "grep ^NodeName=gpu02 /etc/slurm/slurm.conf")
    assert features(lab) == {"gpu01": "(null)", "gpu02": RACK}
    number = submit(lab, "true", f"--constraint={RACK}")
    wait_until(lambda: states(lab, number) == ["COMPLETED"])
    assert of_jobs(lab, number, "NodeList") == ["gpu02"]
    wish = " ".join((*ALICE, "sbatch", "--mem=1M", "--chdir=/", "--output=none", "--wrap=true"))
    for more, answer in (
        (f"--constraint={RACK} --nodes=2", "Requested node configuration is not available"),
        ("--constraint=rack9", "Invalid feature specification"),
    ):
        assert answer in lab.ssh("head1", f"{wish} {more} 2>&1 || true")


@pytest.mark.proves("plan", "`plan add-node` lists packages and files and changes no node and no record.")
def test_a_plan_of_a_new_node_changes_nothing(lab: Growing, jobs: str) -> None:
    everywhere = (*lab.nodes, lab.last)
    before, text = lab.manifests(*everywhere), lab.inventory.read_text()
    files = sorted(lab.inventory.parent.glob("h*/*"))
    done = clusterctl("plan", "add-node", str(lab.inventory), "gpu03", "--address", lab.address)
    assert done.returncode == 10, done.stdout + done.stderr
    for told in ("package slurmd: installed, held  gpu03", "/etc/slurm/slurm.conf: content  head1", "no running job"):
        assert told in done.stdout
    assert (lab.inventory.read_text(), sorted(lab.inventory.parent.glob("h*/*"))) == (text, files)
    assert differences(before, lab.manifests(*everywhere)) == []


def drains(lab: Growing) -> int:
    """How often Slurm was told to give the last no job before it is proven, as its controller's log has it."""
    line = f"node {lab.last} reason set to: clusterctl: bootstrap: not proven yet"
    return int(lab.root("head1", f"grep -c '{line}' /var/log/slurm/slurmctld.log || [ $? = 1 ]"))


def grows(lab: Growing, group: str = "") -> None:
    """Add the last worker, to a group below the workers if one is named.

    No other is contacted or changed, and what runs there goes on.
    """
    others = lab.nodes[1:]
    before = lab.manifests(*others)
    steps = {node: lab.root(node, "pgrep slurmstepd | sort") for node in others}
    logins = {node: connections(lab, node) for node in others}
    text, drained = lab.inventory.read_text(), drains(lab)
    said = lab.add(*(("--group", group) if group else ()))
    line = f"    {lab.line}" if group else lab.line  # the group's hosts are further in
    assert drains(lab) == drained + 1, "it was drained until it was proven"
    assert {node: connections(lab, node) - 1 for node in others} == logins
    assert f"+{line}" in said
    before_it, _, behind_it = lab.inventory.read_text().partition(line)
    assert before_it + behind_it == text
    assert not group or before_it.endswith(f"        {group}:\n          hosts:\n            gpu02: {{}}\n")
    after = lab.manifests(*others)
    # slurmd has started itself anew, as Slurm lets it on a new configuration.
    changed = [line for line in differences(before, after) if "/daemons/slurmd.service/" not in line]
    assert changed == []
    assert all(steps.values())
    assert {node: lab.root(node, "pgrep slurmstepd | sort") for node in others} == steps
    assert json.loads(lab.root("head1", "slurm-drain")) == {}
    assert in_service(lab)[lab.last] in ("idle", "mixed", "allocated")
    lab.unchanged()


@pytest.mark.proves("add-node", "Adding a node causes no SSH login on other workers.")
@pytest.mark.proves("add-node", "Adding a node changes nothing on other workers except that slurmd restarts itself.")
@pytest.mark.proves("add-node", "Job processes on other workers continue while a node is added.")
@pytest.mark.proves("add-node", "A bootstrap after add-node changes nothing.")
@pytest.mark.proves("add-node", "`--group` adds a node to a group below the workers, in inventory and Slurm.")
def test_a_node_is_added_and_nobody_else_is_contacted(lab: Growing, jobs: str) -> None:
    grows(lab, RACK)
    assert features(lab) == {"gpu01": "(null)", "gpu02": RACK, lab.last: RACK}


def reinstall(lab: Growing) -> None:
    """Let the last be an empty node with another host key."""
    podman("rm", "--force", "--volumes", "--time", "0", container(lab, lab.last))
    lab.up()
    lab.root(lab.last, NEW_HOST_KEY)


@pytest.mark.proves("replace-node", "Reinstalled, changed hardware is added under its old name.")
@pytest.mark.proves("trust", "Bootstrap refuses a reinstalled node's new host key.")
def test_a_reinstalled_node_is_taken_in_under_its_name(lab: Growing, jobs: str) -> None:
    reinstall(lab)
    record = lab.inventory.parent / "hardware/gpu03.json"
    record.write_text(record.read_text().replace('"memory_mb": ', '"memory_mb": 9', 1))  # what the old hardware had
    assert "clusterctl trust" in lab.verb("bootstrap", expect=3)
    drained = drains(lab)
    said = lab.verb("replace-node", "gpu03", "--accept-new-host-keys")
    assert "new hardware: gpu03: memory: recorded 9" in said
    assert drains(lab) == drained + 1, "it was drained until it was proven"
    assert in_service(lab)["gpu03"] in ("idle", "mixed", "allocated")


def occupied(lab: Growing, script: str) -> str:
    """Submit a job that only the last can run, and return its number once it runs."""
    number = submit(lab, script, f"--nodelist={lab.last}")
    wait_until(lambda: "RUNNING" in states(lab, number))
    return number


@pytest.mark.proves("remove-node", "remove-node waits for jobs; at the time limit it removes nothing, exit 4.")
@pytest.mark.proves("remove-node", "A node is removed after its job completes, though another worker is dead.")
@pytest.mark.proves("plan", "`plan remove-node` lists the jobs that would be waited for.")
def test_a_node_with_jobs_is_not_removed_before_they_end(lab: Growing, jobs: str) -> None:
    """Nor does it matter that another worker is dead."""
    number = occupied(lab, "until [ -e /var/tmp/go ]; do sleep 1; done")
    text = lab.inventory.read_text()
    with silent(lab, "gpu02"):
        said = lab.verb("remove-node", "gpu03", "--timeout", "0.05", "--yes", expect=4)
        assert f"job {number} of alice" in said
        assert "nothing else was changed" in said
        assert lab.inventory.read_text() == text
        assert in_service(lab)["gpu03"] == "draining"
        plan = clusterctl("plan", "remove-node", str(lab.inventory), "gpu03")
        assert plan.returncode == 10, plan.stdout + plan.stderr
        assert f"to wait for: job {number} of alice" in plan.stdout
        lab.root("gpu03", "touch /var/tmp/go")
        lab.verb("remove-node", "gpu03", "--yes")
        assert states(lab, number) == ["COMPLETED"]
        assert sorted(in_service(lab)) == ["gpu01", "gpu02"]
    assert "gpu03" not in lab.inventory.read_text()
    assert lab.root("head1", "slurm-drain").strip() == "{}"
    assert not list(lab.inventory.parent.glob("hardware/gpu03*"))


@pytest.mark.proves("remove-node", "A removed node keeps no munge key, no slurmd and no clusterctl state.")
@pytest.mark.proves("remove-node", "The roles of a removed node are undone in reverse order.")
@pytest.mark.proves("remove-node", "On a removed node no slurmd, node exporter or Prometheus listens.")
def test_a_removed_node_keeps_nothing_of_the_cluster(lab: Growing) -> None:
    """What came first goes last."""
    events = map(json.loads, (latest_run(lab) / "events.jsonl").read_text().splitlines())
    tasks = [event["task"] for event in events if event["event"] == "result" and event["host"] == "gpu03"]
    parts = ["the node exporter", "Slurm's worker", "munge", "keys and sudo", "the base of the node", "the packages"]
    assert [task for task in tasks if task.removeprefix("Remove ") in parts] == [f"Remove {one}" for one in parts]
    left = lab.remains()
    key = lab.manifest("head1")["files"]["/etc/munge/munge.key"][3]
    assert key not in [what for *_, what in left["files"].values()]
    assert not [path for path in left["files"] if path.startswith("/var/lib/clusterctl")]
    assert not [line for line in left["packages"] if line.split()[0] in ("slurmd", "munge") and line.endswith("ii ")]
    listening = lab.inside("gpu03", "ss", "--no-header", "--listening", "--tcp", "--numeric", "--processes")
    assert not [name for name in ("slurmd", "node_exporter", "prometheus") if name in listening]


def pasted(lab: Growing, verb: str, *options: str) -> None:
    """Run the command that a verb prints, in a shell."""
    printed = clusterctl(verb, str(lab.inventory), *options, "--print-command")
    assert printed.returncode == 0, printed.stderr
    output_of(["bash", "-c", printed.stdout], CALL_LIMIT)


@pytest.mark.proves("add-node", "A dead worker does not block adding another.")
@pytest.mark.proves("print-command", "The command that `add-node` prints adds the node.")
def test_a_dead_worker_holds_up_no_other(lab: Growing, jobs: str) -> None:
    """The node is added as one can by hand: written into the inventory, met, and the printed command."""
    text = lab.inventory.read_text()
    assert RACKS in text
    lab.inventory.write_text(text.replace(RACKS, lab.line + RACKS))
    with silent(lab, "gpu02"):
        done = clusterctl("discover", str(lab.inventory), "--limit", "gpu03", "--accept-new-host-keys")
        assert done.returncode == 0, done.stdout + done.stderr
        pasted(lab, "add-node", "gpu03")
        assert in_service(lab)["gpu03"] == "idle"
        # Slurm's controller has started itself anew and heard nothing of the dead one, whose jobs it knows of.
        assert json.loads(lab.root("head1", "slurm-drain")) == {}


@pytest.mark.proves("remove-node", "`--dead` removes a stopped worker and refuses one that responds.")
def test_a_dead_worker_is_removed_from_the_head_alone(lab: Growing, jobs: str) -> None:
    assert "it responds to SSH and to Slurm" in lab.verb("remove-node", "gpu03", "--dead", "--yes", expect=3)
    podman("stop", "--time", "0", container(lab, "gpu03"))
    assert "--dead" in lab.verb("remove-node", "gpu03", "--yes", expect=3)
    said = lab.verb("remove-node", "gpu03", "--dead", "--yes")
    assert "munge key" in said
    assert sorted(in_service(lab)) == ["gpu01", "gpu02"]


@pytest.mark.proves("jobs", "Running jobs survive a change of Slurm's configuration.")
@pytest.mark.proves("plan", "A changed Slurm option is applied as planned and reaches every worker.")
def test_jobs_outlive_a_change_of_slurms_configuration_as_planned(lab: Growing, jobs: str) -> None:
    """Beside a change for which slurmctld is started anew, so that workers learn of neither by a reload alone."""
    edit(lab, "SlurmdTimeout: 3000", "SlurmdTimeout: 3000, MaxJobCount: 9999")
    lab.root("head1", "echo >> /etc/systemd/system/slurmctld.service.d/clusterctl.conf")
    before = lab.manifests()
    plan = planned(lab)
    assert ("head1", "unit", "slurmctld.service") in plan
    done_as_planned(lab, plan, before, frozenset((node, "unit", "slurmd.service") for node in lab.nodes))
    assert "9999" in lab.ssh("head1", "scontrol", "show", "config")
    for node in lab.nodes[1:]:
        assert "MaxJobCount=9999" in lab.root(node, "cat /var/lib/slurm/slurmd/conf-cache/slurm.conf")
    go_on(lab, jobs)


def dies(lab: Growing, sign: str, verb: str, *options: str) -> str:
    """Kill the last worker when a sign is in the events of a run of this verb, and start it again; what it said."""
    run = begin(lab, verb, *options)
    log = latest_run(lab) / "events.jsonl"
    wait_until(lambda: sign in log.read_text() or run.poll() is not None)
    podman("kill", container(lab, lab.last))
    said = ended(run, 4)
    assert lab.last in said
    lab.up()
    return said


@pytest.mark.proves("add-node", "A node that dies while added gets no jobs; the same command continues.")
@pytest.mark.long
@pytest.mark.parametrize("role", ["packages", "slurm_worker", "verify"])
def test_a_node_that_dies_while_it_is_added_is_added_by_the_same_command(lab: Growing, jobs: str, role: str) -> None:
    lab.up()
    dies(lab, f'"host": "gpu03", "role": "{role}"', "add-node", *lab.adding)
    assert in_service(lab).get("gpu03", "down") not in ("idle", "mixed", "allocated")
    lab.add()
    assert in_service(lab)["gpu03"] in ("idle", "mixed", "allocated")
    lab.unchanged()
    lab.verb("remove-node", "gpu03", "--yes")


@pytest.mark.proves("replace-node", "A node that dies while replaced gets no jobs; the same command continues.")
@pytest.mark.long
def test_a_node_that_dies_while_it_is_replaced_is_replaced_by_the_same_command(lab: Growing, jobs: str) -> None:
    lab.add()
    reinstall(lab)
    dies(lab, '"host": "gpu03", "role": "slurm_worker"', "replace-node", "gpu03", "--accept-new-host-keys")
    assert in_service(lab)["gpu03"] not in ("idle", "mixed", "allocated")
    lab.verb("replace-node", "gpu03", "--accept-new-host-keys")  # a lab's node that starts again has the lab's key
    assert in_service(lab)["gpu03"] in ("idle", "mixed", "allocated")
    lab.unchanged()
    lab.verb("remove-node", "gpu03", "--yes")


@pytest.mark.proves("remove-node", "A node that dies while cleaned is cleaned by the same command.")
@pytest.mark.proves("remove-node", "`remove-node --force` ends the node's jobs.")
@pytest.mark.proves("status", "`status` shows an unfinished removal and the command that continues it.")
@pytest.mark.long
def test_a_node_that_dies_while_it_is_cleaned_is_cleaned_by_the_same_command(lab: Growing, jobs: str) -> None:
    """Its jobs are not waited for, but killed, as was asked."""
    lab.add()
    number = occupied(lab, "sleep 3000")
    dies(lab, '"task": "Remove munge"', "remove-node", "gpu03", "--force", "--yes")
    assert states(lab, number)[0].startswith("CANCELLED")
    assert "gpu03" not in lab.inventory.read_text()
    told = lab.run("status", expect=4)["leaving"]
    assert told == {"gpu03": f"clusterctl remove-node {lab.inventory} gpu03"}
    lab.verb("remove-node", "gpu03")
    assert lab.run("status")["leaving"] == {}
    assert not [path for path in lab.remains()["files"] if path.startswith("/var/lib/clusterctl")]


@pytest.mark.proves("add-node", "A twelfth worker is added without a login on the other eleven.")
@pytest.mark.proves("add-node", "Adding a twelfth worker changes nothing on others except that slurmd restarts itself.")
@pytest.mark.proves("add-node", "A job on eleven workers continues while the twelfth is added.")
@pytest.mark.long
def test_a_twelfth_worker_is_added_as_a_third_is() -> None:
    """What it costs is `scripts/bench grow`."""
    with growing("twelve", 11) as lab:
        number = submit(lab, "srun sleep 30000", "--nodes=11", "--ntasks-per-node=1")
        wait_until(lambda: all(lab.root(node, "pgrep slurmstepd || true") for node in lab.nodes[1:]))
        grows(lab)
        assert states(lab, number) == ["RUNNING"]
