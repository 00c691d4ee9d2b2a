"""Changes by hand on nodes: `status` and `plan` name each of them and nothing else, and a run repairs them."""

import os
import pty
import re
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cluster.drift import ByHand, changed, drift, inflict, items, reported
from tests.cluster.lab import TestLab, clusterctl, podman
from tests.manifests import differences, lasting

BY_HAND: ByHand = {
    "file edited": ("head1", "echo '# by hand' >> /etc/slurm/slurm.conf",
                    ("slurm_head", "file", "/etc/slurm/slurm.conf", "edited")),
    "secret edited": ("head1", "echo '# by hand' >> /etc/prometheus/web.yml",
                      ("prometheus", "file", "/etc/prometheus/web.yml", "edited")),
    "directory's mode": ("head1", "chmod 0777 /var/lib/slurm/slurmctld",
                         ("slurm_head", "directory", "/var/lib/slurm/slurmctld", "mode 0777, was 0")),
    "file's mode": ("gpu01", "chmod 0644 /etc/munge/munge.key",
                    ("munge", "file", "/etc/munge/munge.key", "mode 0644, was 0400")),
    "file's owner": ("gpu02", "chown root /etc/munge/munge.key",
                     ("munge", "file", "/etc/munge/munge.key", "uid 0, was ")),
    "file removed": ("gpu01", "rm /etc/default/slurmd", ("slurm_worker", "file", "/etc/default/slurmd", "removed")),
    "package removed": ("gpu01", "apt-get -qq remove -y tmux", ("base", "package", "tmux", "removed")),
    "package moved": (
        "gpu02",
        """mkdir -p /tmp/less/DEBIAN
        printf 'Package: less\\nVersion: 1:0-1\\nArchitecture: all\\nMaintainer: x <x@y>\\nDescription: x\\n' \
            > /tmp/less/DEBIAN/control
        dpkg-deb --build /tmp/less /tmp/less.deb && dpkg -i /tmp/less.deb""",
        ("base", "package", "less", "version 1:0-1, was "),
    ),
    "unit stopped": ("gpu02", "systemctl stop chrony", ("base", "unit", "chrony.service", "not running")),
    "unit disabled": ("gpu01", "systemctl -q disable munge",
                      ("munge", "unit", "munge.service", "disabled, was enabled")),
    "unit masked": ("gpu02", "systemctl -q mask --now prometheus-node-exporter",
                    ("node_exporter", "unit", "prometheus-node-exporter.service", "masked, was enabled")),
    "kernel setting": ("gpu01", "sysctl -q -w net.core.somaxconn=100",
                       ("base", "sysctl", "net.core.somaxconn", "100, was ")),
    "interrupted": (
        "gpu02",
        """python3 - <<'END'
import json
path = "/var/lib/clusterctl/state/slurm_worker.json"
record = json.load(open(path))
record["pending"].append("package:slurmd")
json.dump(record, open(path, "w"))
END""",
        ("slurm_worker", "pending", "package:slurmd", "a run ended"),
    ),
}  # fmt: skip
SECRETS = {"/etc/prometheus/web.yml"}
# What records do not have: `status` does not see it, a run does.
SHELL = ("gpu01", "usermod --shell /bin/sh alice", ("user", "alice"))
# A version that no pin rules out: a run leaves it, and records it.
MOVED = ("gpu02", "package", "less")
# What an interrupted run had left to do: the unit is restarted in the next one.
PENDING = ("gpu02", "pending", "package:slurmd")
# Units that a repair restarts or reloads, by the file or the interrupted run that asks for it.
FOLLOW_UPS = {
    ("head1", "unit", "slurmctld.service"),  # /etc/slurm/slurm.conf
    ("gpu01", "unit", "slurmd.service"),  # /etc/default/slurmd
    ("gpu02", "unit", "munge.service"),  # /etc/munge/munge.key
    ("gpu02", "unit", "slurmd.service"),  # PENDING
}


@pytest.fixture(scope="module")
def lab(whole: TestLab) -> TestLab:
    return whole


@pytest.mark.proves("status", "An untouched Debian 13 cluster shows no drift and no alerts.")
def test_an_untouched_cluster_shows_none(lab: TestLab) -> None:
    document = lab.healthy()
    assert drift(document) == {}
    assert [node["drift_error"] for node in document["nodes"]] == [None] * 3
    assert document["versions_apart"] == {}
    assert document["alerts"] == {"error": None, "firing": [], "more": 0}
    assert (document["last_run"]["verb"], document["last_run"]["exit_code"]) == ("bootstrap", 0)


@pytest.mark.proves(
    "plan", "`plan bootstrap` reports twelve kinds of manual change and their restarts, nothing else; changes nothing."
)
@pytest.mark.proves("bootstrap", "A run repairs exactly what its plan reported; the next one changes nothing.")
@pytest.mark.proves("status", "`status` reports exactly thirteen kinds of manual change, with node and role.")
@pytest.mark.proves("status", "`status` shows a package version that differs between nodes.")
@pytest.mark.proves("status", "Without the vault password only the drift of secrets is missing.")
@pytest.mark.proves("status", "After a run that repairs manual changes `status` shows no drift.")
def test_changes_by_hand__status_plan_and_a_run__name_and_repair_them(lab: TestLab) -> None:
    """`status` comes after the plan and still finds all of them, so it has repaired nothing."""
    before = lab.manifests()
    inflict(lab, BY_HAND, SHELL[:2])
    injured = lab.manifests()
    repairs = items(BY_HAND) | {(SHELL[0], *SHELL[2])} | FOLLOW_UPS
    repairs -= {MOVED, PENDING}

    assert changed(lab.run("plan bootstrap", expect=10)) == repairs, "plan announces each of them, and nothing else"
    assert differences(injured, lab.manifests()) == [], "plan changes nothing"

    document = lab.run("status", expect=4)
    found = reported(document, BY_HAND)
    assert document["versions_apart"]["less"].keys() > {"1:0-1"}
    assert document["secrets_unjudged"] is None

    page = clusterctl("status", str(lab.inventory)).stdout
    for node, role, kind, name in found:
        subject = name if kind == "pending" else f"{kind} {name}"
        assert re.search(rf"^{node}: {role}: {re.escape(subject)}: ", page, re.MULTILINE), page
    assert re.search(r"^versions: less .*1:0-1 on gpu02", page, re.MULTILINE), page

    keyless = {**os.environ, "CLUSTERCTL_VAULT_PASSWORD_FILE": "/nonexistent"}
    blind = clusterctl("status", str(lab.inventory), env=keyless)
    assert blind.returncode == 4, blind.stderr
    assert blind.stdout.count("files with secrets were not compared") == 1
    assert {name for name in (key[3] for key in found) if name not in blind.stdout} == SECRETS

    assert changed(lab.run("bootstrap")) == repairs, "a run repairs each of them, and nothing else"
    assert drift(lab.healthy()) == {}
    after = lab.manifests()
    records = [f"/gpu02/files//var/lib/clusterctl/state/{role}.json" for role in ("base", "packages")]
    left = [line.split(": ")[0] for line in differences(lasting(before), lasting(after))]
    assert left == [*records, "/gpu02/packages"], "all is as it was before, but for the version that is left"
    moved = {*before["gpu02"]["packages"]} ^ {*after["gpu02"]["packages"]}
    assert {line.split()[0] for line in moved} == {MOVED[2]}
    lab.unchanged()


@pytest.mark.proves("status", "`status` shows who drained a node, operator or health check, and why.")
def test_who_drained_a_node_is_told(lab: TestLab) -> None:
    lab.root(
        "head1", "scontrol update NodeName=gpu01 State=DRAIN Reason='new fan'; slurm-drain health --out gpu01,gpu02"
    )
    try:
        page = clusterctl("status", str(lab.inventory))
        assert page.returncode == 4
        assert "gpu01: drained by an operator (root): new fan" in page.stdout
        assert "gpu01, gpu02: drained by health: see there" in page.stdout
    finally:
        lab.root("head1", "slurm-drain health --in gpu01,gpu02; scontrol update NodeName=gpu01 State=RESUME")


@pytest.mark.proves("status", "`status --watch` shows new drift until Ctrl-C, then exits with 0.")
def test_it_is_drawn_again_until_ctrl_c(lab: TestLab) -> None:
    """On a terminal; the second page shows what changed after the first."""
    marker = "/etc/hosts"
    controller, terminal = pty.openpty()
    # Who starts the tests in the background of a shell hands down that SIGINT is ignored.
    argv = ["env", "--default-signal=INT", "clusterctl", "status", "--watch", "1", str(lab.inventory)]
    with subprocess.Popen(argv, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True) as process:
        os.close(terminal)
        seen, changed, deadline = b"", False, time.monotonic() + 60
        while marker.encode() not in seen and time.monotonic() < deadline:
            if select.select([controller], [], [], 1)[0]:
                seen += os.read(controller, 1 << 16)
            if b"Ctrl-C ends" in seen and not changed:
                lab.root("gpu01", "echo '# by hand' >> /etc/hosts")
                changed = True
        process.send_signal(signal.SIGINT)
        while select.select([controller], [], [], 5)[0]:  # it must not wait for us to read
            try:
                seen += os.read(controller, 1 << 16)
            except OSError:
                break
        assert process.wait(10) == 0
    os.close(controller)
    assert marker.encode() in seen
    lab.root("gpu01", "sed -i '$d' /etc/hosts")


@pytest.mark.proves("status", "With a dead worker `status` still shows services and drift of the others.")
def test_a_dead_worker_hides_nothing_of_the_rest(lab: TestLab) -> None:
    podman("stop", "--time", "0", f"clusterctl-{lab.name}-gpu02")
    lab.root("gpu01", "chmod 0600 /etc/hosts")
    try:
        document = lab.run("status", expect=4)
    finally:
        lab.root("gpu01", "chmod 0644 /etc/hosts")
        lab.up()
    nodes = {node["name"]: node for node in document["nodes"]}
    assert "gpu02" in nodes
    assert nodes["gpu02"]["problem"]
    assert list(drift(document)) == [("gpu01", "base", "file", "/etc/hosts")]
    assert set(nodes["head1"]["services"].values()) == {"active"}
    assert set(document["slurm"]["nodes"]) == {"gpu01", "gpu02"}


@pytest.mark.proves("logs", "`logs` and `status` show that a run ended in preflight.")
def test_a_run_that_ended_in_preflight_is_told_from_one_that_ran(lab: TestLab) -> None:
    lab.root("gpu01", "mv /usr/bin/python3 /usr/bin/python3.aside")
    try:
        lab.run("plan bootstrap", "--limit", "gpu01", expect=3)
    finally:
        podman("exec", f"clusterctl-{lab.name}-gpu01", "mv", "/usr/bin/python3.aside", "/usr/bin/python3")
    past = lab.run("logs")["runs"]
    ended = [(run["verb"], run["check"], run["limit"], run["exit_code"]) for run in past]
    assert ended[:2] == [("plan", True, "gpu01", 3), ("bootstrap", False, None, 0)]
    told = "plan bootstrap --limit gpu01, .* nodes were not ready, nothing was changed"
    assert re.search(told, clusterctl("status", str(lab.inventory)).stdout)
    assert "gpu01: python" in clusterctl("logs", str(lab.inventory), "last").stdout
    assert Path(lab.run("logs", past[1]["run"])["log"]).is_file()
