"""What must survive what: each fault is inflicted for real, named where it strikes, and mended by the same command."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.lab import TestLab, clusterctl, podman
from tests.faults.injury import (
    GUARD,
    begin,
    change_zone,
    cloned,
    container,
    converges,
    cut_off,
    ended,
    fails,
    in_service,
    inventory_with,
    latest_run,
    silent,
    stuck_file,
    wait_until,
    zone,
)
from tests.golden import Golden
from tests.manifests import differences
from tests.programs import described

# What a reinstalled node whose key was accepted has of its own: its keys, and the head's copy of known_hosts.
REINSTALLED = (
    "/etc/ssh/ssh_host_ed25519_key",
    "/etc/ssh/ssh_host_ed25519_key.pub",
    "/var/lib/clusterctl/recovery.tar",
    "/var/lib/clusterctl/state/base.json",  # has the hash of that
)


@pytest.fixture(scope="module")
def lab(golden: Golden) -> Iterator[TestLab]:
    """The golden lab; at the end its last state has nothing left to do."""
    with golden.taken() as lab:
        lab.remember()
        yield lab


@pytest.mark.proves("faults", "All workers that do not respond are reported; the head stays unchanged; exit 3.")
def test_silent_workers_are_all_named_and_nothing_changes(lab: TestLab) -> None:
    before = lab.manifests()
    change_zone(lab)
    with cut_off(lab, "gpu01", "gpu02"):
        said = fails(lab, 3)
    assert "gpu01" in said
    assert "gpu02" in said
    assert "no answer" in said
    assert differences(before, lab.manifests()) == []
    converges(lab)


@pytest.mark.proves("faults", "A head that fails stops the run before a worker in use changes; exit 5.")
def test_a_head_that_fails_stops_the_run_before_a_worker_changes(lab: TestLab) -> None:
    before = {node: lab.manifest(node) for node in ("gpu01", "gpu02")}
    change_zone(lab)
    with stuck_file(lab, "head1"):
        said = fails(lab, 5)
    assert "/etc/chrony/chrony.conf" in said
    assert "Resume" in said
    assert differences(before, {node: lab.manifest(node) for node in before}) == []
    converges(lab)


@pytest.mark.proves("faults", "A worker that hangs is left behind; the others complete; exit 4.")
@pytest.mark.long
def test_a_worker_that_hangs_is_left_behind(lab: TestLab) -> None:
    before, after = zone(lab, "gpu02"), change_zone(lab)
    run = begin(lab)
    with silent(lab, "gpu02"):
        said = ended(run, 4)
    assert "gpu02" in said
    assert (zone(lab, "gpu01"), zone(lab, "gpu02")) == (after, before)
    converges(lab)
    assert zone(lab, "gpu02") == after


@pytest.mark.proves("faults", "A worker that cannot converge is drained; the next good run resumes it.")
@pytest.mark.proves("jobs", "A run keeps an operator's drain.")
@pytest.mark.proves("jobs", "A node drained for two causes resumes only after both end.")
@pytest.mark.proves("faults", "Monitoring that fails on the head keeps no worker out of service; exit 5.")
def test_a_worker_that_cannot_converge_gets_no_jobs_and_an_operators_drain_stays(lab: TestLab) -> None:
    lab.root("head1", "scontrol update nodename=gpu01 state=drain reason='ops: fan'")
    with stuck_file(lab, "gpu02"):
        fails(lab, 4)
        assert in_service(lab) == {"gpu01": "drained", "gpu02": "drained"}
        assert '"bootstrap"' in lab.root("head1", "slurm-drain")
    with stuck_file(lab, "head1", "/etc/prometheus/prometheus.yml"):
        assert "/etc/prometheus/prometheus.yml" in fails(lab, 5)
        assert in_service(lab) == {"gpu01": "drained", "gpu02": "idle"}
    converges(lab)
    assert in_service(lab) == {"gpu01": "drained", "gpu02": "idle"}
    assert "ops: fan" in lab.root("head1", "scontrol show node gpu01")
    lab.root("head1", "scontrol update nodename=gpu01 state=resume")
    lab.root(
        "head1",
        "slurm-drain check --out gpu01,gpu02; slurm-drain bootstrap --out gpu01; slurm-drain check --in gpu01,gpu02",
    )
    wait_until(lambda: in_service(lab)["gpu02"] == "idle")  # it is silent for Slurm until it has answered once more
    assert in_service(lab) == {"gpu01": "drained", "gpu02": "idle"}  # another cause is left
    converges(lab)
    assert in_service(lab) == {"gpu01": "idle", "gpu02": "idle"}


def assert_shown_as_under_way(lab: TestLab) -> None:
    """See that `status` and `logs` respond during a run and have it as their last."""
    done = clusterctl("status", str(lab.inventory), "--output", "json")
    assert done.returncode in (0, 4), described(done)  # 4: what the run has changed so far is drift
    document = json.loads(done.stdout)
    assert {node["name"]: node["problem"] for node in document["nodes"]} == dict.fromkeys(lab.nodes, "")
    done = clusterctl("logs", str(lab.inventory), "--output", "json")
    assert done.returncode == 0, described(done)
    for last in (document["last_run"], json.loads(done.stdout)["runs"][0]):
        assert (last["run"], last["verb"]) == (latest_run(lab).name, "bootstrap")
        assert (last["under_way"], last["exit_code"]) == (True, None)


@pytest.mark.proves("status", "`status` responds during a run and shows it as under way.")
@pytest.mark.proves("logs", "`logs` lists a run that is under way.")
@pytest.mark.proves("validate", "`discover` is refused during a run, exit 6.")
@pytest.mark.proves("faults", "During a run other runs and machines are refused with exit 6.")
@pytest.mark.proves("faults", "After a kill the same command continues; other machines stay refused.")
def test_a_killed_run_is_taken_over_and_other_machines_are_kept_out(lab: TestLab, tmp_path: Path) -> None:
    """The second machine is a clone of the cluster's directory."""
    other = cloned(lab, tmp_path / "clone")
    change_zone(lab)
    run = begin(lab)
    for inventory in (lab.inventory, other):
        said = fails(lab, 6, inventory=inventory)
        assert f"process {run.pid}" in said
        assert "since 20" in said
    assert f"process {run.pid}" in fails(lab, 6, verb="discover")
    assert_shown_as_under_way(lab)
    assert run.poll() is None, "all of that was while it ran"
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate(timeout=GUARD)
    assert f"process {run.pid}" in fails(lab, 6, inventory=other)
    converges(lab)
    fails(lab, 0, verb="verify", inventory=other)


@pytest.mark.proves("jobs", "An option that Slurm does not know never reaches slurm.conf.")
@pytest.mark.long
def test_an_option_that_slurm_does_not_know_never_reaches_it(lab: TestLab) -> None:
    """One of a later release: the inventory passes for good, and the head's own slurmctld is asked."""
    before = lab.manifests()
    with inventory_with(lab, "slurm_head_conf_extra: {PrologTimeout: 7}"):
        assert "PrologTimeout" in fails(lab, 5)
        assert "PrologTimeout" not in lab.root("head1", "cat /etc/slurm/slurm.conf")
    assert differences(before["gpu01"], lab.manifest("gpu01")) == []
    assert before["head1"]["daemons"] == lab.manifest("head1")["daemons"]
    converges(lab)


@pytest.mark.proves("preflight", "Jump host and sudo password work for preflight and Ansible.")
@pytest.mark.proves("preflight", "A wrong sudo password is tried once on each node, and never shown.")
@pytest.mark.long
def test_nodes_behind_the_head_with_a_password_for_sudo(lab: TestLab, tmp_path: Path) -> None:
    """SSH leads through the head, and sudo asks: preflight and Ansible manage both; a wrong one is tried once."""
    files = {}
    for name, word in (("right", "Zx9-correct-horse"), ("wrong", "Zx9-other-horse")):
        files[name] = tmp_path / name
        files[name].touch(mode=0o600)
        files[name].write_text(f"{word}\n")
    for node in lab.nodes:
        lab.root(node, "echo 'admin:Zx9-correct-horse' | chpasswd; sed -i 's/NOPASSWD://' /etc/sudoers.d/admin")
    try:
        since = int(time.time())
        with cut_off(lab, "gpu01", "gpu02", how="REJECT"), inventory_with(lab, "cluster_jump_host: head1"):
            for said in (fails(lab, 3), fails(lab, 3, "--become-password-file", str(files["wrong"]))):
                assert all(node in said for node in lab.nodes)
                assert "Zx9" not in said
            count = f"journalctl --since @{since} --output cat | grep -c 'pam_unix(sudo:auth): authentication failure'"
            tried = {node: podman("exec", container(lab, node), "sh", "-c", count).strip() for node in lab.nodes}
            assert tried == dict.fromkeys(lab.nodes, "1")
            summary = lab.run("bootstrap", "--become-password-file", str(files["right"]), "-vvv")
            # The inventory changed, and with it the head's copy of it.
            assert [change["name"] for change in summary["hosts"]["head1"]["changes"]] == [
                "/var/lib/clusterctl/recovery.tar"
            ]
            assert lab.healthy("--become-password-file", str(files["right"]))["exit_code"] == 0
        told = "".join(path.read_text(errors="replace") for path in (lab.inventory.parent / ".clusterctl").rglob("*.*"))
        assert "Zx9" not in told
    finally:
        for node in lab.nodes:
            podman(
                "exec",
                container(lab, node),
                "sed",
                "-i",
                "s/) /) NOPASSWD:/; s/)ALL/) NOPASSWD:ALL/",
                "/etc/sudoers.d/admin",
            )
    converges(lab)


COPY = "/var/lib/clusterctl/recovery.tar"


@pytest.mark.proves("secrets", "A directory that names another node as the head gets no secrets there; exit 2.")
def test_another_head_in_the_directory__is_given_nothing(lab: TestLab, tmp_path: Path) -> None:
    """A commit of someone who writes the directory: gpu02's address and record are head1's; its key is on record."""
    clone = tmp_path / lab.inventory.parent.name
    cloned(lab, clone)
    text = (clone / "inventory.yaml").read_text()
    head, gpu02 = (re.findall(rf"{name}: {{ansible_host: (\S+)}}", text)[0] for name in ("head1", "gpu02"))
    text = text.replace(f"head1: {{ansible_host: {head}}}", f"head1: {{ansible_host: {gpu02}}}")
    text = text.replace(f"gpu02: {{ansible_host: {gpu02}}}", f"gpu02: {{ansible_host: {head}}}")
    (clone / "inventory.yaml").write_text(text)
    records = {name: json.loads((clone / f"hardware/{name}.json").read_text()) for name in ("head1", "gpu02")}
    for name, other in (("head1", "gpu02"), ("gpu02", "head1")):
        (clone / f"hardware/{name}.json").write_text(json.dumps(records[other] | {"name": name}))
    label = (lab.inventory.parent / "secrets.yml").read_text().splitlines()[0].rpartition(";")[2]
    password = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "clusterctl/vault" / label
    another = {**os.environ, "CLUSTERCTL_VAULT_PASSWORD_FILE": str(password)}
    count = "journalctl --quiet --output=cat --grep='^Accepted ' | wc -l"
    logins = ["exec", container(lab, "gpu02"), "sh", "-c", count]
    before = podman(*logins)
    assert int(before) > 0
    for options, environment in (([], None), (["--accept-new-host-keys"], None), ([], another)):
        if environment:  # a label that is not authenticated, and a password file that any label opens
            sealed = (clone / "secrets.yml").read_text()
            (clone / "secrets.yml").write_text(sealed.replace(label, f"{label.rpartition('-')[0]}-00c0ffee", 1))
        done = clusterctl("bootstrap", str(clone / "inventory.yaml"), *options, env=environment)
        assert done.returncode == 2, described(done)
        assert (
            f"head1: is not the head that last received the cluster's secrets from this machine; its address: {head}"
            in done.stderr
        )
        assert f"clusterctl trust {clone}/inventory.yaml head1" in done.stderr
    assert podman(*logins) == before
    assert lab.root("gpu02", f"test -e {COPY} || echo absent").strip() == "absent"
    assert lab.root("head1", f"test -e {COPY} && echo present").strip() == "present"


@pytest.mark.long
@pytest.mark.proves("trust", "A reinstalled node is refused, with old and new fingerprint, until it is trusted.")
def test_a_reinstalled_node_is_refused_until_it_is_trusted(lab: TestLab) -> None:
    """A new container at the old address, with a host key that nobody has seen."""
    podman("rm", "--force", "--volumes", "--time", "0", container(lab, "gpu02"))
    lab.up()
    lab.root(
        "gpu02",
        "cd /etc/ssh; rm ssh_host_*; ssh-keygen -q -t ed25519 -N '' -f ssh_host_ed25519_key; systemctl restart ssh",
    )
    key = lab.inventory.parent / "known_hosts"
    old = key.read_text()
    said = fails(lab, 3)
    assert said.count("SHA256:") == 2
    assert "clusterctl trust" in said
    refused = clusterctl("trust", str(lab.inventory), "gpu02")
    assert refused.returncode == 2
    assert "SHA256:" in refused.stderr
    assert key.read_text() == old
    done = clusterctl("trust", str(lab.inventory), "gpu02", "--accept-new-host-keys")
    assert done.returncode == 0, described(done)
    summary = converges(lab, *REINSTALLED)
    assert summary["hosts"]["gpu02"]["changed"] > 0
    assert in_service(lab)["gpu02"] == "idle"
    lab.unchanged()  # nor does anything that the tests before have left need a change
