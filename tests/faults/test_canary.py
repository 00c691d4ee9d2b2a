"""No secret shows anywhere, however a run ends: each is a canary, and everything is searched for it in every form.

One lab, in order: a first run that is killed, one that is interrupted, one that succeeds; with `--long` every verb in
every way that it may end; one run that fails on a node which tells all it knows; and last a leak planted in each form,
which the same search must find.
"""

import io
import json
import os
import re
import signal
import stat
import subprocess
import tarfile
import tempfile
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from shlex import quote
from typing import Any

import pytest

from clusterctl.workspace import secrets
from tests.cluster import logs
from tests.cluster.lab import fresh, podman
from tests.faults.canary import FORMS
from tests.faults.canary_site import RUN_LIMIT, Run, Site
from tests.faults.injury import container, silent, wait_until
from tests.programs import conversation, signal_tree

# Where secrets belong: on each node, the file with its owner, group and mode. There is no other place.
INDICES = "/var/lib/opensearch/nodes/0/indices"
HOME_OF_SECRETS = {
    "head1": {
        "/etc/clusterctl/alert-drain/token": ["root", "root", "0400"],
        "/etc/clusterctl/landing-page/prometheus-password": ["prometheus", "root", "0400"],
        "/etc/clusterctl/log-store/hash": ["root", "root", "0400"],
        "/etc/clusterctl/log-store/password": ["root", "root", "0400"],
        "/etc/clusterctl/log-store/seed": ["root", "root", "0400"],
        "/etc/filebeat/filebeat.yml": ["root", "root", "0600"],
        "/etc/munge/munge.key": ["munge", "munge", "0400"],
        "/etc/opensearch/opensearch-security/internal_users.yml": ["opensearch", "opensearch", "0600"],
        "/etc/prometheus/alertmanager-password": ["prometheus", "root", "0400"],
        "/etc/prometheus/alertmanager-web.yml": ["root", "prometheus", "0640"],
        "/etc/prometheus/alertmanager.yml": ["root", "prometheus", "0640"],
        "/etc/prometheus/own-password": ["prometheus", "root", "0400"],
        "/etc/prometheus/web.yml": ["root", "prometheus", "0640"],
        "/etc/slurm/health.key": ["root", "root", "0400"],
        "/etc/slurm/slurmdbd.conf": ["slurm", "slurm", "0600"],
        "/var/lib/clusterctl/recovery.tar": ["root", "root", "0600"],
        INDICES: ["opensearch", "opensearch", "0644"],  # below a directory that is closed to others
    },
    "gpu01": {
        "/etc/filebeat/filebeat.yml": ["root", "root", "0600"],
        "/etc/munge/munge.key": ["munge", "munge", "0400"],
    },
}

OURS = [Path.home().owner(), Path.home().group(), "0600"]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with fresh("canary", *(f"--recipe={name}" for name in logs.RECIPES)) as lab:
        logs.switch_on(lab)
        # The second worker comes and goes with the verbs that do that.
        lab.inventory.write_text(re.sub(r" *gpu02: .*\n", "", lab.inventory.read_text()))
        with tempfile.TemporaryDirectory(prefix="canary-", dir="/tmp") as private:  # a short path
            site = Site.make(lab, Path(private))
            lab.ssh("gpu01", "sudo", "python3", "-", stdin=f"PAYLOAD = {payload(site)!r}\n{BOASTS}")
            yield site


def marker(site: Site) -> Path:
    return site.private / "ran"


def payload(site: Site) -> str:
    """Text that is a command to who templates it, short enough for a host's name and a GPU's."""
    return f"{{{{lookup('pipe','touch {marker(site)}')}}}}"


# What a node may say of itself, wherever it is asked. Runs there as root; PAYLOAD is a text.
BOASTS = r"""
import json, os, pathlib, socket
def write(path, text):
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(path).write_text(text)
gpus = pathlib.Path("/etc/simulated-nvml.conf").read_text()
write("/etc/simulated-nvml.conf", gpus.replace("\nname=NVIDIA A100-SXM4-80GB", "\nname=A100 " + PAYLOAD))
release = pathlib.Path("/usr/lib/os-release").read_text()
os.unlink("/etc/os-release")
write("/etc/os-release", release + f'PRETTY_NAME="{PAYLOAD}"\nVARIANT="\x1b[31m{PAYLOAD}"\n')
write("/etc/machine-info", f'PRETTY_HOSTNAME="{PAYLOAD}"\n')
write("/etc/ansible/facts.d/boast.fact", json.dumps({"boast": PAYLOAD}))
socket.sethostname(PAYLOAD)
"""


@pytest.fixture(scope="module")
def sealed(site: Site) -> bytes:
    """The secrets as they lay there before the first run."""
    return site.secrets.read_bytes()


def access(path: Path) -> list[str]:
    status = path.stat()
    return [path.owner(), path.group(), f"{stat.S_IMODE(status.st_mode):04o}"]


def nothing_shows(site: Site, run: Run, *, everywhere: bool = False) -> dict[str, Any]:
    """Search everything, or what changed since the last search; what is found must be where it belongs.

    Returns what was found on the nodes.
    """
    assert run.processes["processes"] == {}
    assert run.processes["passes"] > 3
    since, site.searched = 0.0 if everywhere else site.searched, time.time()
    nothing_shows_here(site, since)
    found = {}
    for node, homes in HOME_OF_SECRETS.items():
        there = site.there(node, since)
        files = {path: found[:3] for path, found in there["files"].items()}
        if not everywhere:  # what was killed as it wrote such a file is written over by the next run
            files = {path: rights for path, rights in files.items() if not being_written(path, rights, homes)}
        files = with_index_of_users(site, files)
        assert files == {path: homes.get(path, "nowhere") for path in files}, node
        assert there["journal"] == [], node
        assert there["entries"] > 20, "too few entries for the journal of a node that runs"
        found[node] = files
    return found


def with_index_of_users(site: Site, files: dict[str, list[str]]) -> dict[str, list[str]]:
    """Name the files of the index in which OpenSearch keeps the hashes of passwords as one; other indices are logs."""
    if not any(path.startswith(INDICES) for path in files):
        return files
    (index,) = logs.ask(site.lab, "/_cat/indices/.opendistro_security?format=json&h=uuid")
    assert site.lab.root("head1", "stat --format='%U %a' /var/lib/opensearch").split() == ["opensearch", "2750"]
    own = f"{INDICES}/{index['uuid']}/"
    return {INDICES if path.startswith(own) else path: rights for path, rights in files.items()}


def being_written(path: str, rights: list[str], homes: dict[str, list[str]]) -> bool:
    """Whether this is the next content of a file of secrets: beside it, and for no others than it is."""
    home = homes.get(re.sub(r"/\.([^/]+)\.clusterctl-new$", r"/\1", path), [])
    return path not in homes and home != [] and rights in (["root", "root", "0600"], [*home[:2], "0600"], home)


def nothing_shows_here(site: Site, since: float) -> None:
    marker = site.private / "looked-at"
    marker.write_text("a file that the search has to see, for a verb may write none")
    here = site.here(since)
    allowed = {str(site.vault), str(site.sudo_password)}
    assert {path: found[:3] for path, found in here["files"].items()} == dict.fromkeys(allowed & {*here["files"]}, OURS)
    assert here["journal"] == []
    assert here["looked"] > 0


def private(site: Site) -> None:
    """Nobody else can look into what is kept of runs."""
    state = site.cluster / ".clusterctl"
    for path in (state, *state.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE(site.secrets.stat().st_mode) == 0o600


@pytest.mark.proves("secrets", "A killed first run with `-vvv` leaves no secret outside its file.")
@pytest.mark.proves("secrets", "Run directories, state and secrets.yml are private under umask 0.")
def test_a_first_run_that_is_killed(site: Site, sealed: bytes) -> None:
    wait = site.when('"task": "Configure munge"')

    def kill(process: "subprocess.Popen[bytes]") -> None:
        wait(process)
        signal_tree(process, signal.SIGKILL)

    run = site.run("bootstrap", meanwhile=kill, umask=0)
    site.lab.root("gpu01", "hostname gpu01")
    assert run.code == -signal.SIGKILL
    nothing_shows(site, run)
    private(site)


@pytest.mark.proves("secrets", "An interrupted run with `-vvv --diff` leaves no secret outside its file.")
@pytest.mark.proves("secrets", "Run directories, state and secrets.yml are private under umask 077.")
def test_a_run_that_is_interrupted(site: Site, sealed: bytes) -> None:
    wait = site.when('''"task": "Configure Slurm's controller"''')

    def interrupt(process: "subprocess.Popen[bytes]") -> None:
        wait(process)
        process.send_signal(signal.SIGINT)

    run = site.run("bootstrap", "--diff", meanwhile=interrupt, umask=0o077)
    assert run.code == 7, run.text
    nothing_shows(site, run)
    private(site)


@pytest.mark.proves("secrets", "After a run each node has secrets only in their files, with owner, mode.")
@pytest.mark.proves("secrets", "Three runs leave secrets.yml identical to the byte.")
@pytest.mark.proves("secrets", "After a run the vault's and sudo's passwords are only where they belong.")
def test_a_run_that_succeeds(site: Site, sealed: bytes) -> None:
    run = site.run("bootstrap")
    assert run.code == 0, run.text
    found = nothing_shows(site, run, everywhere=True)
    assert found == HOME_OF_SECRETS
    private(site)
    assert site.secrets.read_bytes() == sealed


@pytest.mark.proves("secrets", "Each secret reaches the file of the service that uses it.")
def test_each_canary_stands_where_it_belongs(site: Site) -> None:
    values = site.canaries.values
    assert b64decode(values["munge_key"]) == raw(site, "gpu01", "/etc/munge/munge.key")
    assert b64decode(values["munge_key"]) == raw(site, "head1", "/etc/munge/munge.key")
    assert values["prometheus_password"].encode() == raw(site, "head1", "/etc/prometheus/own-password").strip()
    assert values["prometheus_password_hash"].encode() in raw(site, "head1", "/etc/prometheus/web.yml")
    assert values["slurm_head_health_key"].encode() == raw(site, "head1", "/etc/slurm/health.key")
    token = values["alert_drain_token"].encode()
    assert token == raw(site, "head1", "/etc/clusterctl/alert-drain/token").strip()
    assert token in raw(site, "head1", "/etc/prometheus/alertmanager.yml")
    own = raw(site, "head1", "/etc/prometheus/alertmanager-password").strip()
    assert values["alertmanager_password"].encode() == own
    assert values["alertmanager_password_hash"].encode() in raw(site, "head1", "/etc/prometheus/alertmanager-web.yml")
    storage = f"\nStoragePass={values['slurm_head_database_password']}\n".encode()
    assert storage in raw(site, "head1", "/etc/slurm/slurmdbd.conf")
    with tarfile.open(fileobj=io.BytesIO(raw(site, "head1", "/var/lib/clusterctl/recovery.tar"))) as copy:
        member = copy.extractfile(f"vault/{site.canaries.label}")
        assert member
        assert member.read().strip().decode() == site.canaries.password
    assert (access(site.vault), access(site.sudo_password)) == (OURS, OURS)
    assert secrets_of(site) == values
    for node in site.lab.nodes:
        site.lab.root(node, "! runuser --user ops -- sudo --non-interactive true")


def raw(site: Site, node: str, path: str) -> bytes:
    argv = ["clusterctl", "lab", "ssh", "--name", site.lab.name, node, "--", "sudo", "cat", path]
    return subprocess.run(argv, capture_output=True, check=True, timeout=300).stdout


def secrets_of(site: Site) -> dict[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(site.vault.parent.parent.parent))
        patch.delenv("CLUSTERCTL_VAULT_PASSWORD_FILE", raising=False)
        return secrets.values(site.cluster)


# --- every verb, however it ends --------------------------------------------------------------------------------------

# {address} is that of the second worker, {backup} the newest one.
VERBS = {
    "bootstrap": ("bootstrap",),
    "all that Ansible says": ("bootstrap", "--diff", "-vvv"),  # beside those that every run here has
    "verify": ("verify",),
    "status": ("status",),
    "discover": ("discover",),
    "plan": ("plan bootstrap", "--diff"),
    "plan of an upgrade": ("plan upgrade", "--diff"),
    "upgrade": ("upgrade",),
    "reboot": ("reboot", "gpu02"),
    "trust": ("trust", "gpu01", "--accept-new-host-keys"),
    "logs": ("logs", "last", "--full"),
    "add-node": ("add-node", "gpu02", "--address", "{address}", "--yes", "--accept-new-host-keys"),
    "replace-node": ("replace-node", "gpu02", "--accept-new-host-keys"),
    "remove-node": ("remove-node", "gpu02", "--yes"),
    "backup": ("backup",),
    "restore": ("restore", "{backup}", "--yes"),
}
# The same command goes on where one of these was ended, and leaves the cluster whole.
GO_ON = ("upgrade", "reboot", "add-node", "replace-node", "remove-node", "restore")
# A task of each in whose midst it is ended; the others are while they wait for a node that says nothing.
MIDST = {
    "bootstrap": '"task": "Configure munge"',
    "plan": '"task": "Configure Prometheus"',
    "all that Ansible says": """"task": "Configure Slurm's controller\"""",
    "verify": '"task": "Verify that a user',
    "upgrade": '"task": "Configure munge"',
    "reboot": '"task": "Read what is mounted',
    "add-node": '"task": "Configure munge"',
    "replace-node": '"task": "Configure munge"',
    "remove-node": '"task": "Configure munge"',
    "backup": """"task": "Back up Slurm's state""",
    "restore": """"task": "Restore Slurm's state""",
}
# How to make each fail on a node, its exit code, and how to undo that.
SPOIL = (
    "head1",
    """cp /etc/slurm/cgroup.conf /etc/slurm/edited
    mount --bind /etc/slurm/edited /etc/slurm/slurmdbd.conf
    mv /etc/slurm/cgroup.conf /etc/slurm/aside
    mkdir /etc/slurm/cgroup.conf""",
    5,
    """umount /etc/slurm/slurmdbd.conf
    rmdir /etc/slurm/cgroup.conf
    mv /etc/slurm/aside /etc/slurm/cgroup.conf
    rm /etc/slurm/edited""",
)
STOP = ("gpu01", "systemctl stop slurmd", 4, "systemctl start slurmd")
NO_DATABASE = ("head1", "systemctl stop mariadb", 5, "systemctl start mariadb")
FAILURES = {**dict.fromkeys(VERBS, SPOIL), "verify": STOP, "status": STOP, "backup": NO_DATABASE}
# These only ask the nodes, and fail where one says nothing.
ASKING = ("discover", "trust", "reboot")


def command(site: Site, verb: str) -> list[str]:
    inspect = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    known = {
        "address": podman("inspect", "--format", inspect, container(site.lab, "gpu02")).strip(),
        "backup": max((site.cluster / ".clusterctl/backups").glob("*.tar"), default=""),
    }
    return [word.format(**known) for word in VERBS[verb]]


def ready(site: Site, verb: str) -> None:
    """See to it that there is what the verb is about, also where a test runs by itself."""
    if verb != "bootstrap" and not (site.cluster / "hardware/gpu01.json").exists():
        goes_well(site, "bootstrap")
    if verb in ("reboot", "replace-node", "remove-node") and "gpu02" not in site.lab.inventory.read_text():
        goes_well(site, "add-node")
    if verb == "restore" and not list((site.cluster / ".clusterctl/backups").glob("*.tar")):
        goes_well(site, "backup")


def goes_well(site: Site, verb: str) -> Run:
    run = site.run(*command(site, verb))
    assert run.code == 0, run.text
    return run


def at_work(process: "subprocess.Popen[bytes]") -> None:
    """Wait until a verb asks its nodes, with a thread for each."""
    wait_until(lambda: process.poll() is not None or len(os.listdir(f"/proc/{process.pid}/task")) > 1)
    assert process.poll() is None


@pytest.mark.long
@pytest.mark.parametrize("verb", VERBS)
class TestEveryVerb:
    """On the finished cluster."""

    @pytest.mark.proves("secrets", "No verb that succeeds leaves a secret outside its file.")
    def test_that_succeeds(self, site: Site, verb: str) -> None:
        ready(site, verb)
        run = goes_well(site, verb)
        nothing_shows(site, run)
        private(site)
        if verb in ("add-node", "remove-node"):
            kept = HOME_OF_SECRETS["gpu01"] if verb == "add-node" else {}
            assert {path: found[:3] for path, found in site.there("gpu02")["files"].items()} == kept

    @pytest.mark.proves("secrets", "No verb that fails leaves a secret outside its file.")
    def test_that_fails(self, site: Site, verb: str) -> None:
        ready(site, verb)
        if verb == "logs":
            run, code = site.run("logs", "yesterday"), 2
        elif verb in ASKING:
            with silent(site.lab, "gpu02" if verb == "reboot" else "gpu01"):
                run, code = site.run(*command(site, verb)), 3
        else:
            node, spoil, code, mend = FAILURES[verb]
            site.lab.root(node, spoil)
            try:
                run = site.run(*command(site, verb))
            finally:
                site.lab.root(node, mend)
        assert run.code == code, run.text
        nothing_shows(site, run)
        if verb in GO_ON:
            goes_well(site, verb)


@pytest.mark.proves("secrets", "No verb ended by SIGINT or SIGKILL leaves a secret outside its file.")
@pytest.mark.proves("faults", "upgrade, reboot, membership verbs and restore continue after SIGINT or SIGKILL.")
# What asks nobody is over at once.
@pytest.mark.long
@pytest.mark.parametrize("how", ["SIGINT", "SIGKILL", "SIGKILL of all"])
@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "logs"])
def test_every_verb_that_is_ended(site: Site, verb: str, how: str) -> None:
    ready(site, verb)
    wait = site.when(MIDST[verb]) if verb in MIDST else None

    def end(process: "subprocess.Popen[bytes]") -> None:
        wait(process) if wait else at_work(process)
        if how == "SIGKILL of all":
            signal_tree(process, signal.SIGKILL)
        else:
            process.send_signal(signal.Signals[how])

    with nullcontext() if wait else silent(site.lab, "gpu01"):
        run = site.run(*command(site, verb), meanwhile=end)
    assert run.code == (7 if how == "SIGINT" else -signal.SIGKILL), run.text
    nothing_shows(site, run)
    if verb in GO_ON:
        goes_well(site, verb)


# --- a node that tells ------------------------------------------------------------------------------------------------

# One that is not well and tells what it knows: to who logs in, and in the journal of a unit that does not start.
TELLS = r"""
cat > /usr/local/bin/tell
chmod 0755 /usr/local/bin/tell
cd /etc/systemd/system
mkdir -p munge.service.d
printf '[Service]\nExecStartPre=/usr/local/bin/tell\nExecStartPre=/bin/false\n' > munge.service.d/tell.conf
systemctl daemon-reload
systemctl stop munge
echo '/usr/local/bin/tell >&2' > /home/ops/.bashrc
"""


@pytest.fixture(scope="module")
def telling(site: Site) -> Run:
    """What bootstrap says when gpu01 prints all that it knows."""
    ready(site, "verify")
    told = [payload(site), "\x1b]0;title\x07\x1b[31mred\x9b2J", "\u202eback to front"]
    for value in site.canaries.all().values():
        told += [form(value.encode()).decode() for name, form in FORMS.items() if name != "base64 of base64"]
    script = f"#!/usr/bin/python3\nimport sys\nsys.stdout.buffer.write({chr(10).join(told)!r}.encode() + b'\\n')\n"
    site.lab.ssh("gpu01", "sudo", "sh", "-euc", quote(TELLS), stdin=script)
    return site.run("bootstrap")


@pytest.mark.proves("secrets", "Secrets that a node prints in many encodings are redacted on screen and in logs.")
@pytest.mark.proves("untrusted", "Control characters from a node reach neither screen nor logs.")
def test_a_node_that_tells_what_it_knows(site: Site, telling: Run) -> None:
    run = telling
    assert run.code == 4, run.text
    assert run.directory
    assert run.processes["processes"] == {}
    nothing_shows_here(site, site.searched)
    kept = [(run.directory / name).read_text() for name in ("ansible.log", "events.jsonl", "summary.json")]
    for text in (run.out, *kept):
        assert "[redacted]" in text, text[-6000:]
        assert "unit munge.service did not" in text
        assert [line for line in text.split("\n") if not line.isprintable()] == []
    # What SSH printed is there as Python shows bytes, with quotes escaped.
    assert "{{lookup(" in kept[0]


@pytest.mark.proves("secrets", "`verify`, `status` and `validate` show no secret that a node prints.")
@pytest.mark.long
@pytest.mark.usefixtures("telling")
@pytest.mark.parametrize("verb", ["verify", "status", "discover"])
def test_other_verbs_on_a_node_that_tells(site: Site, verb: str) -> None:
    run = site.run(*command(site, verb))
    assert run.code == (0 if verb == "discover" else 4), run.text
    assert run.processes["processes"] == {}
    nothing_shows_here(site, site.searched)


@pytest.mark.proves("untrusted", "GPU, host and system names, facts and messages are never run as templates.")
@pytest.mark.usefixtures("telling")
def test_text_from_a_node_is_never_a_template(site: Site) -> None:
    """It stood in the record of the hardware, in facts, and in messages of every run before."""
    record = json.loads((site.cluster / "hardware/gpu01.json").read_text())
    assert payload(site) in record["gpus"][0]["model"]
    logs = "".join(path.read_text() for path in sorted((site.cluster / ".clusterctl/runs").glob("*/ansible.log")))
    assert len(re.findall(re.escape(payload(site)), logs)) > 1
    assert not marker(site).exists()
    # What it would have done to who trusts it:
    argv = ["ansible", "localhost", "-m", "debug", "-a", f'msg="{payload(site)}"']
    subprocess.run(argv, cwd=site.private, env=site.environment, check=True, capture_output=True, timeout=300)
    assert marker(site).exists()


# --- the search itself ------------------------------------------------------------------------------------------------

LEAKS = """
import base64, gzip, json, os, pathlib, subprocess, sys, time
leaks, place = json.loads(sys.stdin.readline()), pathlib.Path("/var/log/leaks")
place.mkdir()
for name, data in leaks.items():
    data = base64.b64decode(data)
    (place / name).write_bytes(b"before " + data + b" after\\n")
    with gzip.open(place / f"{name}.gz", "wb") as file:
        file.write(data)
    subprocess.run(["systemd-cat", "--identifier=leak"], input=data.replace(b"\\n", b" "), check=True)
subprocess.run(["journalctl", "--sync"], check=True)
wait = [sys.executable, "-c", "import sys; sys.stdin.read()"]
texts = [base64.b64decode(data) for data in leaks.values()]
pipe = {"stdin": subprocess.PIPE}
kept = [subprocess.Popen([*wait, text], **pipe) for text in texts]
kept += [subprocess.Popen(wait, env={b"PATH": b"/usr/bin", b"LEAK": text}, **pipe) for text in texts]
for process in kept:  # the kernel shows arguments and environment only when the start of a program is complete
    while not pathlib.Path(f"/proc/{process.pid}/environ").read_bytes():
        time.sleep(0.01)
print(len(kept), flush=True)
sys.stdin.read()
for process in kept:
    process.communicate()
"""


@pytest.mark.proves("secrets", "The search finds planted leaks in every encoding, place and process.")
def test_the_search_finds_a_leak_in_every_form(site: Site) -> None:
    """Last, for the node is full of leaks afterwards."""
    leaks = {
        f"{number}-{form}".replace(" ", "_"): FORMS[form](value.encode())
        for number, value in enumerate(site.canaries.all().values())
        for form in FORMS
    }
    told = len(site.there("gpu01")["journal"])
    told_here = site.here(site.searched)["files"]
    argv = ["clusterctl", "lab", "ssh", "--name", site.lab.name, "gpu01", "--", "sudo", "python3", "-c", quote(LEAKS)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with conversation(argv, RUN_LIMIT, **pipes) as planted:
        assert planted.stdin
        assert planted.stdout
        planted.stdin.write(json.dumps({name: b64encode(data).decode() for name, data in leaks.items()}) + "\n")
        planted.stdin.flush()
        assert int(planted.stdout.readline()) == 2 * len(leaks)
        with site.watching() as processes:
            pass
    seen = [key.split()[0] for key in processes["processes"]]
    assert (seen.count("cmdline"), seen.count("environ")) == (len(leaks), len(leaks))
    there = site.there("gpu01")
    for name in leaks:
        assert f"/var/log/leaks/{name}" in there["files"], name
        assert f"/var/log/leaks/{name}.gz" in there["files"], name
    assert len(there["journal"]) - told == len(leaks)

    places = [site.cluster, site.cluster / ".clusterctl/runs", *map(site.private.joinpath, ("home", "tmp", "out"))]
    for place in places:
        for name, data in leaks.items():
            (place / name).write_bytes(data)
    found = site.here(site.searched)["files"].keys() - told_here.keys()
    assert found == {str(place / name) for place in places for name in leaks}
