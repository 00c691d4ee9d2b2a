"""Sessions of a user on workers, by SSH from this machine with a key of her own."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests import programs
from tests.cluster.lab import ALICE, SSH_LIMIT, TestLab, podman
from tests.faults.injury import container


def new_key(folder: Path) -> Path:
    """Make a key pair in a folder; return the private key's file, beside which the public one is."""
    path = folder / "key"
    programs.output_of(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], 60)
    return path


def key_of_alice(lab: TestLab, folder: Path, nodes: Sequence[str]) -> Path:
    """Return a key that alice has let in on these workers by a job of hers, which no rule keeps a user from."""
    path = new_key(folder)
    script = f"mkdir -p -m 700 ~/.ssh; echo '{Path(f'{path}.pub').read_text().strip()}' >> ~/.ssh/authorized_keys"
    for node in nodes:
        lab.ssh("head1", *ALICE, "srun", f"--nodelist={node}", "--chdir=/", "sh", "-eu", "-s", stdin=script)
    return path


def alice(lab: TestLab, key: Path, node: str, command: str) -> "subprocess.CompletedProcess[str]":
    """Run a command on a node as alice, by SSH with that key."""
    return session(lab, key, "alice", node, command)


def session(lab: TestLab, key: Path, user: str, node: str, command: str) -> "subprocess.CompletedProcess[str]":
    """Run a command on a node as a user, by SSH with a key."""
    known = lab.inventory.parent / "known_hosts"
    options = ("IdentitiesOnly=yes", "BatchMode=yes", "StrictHostKeyChecking=yes", f"UserKnownHostsFile={known}")
    shown = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    address = podman("inspect", "--format", shown, container(lab, node))
    argv = ["ssh", "-F", "none", "-q", "-i", str(key), *(word for option in options for word in ("-o", option))]
    return programs.call([*argv, f"{user}@{address.strip()}", command], SSH_LIMIT)
