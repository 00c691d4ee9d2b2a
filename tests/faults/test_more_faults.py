"""The rest of the faults, which take too long for every change: `scripts/test --long`."""

import contextlib
import fcntl
import http.server
import json
import os
import re
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests import programs
from tests.cluster.lab import ALICE, CALL_LIMIT, TestLab, podman, submit
from tests.faults.injury import (
    GUARD,
    begin,
    change_zone,
    container,
    converges,
    cut_off,
    ended,
    fails,
    gateway,
    in_service,
    inventory_with,
    latest_run,
    throttled,
    wait_until,
    zone,
)
from tests.faults.repository import PACKAGE, repository
from tests.golden import Golden
from tests.labs import REPOSITORY
from tests.manifests import differences

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def lab(golden: Golden) -> Iterator[TestLab]:
    """The golden lab, remembered as it is before the faults; at the end its last state has nothing left to do."""
    with golden.taken() as lab:
        lab.root("gpu02", "apt-get -qq install -y faketime >/dev/null 2>&1")  # for another_time, which leaves it
        lab.remember()
        yield lab
        lab.unchanged()


# --- nodes that go away -----------------------------------------------------------------------------------------------


@pytest.mark.proves("faults", "A worker that dies during a run is reported; the same command repairs it.")
def test_a_worker_that_dies_in_the_middle(lab: TestLab) -> None:
    after = change_zone(lab)
    run = begin(lab)
    podman("kill", container(lab, "gpu02"))
    assert "gpu02" in ended(run, 4)
    assert zone(lab, "gpu01") == after
    lab.up()
    converges(lab)


@pytest.mark.proves("faults", "A head that goes down during a run ends it with exit 5.")
@pytest.mark.proves("faults", "A job survives the head's outage; the same command then completes.")
def test_bootstrap__head_down_in_the_middle__ends_with_5_keeps_jobs(lab: TestLab) -> None:
    """The head is started again when the run has ended, so the run cannot miss that it was down."""
    job = submit(lab, "until test -e /var/tmp/end; do sleep 0.2; done", "--nodelist=gpu01")
    change_zone(lab)
    run = begin(lab)
    podman("stop", "--time", "0", container(lab, "head1"))
    assert "head1" in ended(run, 5)
    lab.up()
    converges(lab)
    lab.root("gpu01", "touch /var/tmp/end")
    assert finished(lab, job) == "COMPLETED"


def finished(lab: TestLab, job: str) -> str:
    """Wait for a job's end; return its state by accounting."""
    ask = ("sudo", "sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job.strip()}", "--format=State")
    wait_until(lambda: lab.ssh("head1", *ask).strip() not in ("", "PENDING", "RUNNING"))
    return lab.ssh("head1", *ask).strip()


@pytest.mark.proves("faults", "SIGINT, SIGTERM, SIGHUP or a closed pipe end a run with exit 7.")
@pytest.mark.proves("faults", "A run that was ended leaves no process and no lock; the next completes.")
@pytest.mark.parametrize("how", ["SIGINT", "SIGINT twice", "SIGTERM", "SIGHUP", "closed pipe"])
def test_a_run_that_is_asked_to_end_lets_go_of_the_cluster(lab: TestLab, how: str) -> None:
    change_zone(lab)
    kept = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a run under nohup goes on, and so may these tests be
    run = begin(lab)
    signal.signal(signal.SIGHUP, kept)
    assert run.stdout
    wait_until(lambda: '"Gathering Facts"' in (latest_run(lab) / "events.jsonl").read_text())
    if how == "closed pipe":
        run.stdout.close()
        assert run.wait(GUARD) == 7
    else:
        run.send_signal(getattr(signal, how.split()[0]))
        begun = ""
        if how.endswith("twice"):
            while "again to stop now" not in begun:  # two at once may be one to the kernel
                begun = run.stdout.readline()
                assert begun
            run.send_signal(signal.SIGINT)
        said = begun + ended(run, 7)
        under_way = "a task may still be running" if how.endswith("twice") else "no task is running"
        assert under_way in said
        assert "Resume" in said
    assert json.loads((latest_run(lab) / "summary.json").read_text())["exit_code"] == 7
    if how.endswith("twice"):  # the process of a task that was ended takes a moment, in which it has the lock
        wait_until(lambda: processes_about(str(lab.inventory)) == [])
    with open(lab.inventory.parent / ".clusterctl/lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lab.root("head1", "flock --nonblock /run/clusterctl/cluster.lock true")
    assert processes_about(str(lab.inventory)) == []
    converges(lab)


def processes_about(word: str) -> list[str]:
    """Return the command lines of this machine's processes that have the word in them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if word in line]


@pytest.mark.proves("faults", "A node at 256 kbit/s fails no run; the others finish without it.")
def test_a_slow_node_fails_nobody_and_holds_nobody_back(lab: TestLab) -> None:
    """Its packages come at the same speed as all it says and hears; the other one is there long before it."""
    for node in ("gpu01", "gpu02"):
        lab.root(node, "apt-get -qq remove -y prometheus-node-exporter; apt-get clean")
    change_zone(lab)
    with throttled(lab, "gpu02", "256kbit"):
        summary = lab.run("bootstrap")
        assert {host["status"] for host in summary["hosts"].values()} == {"ok"}
        assert in_service(lab) == {"gpu01": "idle", "gpu02": "idle"}
    events = [json.loads(line) for line in (latest_run(lab) / "events.jsonl").read_text().splitlines()]
    runs = [number for number, event in enumerate(events) if event["event"] == "playbook"]
    assert len(runs) == 2
    first = [event for event in events[: runs[1]] if event["event"] == "result"]
    assert "behind" in {event["status"] for event in first if event["host"] == "gpu02"}
    assert {event["role"] for event in first if event["host"] == "gpu01"} >= {"node_exporter", "verify"}
    assert {event["host"] for event in events[runs[1] :] if event["event"] == "result"} == {"head1", "gpu02"}
    for node in ("gpu01", "gpu02"):
        assert "ii" in lab.root(node, "dpkg-query -W -f '${db:Status-Abbrev}' prometheus-node-exporter")
    converges(lab)


# --- who may come in --------------------------------------------------------------------------------------------------


@pytest.mark.proves("preflight", "A refused SSH key is reported for all hosts, tried once on each.")
def test_a_key_that_nobody_authorized_is_named_for_all_hosts_and_tried_once(lab: TestLab, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    programs.output_of(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", wrong], 60)
    text = lab.inventory.read_text()
    key = text.partition("ansible_ssh_private_key_file: ")[2].split("\n")[0]
    loud, since = "/etc/ssh/sshd_config.d/00-loud.conf", int(time.time())
    for node in lab.nodes:
        lab.root(node, f"echo 'LogLevel VERBOSE' > {loud}; systemctl reload ssh")
    lab.inventory.write_text(text.replace(key, str(wrong)))
    try:
        said = fails(lab, 3)
    finally:
        lab.inventory.write_text(text)
        journals = {
            node: lab.root(
                node, f"journalctl --unit ssh --since @{since} --output cat; rm {loud}; systemctl reload ssh"
            )
            for node in lab.nodes
        }
    assert {node: said.count(f"{node}") > 0 for node in lab.nodes} == dict.fromkeys(lab.nodes, True)
    assert {node: text.count("Failed publickey") for node, text in journals.items()} == dict.fromkeys(lab.nodes, 1)
    assert not any(line in said for line in wrong.read_text().splitlines()[1:-1])
    converges(lab)


@pytest.mark.proves("preflight", "User, key and jump host of ~/.ssh/config count for preflight and Ansible.")
def test_ssh_configuration_of_the_user_counts_for_preflight_and_for_ansible(lab: TestLab, tmp_path: Path) -> None:
    """Names, user, key and jump host from ~/.ssh/config alone, in a mount namespace where that is a file of ours."""
    head = lab.inventory.read_text().partition("head1: {ansible_host: ")[2].partition("}")[0]
    worker = lab.inventory.read_text().partition("gpu01: {ansible_host: ")[2].partition("}")[0]
    key = lab.inventory.read_text().partition("ansible_ssh_private_key_file: ")[2].split("\n")[0]
    known = tmp_path / "known_hosts"
    known.write_text((lab.inventory.parent / "known_hosts").read_text())
    (tmp_path / "config").write_text(
        f"Host {head}\n  ProxyJump none\nHost {worker}\n  ProxyJump {head}\n"
        f"Host *\n  User admin\n  IdentityFile {key}\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {known}\n"
    )
    (tmp_path / "config").chmod(0o600)
    text = lab.inventory.read_text()
    lines = [line for line in text.splitlines() if "ansible_user" not in line and "ansible_ssh_private" not in line]
    lab.inventory.write_text("\n".join(lines) + "\n")
    home = Path("/root/.ssh") if os.geteuid() == 0 else Path.home() / ".ssh"
    home.mkdir(mode=0o700, exist_ok=True)
    inside = 'mount --bind "$0" "$1"; exec clusterctl verify "$2"'
    try:
        with cut_off(lab, "gpu01", how="REJECT"):
            argv = ["unshare", "--mount", "sh", "-ec", inside, str(tmp_path), str(home), str(lab.inventory)]
            done = programs.call(argv, CALL_LIMIT)
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        lab.inventory.write_text(text)


# --- what a node has not ----------------------------------------------------------------------------------------------


@pytest.mark.proves("faults", "A full file system on a worker is reported by its path; exit 4.")
def test_a_full_file_system_is_named(lab: TestLab) -> None:
    cache = "/var/cache/apt/archives"
    lab.root("gpu02", "apt-get -qq remove -y prometheus-node-exporter; apt-get clean")
    lab.root("gpu02", f"mount -t tmpfs -o size=64k none {cache}; mkdir {cache}/partial")
    try:
        assert cache in fails(lab, 4)
    finally:
        lab.root("gpu02", f"umount {cache}")
    converges(lab)


@pytest.mark.proves("preflight", "A node without Python is reported with the command that installs it.")
@pytest.mark.proves("preflight", "A node without Python ends the run; the head stays unchanged.")
def test_no_python_is_named_with_the_command_that_installs_it(lab: TestLab) -> None:
    before = lab.manifest("head1")
    podman("exec", container(lab, "gpu01"), "mv", "/usr/bin/python3", "/usr/bin/python3.away")
    try:
        said = fails(lab, 3)
    finally:
        podman("exec", container(lab, "gpu01"), "mv", "/usr/bin/python3.away", "/usr/bin/python3")
    assert "gpu01" in said
    assert "apt-get install -y python3" in said
    assert differences(before, lab.manifest("head1")) == []
    converges(lab)


@pytest.mark.proves("preflight", "A resolver that does not respond is reported by its address.")
def test_names_that_do_not_resolve_are_blamed_on_the_resolver(lab: TestLab) -> None:
    proxy = lab.inventory.read_text().partition("cluster_package_proxy: ")[2].split("\n")[0]
    text = lab.inventory.read_text()
    lab.inventory.write_text(text.replace(f"    cluster_package_proxy: {proxy}\n", ""))
    kept = lab.root("gpu01", "cat /etc/resolv.conf")
    # A proxy that is given by its address needs no names.
    lab.root("gpu01", "grep -l Proxy /etc/apt/apt.conf.d/* | xargs rm; echo 'nameserver 192.0.2.1' > /etc/resolv.conf")
    try:
        said = fails(lab, 3)
    finally:
        lab.ssh("gpu01", "sudo", "tee", "/etc/resolv.conf", stdin=kept)
        lab.inventory.write_text(text)
    assert "192.0.2.1" in said
    converges(lab)


@pytest.mark.proves("preflight", "Two nodes with one machine ID are both reported; exit 3.")
def test_two_nodes_of_one_machine_id_are_both_named(lab: TestLab) -> None:
    own = lab.root("gpu02", "cat /etc/machine-id")
    lab.ssh("gpu02", "sudo", "tee", "/etc/machine-id", stdin=lab.root("gpu01", "cat /etc/machine-id"))
    try:
        said = fails(lab, 3)
    finally:
        lab.ssh("gpu02", "sudo", "tee", "/etc/machine-id", stdin=own)
    assert "gpu01" in said
    assert "gpu02" in said
    converges(lab)


@pytest.mark.proves("faults", "Output at login and a `noexec` /tmp disturb no run.")
def test_noise_at_login_and_a_tmp_that_runs_nothing_disturb_nobody(lab: TestLab) -> None:
    noise = r"printf '\033[31mWelcome\033[0m {{ 7 * 7 }}\n'; echo noise >&2"
    lab.root("gpu01", "mount -t tmpfs -o noexec,mode=1777 none /tmp")
    lab.root("gpu01", "cp --archive ~admin/.bashrc /root/kept")
    lab.ssh("gpu01", "tee", ".bashrc", stdin=noise)
    try:
        after = change_zone(lab)
        lab.run("bootstrap")
        assert zone(lab, "gpu01") == after
    finally:
        lab.root("gpu01", "umount /tmp; mv /root/kept ~admin/.bashrc")
    converges(lab)


@contextmanager
def another_time(lab: TestLab, node: str, seconds: float) -> Iterator[None]:
    """Let the python that preflight and Ansible start on a node have a clock that goes wrong; the host's is its own."""
    wrapper = (
        "#!/bin/sh\n"
        f"export FAKETIME={seconds:+} FAKETIME_DONT_FAKE_MONOTONIC=1 DONT_FAKE_MONOTONIC=1\n"
        'export LD_PRELOAD=$(echo /usr/lib/*/faketime/libfaketimeMT.so.1)\nexec /usr/bin/python3.real "$@"\n'
    )
    lab.root(node, f"mv /usr/bin/python3 /usr/bin/python3.real; cat > /usr/bin/python3 <<'END'\n{wrapper}END\n")
    lab.root(node, "chmod 755 /usr/bin/python3")
    try:
        yield
    finally:
        lab.root(node, "mv /usr/bin/python3.real /usr/bin/python3")


@pytest.mark.proves("preflight", "A known node's clock is reported at 5 s off, refused at 60 s.")
def test_a_clock_that_goes_wrong_is_told_and_past_ten_seconds_refused(lab: TestLab) -> None:
    with another_time(lab, "gpu02", 5):
        said = fails(lab, 0)
        assert "gpu02" in said
        assert "s ahead of head1" in said
    before = lab.manifest("head1")
    change_zone(lab)
    with another_time(lab, "gpu02", -60):
        said = fails(lab, 3)
    assert "s behind head1" in said
    assert "chronyc tracking" in said
    assert differences(before, lab.manifest("head1")) == []
    converges(lab)


@pytest.mark.proves("preflight", "A new node's clock is reported at 60 s off and does not stop.")
def test_the_clock_of_a_node_that_is_new_is_told_and_no_reason_to_stop(lab: TestLab) -> None:
    record = lab.inventory.parent / "hardware/gpu02.json"
    kept = record.read_bytes()
    record.unlink()
    try:
        with another_time(lab, "gpu02", 60):
            said = fails(lab, 0)
        assert "s ahead of head1" in said
        assert "chrony corrects it at start" in said
    finally:
        record.write_bytes(kept)
    converges(lab)


@pytest.mark.proves("preflight", "An unsupported system is reported with the supported ones; exit 3.")
@pytest.mark.proves("preflight", "Two nodes with one host name are both reported; exit 3.")
def test_a_system_and_a_name_that_cannot_be_are_told_with_what_can(lab: TestLab) -> None:
    lab.root(
        "gpu01",
        """sed 's/^VERSION_ID=.*/VERSION_ID="11"/' /etc/os-release > /run/old; mount --bind /run/old /etc/os-release""",
    )
    lab.root("gpu02", "hostname gpu01")
    try:
        said = fails(lab, 3)
    finally:
        lab.root("gpu01", "umount /etc/os-release")
        lab.root("gpu02", "hostname gpu02")
    assert "debian 11 is not supported" in said
    assert "Debian 12, 13 and testing, Ubuntu 22.04 and 24.04" in said
    assert "gpu01 is the hostname of gpu01, gpu02" in said
    converges(lab)


# --- what this machine has not ----------------------------------------------------------------------------------------


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.proves("faults", "A read-only cluster directory is reported, everything stays unchanged, exit 2.")
@pytest.mark.parametrize("what", [".clusterctl", "."])
def test_a_directory_that_cannot_be_written_is_named_and_left_whole(lab: TestLab, what: str) -> None:
    directory = lab.inventory.parent
    before, head = content(directory), lab.manifest("head1")
    inside = 'mount --bind "$0" "$0"; mount -o remount,bind,ro "$0"; cd /; exec clusterctl bootstrap "$1"'
    argv = ["unshare", "--mount", "sh", "-ec", inside, str(directory / what), str(lab.inventory)]
    done = programs.call(argv, CALL_LIMIT)
    said = done.stdout + done.stderr
    assert done.returncode == 2, said
    assert f"{directory / '.clusterctl'}" in said
    assert "Read-only file system" in said
    assert "Traceback" not in said
    assert content(directory) == before
    assert differences(head, lab.manifest("head1")) == []
    converges(lab)


def without_lock(files: dict[str, bytes]) -> dict[str, bytes]:
    """Leave out the file that each run writes its own name to."""
    return {name: text for name, text in files.items() if name != "lock"}


@contextmanager
def small_state(lab: TestLab, tmp_path: Path) -> Iterator[Path]:
    """Move a cluster's state to a file system of 64 MB; yields where."""
    state = lab.inventory.parent / ".clusterctl"
    kept = tmp_path / "kept"
    shutil.copytree(state, kept)
    programs.output_of(["mount", "-t", "tmpfs", "-o", "size=64m,mode=0700", "none", state], 60)
    try:
        shutil.copytree(kept, state, dirs_exist_ok=True)
        yield state
    finally:
        programs.output_of(["umount", "--lazy", state], 60)


def fill(directory: Path, leave: int) -> Path:
    """Leave so many bytes of a file system free; returns the file that holds the rest."""
    ballast = directory / "ballast"
    with open(ballast, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(directory).free - leave)
    return ballast


@pytest.mark.proves("faults", "A full disk of the controller is reported before a change; exit 2.")
@pytest.mark.proves("faults", "A controller's disk that fills up during a run ends it; exit 7.")
@pytest.mark.proves("faults", "A controller's full disk is reported by directory; past runs there stay unchanged.")
def test_a_controller_whose_disk_is_full_says_so_before_or_in_the_midst(lab: TestLab, tmp_path: Path) -> None:
    with small_state(lab, tmp_path) as state:
        before, head = content(state), lab.manifest("head1")
        ballast = fill(state, 1 << 20)
        said = fails(lab, 2)
        assert str(state) in said
        ballast.unlink()
        assert without_lock(content(state)) == without_lock(before)
        assert differences(head, lab.manifest("head1")) == []

        change_zone(lab)
        run = begin(lab)
        ballast = fill(state, 0)
        said = ended(run, 7)
        assert "No space left on device" in said
        assert str(state) in said
        after = content(state)
        # What is known to be unchanged is deleted before Ansible contacts a node.
        kept = {name: text for name, text in without_lock(before).items() if name != "unchanged.json"}
        assert {name: after.get(name) for name in kept} == kept
        for name, text in after.items():
            if name.endswith(".json"):
                json.loads(text)
        ballast.unlink()
        converges(lab)


# --- what was written is damaged --------------------------------------------------------------------------------------


@pytest.mark.proves("faults", "Truncated secrets or hardware records are refused and left as they are.")
@pytest.mark.parametrize("name", ["secrets.yml", "hardware/gpu01.json"])
def test_a_damaged_file_of_the_directory_is_refused_and_left(lab: TestLab, name: str) -> None:
    path = lab.inventory.parent / name
    kept = path.read_bytes()
    path.write_bytes(kept[: len(kept) // 2])
    try:
        assert path.name in fails(lab, 2)
        assert path.read_bytes() == kept[: len(kept) // 2]
    finally:
        path.write_bytes(kept)
    converges(lab)


@pytest.mark.proves("faults", "A truncated record on a node is refused and left; exit 4.")
def test_a_damaged_record_on_a_node_is_refused_and_left(lab: TestLab) -> None:
    record = "/var/lib/clusterctl/state/base.json"
    lab.root("gpu01", f"cp --archive {record} /root/kept; truncate --size 100 {record}")
    try:
        assert record in fails(lab, 4)
        assert lab.root("gpu01", f"stat --format %s {record}").strip() == "100"
    finally:
        lab.root("gpu01", f"mv /root/kept {record}")
    converges(lab)


# --- Slurm's own daemons ----------------------------------------------------------------------------------------------


@pytest.mark.proves("jobs", "A job survives a crash of slurmctld and a stopped database.")
@pytest.mark.parametrize("how", ["SEGV", "KILL"])
def test_jobs_outlive_slurmctld_and_the_database(lab: TestLab, how: str) -> None:
    submit = ("sbatch", "--parsable", "--chdir=/", "--output=none")
    running = lab.ssh("head1", *ALICE, *submit, "--wrap='sleep 30'")
    time.sleep(6)  # slurmctld saves its state up to 5 s late
    lab.root("head1", f"systemctl stop slurmdbd mariadb; systemctl kill --signal {how} slurmctld")
    wait_until(lambda: "active" not in lab.root("head1", "systemctl is-active slurmctld || true").split())
    converges(lab)
    later = lab.ssh("head1", *ALICE, *submit, "--wrap='sleep 1'")
    assert finished(lab, running) == "COMPLETED"
    assert finished(lab, later) == "COMPLETED"


@pytest.mark.proves("jobs", "Jobs run while Prometheus is down.")
def test_a_monitoring_that_is_down_costs_no_job(lab: TestLab) -> None:
    lab.root("head1", "systemctl stop prometheus; chmod 0 /var/lib/prometheus")
    job = lab.ssh("head1", *ALICE, "sbatch", "--parsable", "--chdir=/", "--output=none", "--wrap='sleep 1'")
    assert finished(lab, job) == "COMPLETED"
    assert in_service(lab) == {"gpu01": "idle", "gpu02": "idle"}
    lab.root("head1", "chmod 0755 /var/lib/prometheus")
    converges(lab)


@pytest.mark.proves("jobs", "Jobs run while Prometheus's disk is full; the failed run restarts no Slurm daemon.")
def test_a_monitoring_whose_disk_is_full_costs_no_job(lab: TestLab) -> None:
    data = "/var/lib/prometheus"
    lab.root(
        "head1",
        f"systemctl stop prometheus; mount -t tmpfs -o size=64k,uid=prometheus,gid=prometheus none {data}; "
        f"head -c 1m /dev/zero > {data}/ballast || true; systemctl start prometheus || true",
    )
    slurm = {node: lab.root(node, "pidof slurmctld slurmdbd slurmd || true") for node in lab.nodes}
    try:
        job = lab.ssh("head1", *ALICE, "sbatch", "--parsable", "--chdir=/", "--output=none", "--wrap='sleep 1'")
        assert finished(lab, job) == "COMPLETED"
        said = fails(lab, 5)
        assert "prometheus" in said
        assert {node: lab.root(node, "pidof slurmctld slurmdbd slurmd || true") for node in lab.nodes} == slurm
        assert in_service(lab) == {"gpu01": "idle", "gpu02": "idle"}
    finally:
        lab.root("head1", f"systemctl stop prometheus; umount {data}")
    converges(lab)


# --- the package source -----------------------------------------------------------------------------------------------


@pytest.mark.proves("packages", "A run completes a killed package transaction.")
@pytest.mark.proves("packages", "A run waits for a held package lock and reports its holder.")
def test_a_package_transaction_that_was_killed_is_finished_and_a_held_lock_waited_for(lab: TestLab) -> None:
    lab.root(
        "gpu01",
        "cd /tmp; apt-get -qq download prometheus-node-exporter; dpkg --purge prometheus-node-exporter >/dev/null; "
        "dpkg --unpack prometheus-node-exporter_*.deb >/dev/null; rm prometheus-node-exporter_*.deb",
    )
    lab.root("gpu02", "apt-get -qq remove -y prometheus-node-exporter >/dev/null; touch /tmp/held")
    hold = (
        "import fcntl, pathlib, time\n"
        "file = open('/var/lib/dpkg/lock-frontend', 'w'); fcntl.lockf(file, fcntl.LOCK_EX)\n"
        "while pathlib.Path('/tmp/held').exists(): time.sleep(0.1)"
    )
    lab.root("gpu02", f'nohup python3 -c "{hold}" >/dev/null 2>&1 &')
    run = begin(lab, "bootstrap", "--output", "json")
    # A module of ours that takes so long is one that waits.
    waits = "ps -eo etimes=,args= | grep -qE '^ *([89]|[1-9][0-9]+) /usr/bin/python3$'"
    lab.root("gpu02", f"until {waits}; do sleep 0.2; done; sleep 2; rm /tmp/held")
    summary = json.loads(next(line for line in ended(run, 0).splitlines() if line.startswith('{"verb"')))
    notes = [note["note"] for note in summary["notes"] if note["hosts"] == ["gpu02"]]
    assert any("package lock" in note and "python3" in note for note in notes), notes
    converges(lab)
    assert "ii" in lab.root("gpu01", "dpkg-query -W -f '${db:Status-Abbrev}' prometheus-node-exporter")


class Source(http.server.BaseHTTPRequestHandler):
    """A package proxy with a fault."""

    fault = ""

    def do_GET(self) -> None:
        if self.fault.isdigit():
            self.send_error(int(self.fault))
        elif self.fault == "truncated":
            self.send_response(200)
            self.send_header("Content-Length", "100000")
            self.end_headers()
            self.wfile.write(b"x" * 1000)
        elif self.fault == "garbage":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"x" * 1000)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def faulty_source(lab: TestLab, fault: str) -> Iterator[str]:
    """Serve a package proxy with a fault on the controller's address in the lab; yields its URL."""
    if fault == "refused":
        with socket.create_server((gateway(lab), 0)) as free:
            port = free.getsockname()[1]
        yield f"http://{gateway(lab)}:{port}"
        return
    handler = type("Faulty", (Source,), {"fault": fault})
    with http.server.ThreadingHTTPServer((gateway(lab), 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://{gateway(lab)}:{server.server_port}"
        finally:
            server.shutdown()


# What a run ends with, and says of the source. Preflight sees the first three, apt the others.
FAULTY = {
    "404": (3, "HTTP 404 Not Found"),
    "500": (3, "HTTP 500 Internal Server Error"),
    "refused": (3, "Connection refused"),
    "truncated": (4, ""),
    "garbage": (4, "Clearsigned file isn't valid"),
}


@pytest.mark.proves("packages", "A faulty package source is reported with URL and cause; nothing is installed.")
@pytest.mark.parametrize("fault", FAULTY)
def test_a_package_source_with_a_fault_is_named_and_nothing_installed(lab: TestLab, fault: str) -> None:
    """With preflight's own look at the source, and without it for what it cannot see."""
    text = lab.inventory.read_text()
    proxy = text.partition("cluster_package_proxy: ")[2].split("\n")[0]
    lab.root("gpu02", "apt-get -qq remove -y prometheus-node-exporter; apt-get clean; rm -rf /var/lib/apt/lists/*")
    try:
        with faulty_source(lab, fault) as url:
            lab.inventory.write_text(text.replace(proxy, url))
            # Else the node would still download by way of the old one, before it is told of the new.
            lab.root("gpu02", f"sed -i 's#{proxy}#{url}#' /etc/apt/apt.conf.d/90clusterctl-proxy")
            code, words = FAULTY[fault]
            said = fails(lab, code)
        assert re.search(rf"http://deb\.debian\.org/debian/dists/trixie\S* .*{re.escape(words)}", said), said
        assert code == 4 or f"through the proxy {url}" in said, said
        status = lab.root("gpu02", "dpkg-query -W -f '${db:Status-Abbrev}' prometheus-node-exporter || true")
        assert "ii" not in status
    finally:
        lab.inventory.write_text(text)
    converges(lab)


@pytest.mark.proves("packages", "A wrong index, signature, date or hash is reported, and nothing is installed.")
@pytest.mark.proves("packages", "A slow package source is no error.")
@pytest.mark.parametrize("fault", ["none", "slow", "signature", "key", "unsigned", "expired", "hash"])
def test_a_site_of_packages_is_used_only_where_all_of_it_is_right(lab: TestLab, fault: str) -> None:
    """A source that somebody has set up on a node, with a package that the inventory asks for there."""
    own = yaml.safe_load((REPOSITORY / "roles/base/defaults/main.yml").read_text())["base_packages"]
    no_proxy = f"cluster_no_proxy: [{gateway(lab)}]"
    source, key = "sources.list.d/site.sources", "/etc/apt/keyrings/site.asc"
    with inventory_with(lab, no_proxy), repository(gateway(lab), fault) as (url, public):
        lines = f"Types: deb\nURIs: {url}\nSuites: ./\nSigned-By: {key}\n"
        lab.ssh("gpu02", "sudo", "tee", f"/etc/apt/{source}", stdin=lines)
        lab.ssh("gpu02", "sudo", "tee", key, stdin=public)
        packages = f"base_packages: [{', '.join([*own, PACKAGE])}]"
        lab.inventory.write_text(lab.inventory.read_text().replace("gpu02: {", f"gpu02: {{{packages}, "))
        try:
            said = fails(lab, 0 if fault in ("none", "slow") else 4)
            status = lab.root("gpu02", f"dpkg-query -W -f '${{db:Status-Abbrev}}' {PACKAGE} 2>/dev/null || true")
        finally:
            lab.root("gpu02", f"cd /etc/apt; rm {source} {key}; rm -f /var/lib/apt/lists/*_._*")
            lab.root("gpu02", f"dpkg --purge {PACKAGE} >/dev/null 2>&1")  # one that is wanted no more may stay
    if fault in ("none", "slow"):
        assert "ii" in status
    else:
        assert "gpu02" in said
        assert url in said or PACKAGE in said
        assert WORDS[fault] in said
        assert "ii" not in status
    converges(lab)


# What apt says of each, in the words of Debian 13's.
WORDS = {
    "signature": "OpenPGP signature verification failed",
    "key": "OpenPGP signature verification failed",
    "unsigned": "is not signed",
    "expired": "is expired",
    "hash": "Hash Sum mismatch",
}
