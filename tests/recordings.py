"""Record the terminal output that docs/operations.md shows, from a lab. Started by scripts/recordings.

A code block of the page that begins with ```console has one command, and below it what the command printed. Each is
listed here, in the order in which they are run; `python -m tests.recordings` runs them and writes the page again.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from clusterctl.lab.lab import Lab
from clusterctl.lab.podman import run_as_root
from tests.labs import REPOSITORY
from tests.pictures import lines, screen

PAGE = REPOSITORY / "docs/operations.md"
LAB = "ops"
BASE = REPOSITORY / ".cache/recordings"
BLOCK = re.compile(r"(?ms)^```console\n\$ (?P<command>[^\n]*)\n(?P<output>.*?)^```$")
COLUMNS = 100
SHOWN_BASE, SHOWN_HOME, SHOWN_NETWORK = "/srv", "/home/admin", "10.0.0."


class Site:
    """The lab, the cluster's directory, and how its paths and addresses are shown."""

    def __init__(self) -> None:
        self.directory, self.home = BASE / "aurora", BASE / "home"
        self.lab_inventory = Lab(LAB).inventory
        self.later = ExitStack()

    @property
    def network(self) -> str:
        if not self.lab_inventory.exists():  # before the lab
            return SHOWN_NETWORK
        found = re.search(r"ansible_host: (\d+\.\d+\.\d+\.)", self.lab_inventory.read_text())
        assert found, self.lab_inventory
        return found[1]

    def environment(self, words: str) -> dict[str, str]:
        """Return the variables of a command: the cluster has a home of its own, labs stay where labs are."""
        home = {} if words.startswith("clusterctl lab ") else {"HOME": str(self.home)}
        return {**home, "COLUMNS": str(COLUMNS), "LC_ALL": "C.UTF-8"}

    def typed(self, words: str) -> str:
        """Return a command of the page as it is run."""
        return words.replace(SHOWN_NETWORK, self.network).replace(SHOWN_BASE, str(BASE))

    def shown(self, text: str) -> str:
        """Return output as the page shows it: columns keep their place behind a shorter address."""
        for theirs, ours in {str(self.home): SHOWN_HOME, str(BASE): SHOWN_BASE, str(Path.home()): SHOWN_HOME}.items():
            text = text.replace(theirs, ours)
        blanks = " " * (len(self.network) - len(SHOWN_NETWORK))
        text = re.sub(rf"{re.escape(self.network)}(\d+)(?=  )", rf"{SHOWN_NETWORK}\1{blanks}", text)
        text = re.sub(r"of \S+ on \S+ \(process", "of admin on controller (process", text)
        return text.replace(self.network, SHOWN_NETWORK)

    def run(self, words: str, *, background: bool = False) -> "subprocess.Popen[bytes]":
        """Run a command line in the cluster's directory, its output unseen."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        process = subprocess.Popen(
            ["bash", "-c", self.typed(words)],
            cwd=self.directory if self.directory.exists() else BASE,
            env={**os.environ, **self.environment(words), "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if not background:
            process.wait()
        return process


Step = Callable[[Site], object]


def on(node: str, script: str) -> Step:
    """Run a script as root of a node, whether SSH works there or not."""
    return lambda site: run_as_root(["podman", "exec", f"clusterctl-{LAB}-{node}", "sh", "-ec", script])


def run(words: str) -> Step:
    """Run a command that the page does not show."""
    return lambda site: site.run(words)


def inventory(old: str, new: str) -> Step:
    """Replace text of the inventory."""

    def edit(site: Site) -> None:
        path = site.directory / "inventory.yaml"
        text = path.read_text(encoding="utf-8")
        assert old in text, old
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    return edit


@dataclass(frozen=True)
class Recording:
    """A command of the page: what comes before it and after, its exit code, and what the page shows of it.

    `answers` are typed, one at each question. Each of `cuts` has two patterns: lines after the first that matches one,
    up to the next that matches the other, are shown as "...".
    """

    command: str
    exit_code: int = 0
    before: Sequence[Step] = ()
    after: Sequence[Step] = ()
    answers: Sequence[str] = ()
    cuts: Sequence[tuple[str, str]] = ()
    where: str = "aurora"


def _prepare(site: Site) -> None:
    """Write into the new inventory what a lab needs: its key, its cache of packages, a user."""
    names = (
        "cluster_networks",
        "cluster_package_proxy",
        "ansible_ssh_private_key_file",
        "base_security_updates",
        "slurm_head_confine",
    )
    theirs = site.lab_inventory.read_text(encoding="utf-8").splitlines()
    kept = [line for line in theirs if line.strip().split(":")[0] in names]
    kept += ["    users_accounts:", "      - {name: alice, uid: 5001}"]
    inventory("    ansible_user: admin\n", "    ansible_user: admin\n" + "\n".join(kept) + "\n")(site)


def _reinstall(site: Site) -> None:
    """Let gpu02 be an empty node with another host key."""
    run_as_root(["podman", "rm", "--force", "--volumes", "--time", "0", f"clusterctl-{LAB}-gpu02"])
    site.run(f"clusterctl lab up --name {LAB}")
    on("gpu02", _NEW_HOST_KEY)(site)


def _start_bootstrap(site: Site) -> None:
    process = site.run("clusterctl bootstrap", background=True)
    site.later.callback(process.wait)
    time.sleep(3)  # it starts, and locks the directory


def _wait(site: Site) -> None:
    site.later.close()


_NEW_HOST_KEY = """
cd /etc/ssh; mkdir -p /var/lib/first-keys; cp --archive --no-clobber ssh_host_* /var/lib/first-keys/
rm ssh_host_*; ssh-keygen -q -t ed25519 -N '' -f ssh_host_ed25519_key; systemctl restart ssh
"""
# A lab's node that starts again has the lab's key.
_FIRST_HOST_KEY = "cp --archive /var/lib/first-keys/* /etc/ssh/; systemctl restart ssh"
# A package of Debian's with a higher version and nothing else, in a source of the node's own.
_RAISE = r"""
mkdir -p /var/cache/site && cd /var/cache/site && apt-get -qq download %(package)s
dpkg-deb --raw-extract %(package)s_*.deb root && rm %(package)s_*.deb
sed -i 's/^Version: .*/&+lab1/' root/DEBIAN/control
dpkg-deb --root-owner-group --build root %(package)s.deb >/dev/null && rm -r root
(dpkg-deb --field %(package)s.deb; echo Filename: ./%(package)s.deb; stat -c 'Size: %%s' %(package)s.deb
sha256sum %(package)s.deb | sed 's/\([0-9a-f]*\).*/SHA256: \1/'; echo) >>Packages
echo 'deb [trusted=yes] file:/var/cache/site ./' >/etc/apt/sources.list.d/site.list
"""
_READY, _DONE = "nodes? ready in", "^(Done|Incomplete) "
_REMOVAL = (("^  @@", "^  - "), ("^  - ", "y/N"))
_UPGRADE = (
    ("^(Rehearse|Check mode)", "^    ~  package"),
    ("^    ~  package", "^  Reboots"),
    ("^  Jobs", "^  Backup"),
    ("^upgrade[^ ]* 1", "^upgrade[^ ]* 2"),
    ("^upgrade[^ ]* 2", _DONE),
    (_DONE, "^  Log"),
)
NODES = ("head1", "gpu01", "gpu02")


def _raised(package: str) -> list[Step]:
    return [on(node, _RAISE % {"package": package}) for node in NODES]


def job(node: str, seconds: int) -> Step:
    """Submit a job of alice to a node, and wait until it runs."""
    script = f"sudo -iu alice sbatch --quiet --nodelist={node} --gres=gpu:1 --wrap 'sleep {seconds}'; sleep 5"
    return on("head1", f"cd /; {script}")


CANCEL = on("head1", "scancel --user alice; sleep 3")

RECORDINGS = (
    Recording(
        "clusterctl init aurora --head head1=10.0.0.10 --worker gpu01=10.0.0.11 --worker gpu02=10.0.0.12 --user admin",
        where=".",
        after=[_prepare],
    ),
    Recording("clusterctl validate"),
    Recording(
        "clusterctl validate  # with mistakes in the inventory",
        exit_code=2,
        before=[
            inventory("slurm_workers:", "slurm_worker:"),
            inventory("    users_accounts:", "    cluster_timezon: Europe/Berlin\n    users_accounts:"),
        ],
        after=[
            inventory("slurm_worker:", "slurm_workers:"),
            inventory("    cluster_timezon: Europe/Berlin\n", ""),
        ],
    ),
    Recording("clusterctl discover", answers=["y"]),
    Recording(
        "clusterctl discover  # SSH on gpu02 does not run",
        exit_code=3,
        before=[on("gpu02", "systemctl stop ssh.socket ssh.service || systemctl stop ssh")],
        after=[on("gpu02", "systemctl start ssh")],
    ),
    Recording(
        "clusterctl bootstrap",
        cuts=[("^   ✓ slurm_head ", _DONE), (_DONE, "^  Open in a browser")],
    ),
    Recording("clusterctl bootstrap  # again", cuts=[(_READY, _DONE), (_DONE, "^  Log ")]),
    Recording("clusterctl verify"),
    Recording("clusterctl status"),
    Recording("clusterctl health"),
    Recording(
        "clusterctl bootstrap  # meanwhile, in another terminal",
        exit_code=6,
        before=[_start_bootstrap],
        after=[_wait],
    ),
    Recording(
        "clusterctl plan bootstrap  # after changes by hand on gpu02",
        exit_code=10,
        before=[on("gpu02", "echo >>/etc/munge/munge.key; systemctl disable --now chrony")],
        cuts=[(_READY, "^  base$")],
    ),
    Recording(
        "clusterctl status  # after changes by hand on gpu02",
        exit_code=4,
        before=[on("head1", "scontrol update nodename=gpu01 state=drain reason='fan is loud'")],
        after=[on("head1", "scontrol update nodename=gpu01 state=resume"), run("clusterctl bootstrap")],
    ),
    Recording(
        "clusterctl status  # slurmctld is stopped",
        exit_code=5,
        before=[on("head1", "systemctl stop slurmctld")],
        after=[on("head1", "systemctl start slurmctld")],
    ),
    Recording(
        "clusterctl bootstrap  # a file of gpu02 cannot be written",
        exit_code=4,
        before=[on("gpu02", "rm /etc/chrony/chrony.conf; mkdir /etc/chrony/chrony.conf")],
        cuts=[(_READY, "✗ gpu02"), ("✗ gpu02", _DONE)],
    ),
    Recording("clusterctl logs"),
    Recording(
        "clusterctl logs last",
        after=[on("gpu02", "rmdir /etc/chrony/chrony.conf"), run("clusterctl bootstrap")],
    ),
    Recording(
        "clusterctl verify  # slurmd of gpu02 is stopped",
        exit_code=4,
        before=[on("gpu02", "systemctl stop slurmd")],
        cuts=[(_READY, "✗ gpu02"), ("slurmd.service is inactive", "Hint")],
        after=[on("gpu02", "systemctl start slurmd"), run("clusterctl bootstrap")],
    ),
    Recording(
        "clusterctl health  # after XID 79 on gpu02",
        exit_code=4,
        before=[run(f"clusterctl lab fault --name {LAB} --gpu 1 gpu02 gpu-xid 79")],
        after=[run(f"clusterctl lab fault --name {LAB} gpu02 clear")],
    ),
    Recording("clusterctl health gpu02 --diagnose"),
    Recording(
        "clusterctl plan add-node gpu03 --address 10.0.0.13",
        exit_code=10,
        answers=["y"],
        before=[run(f"clusterctl lab up --name {LAB} --workers 3")],
        cuts=[
            ("^aurora", "^These"),
            (_READY, "^  base$"),
            ("unit dnsmasq", "^  prometheus$"),
            ("targets/", "^  Services"),
        ],
    ),
    Recording(
        "clusterctl add-node gpu03 --address 10.0.0.13",
        answers=["y", "y"],
        cuts=[
            ("^  @@", r"^  \+ "),
            (r"^  \+ ", "y/N"),
            (_READY, _DONE),
            (_DONE, "^  Changed"),
            (r"^    gpu03 .* files", "^  Log"),
        ],
    ),
    Recording(
        "clusterctl remove-node gpu03 --timeout 0.1",
        exit_code=4,
        answers=["y"],
        before=[job("gpu03", 3600)],
        cuts=_REMOVAL,
    ),
    Recording(
        "clusterctl remove-node gpu03",
        answers=["y"],
        before=[CANCEL],
        cuts=[*_REMOVAL, ("^Configure", "^Unregister"), ("^Clean", _DONE), (_DONE, "^  Changed")],
    ),
    Recording("clusterctl bootstrap  # gpu02 has another host key", exit_code=3, before=[_reinstall]),
    Recording(
        "clusterctl replace-node gpu02",
        answers=["y"],
        cuts=[("^Configure gpu02", _DONE), (_DONE, "^  Changed"), (r"^    gpu02 .* files", "^  Log")],
    ),
    Recording(
        "clusterctl trust gpu02",
        answers=["y"],
        before=[on("gpu02", _NEW_HOST_KEY)],
        after=[on("gpu02", _FIRST_HOST_KEY), run("clusterctl trust inventory.yaml gpu02 --accept-new-host-keys")],
    ),
    Recording("clusterctl plan upgrade", exit_code=10, before=_raised("munge"), cuts=[(_READY, "^  munge$")]),
    Recording(
        "clusterctl upgrade --timeout 0.1  # a job runs on gpu01",
        exit_code=4,
        before=[job("gpu01", 3600)],
        cuts=[("^(Rehearse|Check mode)", "^  Jobs"), ("^  Jobs", "^  Backup"), ("^upgrade 1", "^upgrade 2")],
    ),
    Recording("clusterctl upgrade", before=[CANCEL], cuts=_UPGRADE),
    Recording("clusterctl upgrade --os", before=_raised("hostname"), cuts=_UPGRADE),
    Recording("clusterctl reboot gpu02"),
    Recording("clusterctl backup --to /srv/backups", before=[lambda site: (BASE / "backups").mkdir()]),
    Recording(
        "clusterctl restore /srv/backups/aurora-*.tar",
        answers=["y"],
        before=[job("gpu01", 3600)],
        cuts=[("y/N", _DONE), (_DONE, "^  Changed"), ("^    head1  1 database", "^  Log")],
    ),
    Recording("clusterctl secret show prometheus", exit_code=2),
    Recording("clusterctl secret authority", cuts=[("BEGIN", "END")]),
    Recording("clusterctl secret rotate prometheus_password", cuts=[(_READY, _DONE), (_DONE, "^  Changed")]),
    Recording("clusterctl lab status --name ops"),
    Recording("clusterctl docs"),
)


def record(site: Site, recording: Recording) -> tuple[str, int]:
    """Run one command with what comes before and after it; return what the page shows of it, and its exit code."""
    for step in recording.before:
        step(site)
    emulated, exit_code = screen(
        ["bash", "-c", site.typed(recording.command)],
        BASE / recording.where,
        columns=250,  # what is printed in one line stays one; COLUMNS says where the program wraps
        environment=site.environment(recording.command),
        answers=recording.answers,
    )
    shown = [site.shown(line.plain.rstrip()) for line in lines(emulated, 250)]
    for step in recording.after:
        step(site)
    end = [f"(exit code {exit_code})"] if exit_code else []
    return "\n".join([*abridged(shown, recording.cuts), *end]).strip("\n"), exit_code


def abridged(shown: Sequence[str], cuts: Sequence[tuple[str, str]]) -> list[str]:
    """Return lines without those that are cut out."""
    kept = list(shown)
    for after, before in cuts:
        begin = next((at for at, line in enumerate(kept) if re.search(after, line)), len(kept)) + 1
        end = next((at for at, line in enumerate(kept[begin:], begin) if re.search(before, line)), begin)
        if end > begin + 1:
            kept[begin:end] = ["..."]
    return kept


def written(text: str, outputs: Mapping[str, str]) -> str:
    """Return the page with the outputs of the commands that were recorded."""

    def block(match: re.Match[str]) -> str:
        command = match["command"]
        return f"```console\n$ {command}\n{outputs[command]}\n```" if command in outputs else match[0]

    return BLOCK.sub(block, text)


def main() -> int:
    """Make a lab, record its commands, write the page, and remove the lab."""
    parser = argparse.ArgumentParser(description="Record the terminal output that docs/operations.md shows.")
    parser.add_argument("text", nargs="*", help="record only commands with this text, on the lab that --keep left")
    parser.add_argument("--keep", action="store_true", help="keep the lab")
    given = parser.parse_args()
    site, unexpected = Site(), []
    wanted = [one for one in RECORDINGS if not given.text or any(text in one.command for text in given.text)]
    if not given.text:
        shutil.rmtree(BASE, ignore_errors=True)
        (BASE / "home").mkdir(parents=True)
        site.run(f"clusterctl lab up --name {LAB} --workers 2 --gpus 2")
    try:
        for recording in wanted:
            output, exit_code = record(site, recording)
            print(f"\n$ {recording.command}\n{output}", flush=True)
            if exit_code != recording.exit_code:
                unexpected.append(f"{recording.command}: exit code {exit_code}, expected {recording.exit_code}")
                continue
            page = written(PAGE.read_text(encoding="utf-8"), {recording.command: output})
            PAGE.write_text(page, encoding="utf-8")
    finally:
        if not given.keep:
            site.run(f"clusterctl lab down --name {LAB}")
            shutil.rmtree(BASE, ignore_errors=True)
    print(*unexpected, sep="\n", file=sys.stderr)
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
