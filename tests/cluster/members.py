"""A cluster whose workers come and go, and a hundred jobs that live through all that is done to it."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.cluster.lab import HERE, SSH_LIMIT, TestLab, fresh_as, podman
from tests.faults.injury import container, fails, gateway, wait_until
from tests.programs import output_of

# Each job says when it begins, then counts; it ends when its node may be emptied, and one that comes later at once.
JOB = r"""
echo begin >> /var/tmp/count.$SLURM_ARRAY_TASK_ID
until [ -e /var/tmp/enough ]; do echo x >> /var/tmp/count.$SLURM_ARRAY_TASK_ID; sleep 2; done
echo end >> /var/tmp/count.$SLURM_ARRAY_TASK_ID
"""
JOBS, AT_ONCE = 100, 50
# Fifty of them at a time on two nodes of few processors; and a worker may say nothing for long.
CROWDED = "slurm_head_partitions: [{name: main, default: true, options: {OverSubscribe: 'FORCE:40'}}]"
PATIENT = "slurm_head_conf_extra: {SlurmdTimeout: 3000}"
# A group below the workers, of the second one.
RACK = "rack1"
RACKS = f"      children:\n        {RACK}:\n          hosts:\n            gpu02: {{}}\n"

MONITORING = "    monitoring:\n"  # the group behind the workers in a lab's inventory


class Growing(TestLab):
    """A lab that has one worker more than its inventory, the last."""

    @property
    def last(self) -> str:
        return f"gpu{self.workers + 1:02}"

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
        """Start what is not there; the inventory never has the last node, and a host key that is there stays."""
        known = self.inventory.parent / "known_hosts"
        has_been_there = (self.inventory.parent / ".lab" / self.last).exists()
        kept = {path: path.read_text() for path in (self.inventory, *[known] * has_been_there) if path.exists()}
        TestLab(self.name, self.workers + 1).up(*options)
        kept = kept or {self.inventory: self.inventory.read_text().replace(self.line, "")}
        for path, text in kept.items():
            path.write_text(text)

    def inside(self, node: str, *argv: str, stdin: str = "") -> str:
        """Run a command in a node whose host key nobody believes any more."""
        command = ["podman", "exec", "--interactive", container(self, node), *argv]
        return output_of(command, SSH_LIMIT, input=stdin)

    def remains(self) -> Any:
        """The manifest of the last once it has left."""
        return json.loads(self.inside(self.last, "python3", "-", stdin=(HERE / "manifest.py").read_text()))

    def verb(self, name: str, *options: str, expect: int = 0) -> str:
        return fails(self, expect, *options, verb=name)

    @property
    def adding(self) -> tuple[str, ...]:
        """What add-node is given; a host key went with its node the last time."""
        return (self.last, "--address", self.address, "--yes", "--accept-new-host-keys")

    def add(self, *options: str) -> str:
        return self.verb("add-node", *self.adding, *options)


def crowd(lab: Growing) -> None:
    """Start the lab with its last worker, and bootstrap it for many jobs to a processor and packages of our own."""
    lab.up()
    text = lab.inventory.read_text()
    assert text.count(MONITORING) == 1
    lab.inventory.write_text(text.replace(MONITORING, RACKS + MONITORING))
    lab.declare("# Many jobs to a processor.", CROWDED, PATIENT, f"cluster_no_proxy: [{gateway(lab)}]")
    lab.run("bootstrap")


@contextmanager
def growing(purpose: str, workers: int) -> Iterator[Growing]:
    """A lab of its own for a purpose, bootstrapped."""
    with fresh_as(Growing, purpose, workers=workers) as lab:
        crowd(lab)
        yield lab


def states(lab: TestLab, number: str) -> list[str]:
    """What accounting says of a job, or of each of an array."""
    return of_jobs(lab, number, "State")


def of_jobs(lab: TestLab, number: str, field: str) -> list[str]:
    argv = ["sudo", "sacct", "--noheader", "--parsable2", "--allocations", "--array", f"--jobs={number}"]
    return lab.ssh("head1", *argv, f"--format={field}").split()


def go_on(lab: TestLab, number: str) -> None:
    """See that half of the jobs run and half wait, as they have since they were submitted."""
    told = lab.ssh("head1", "sudo", "squeue", "--noheader", "--array", f"--jobs={number}", "--format=%T").split()
    assert (told.count("RUNNING"), told.count("PENDING"), len(told)) == (AT_ONCE, JOBS - AT_ONCE, JOBS)


def accounted(lab: TestLab, number: str, nodes: Sequence[str]) -> None:
    """Every job has begun once and ended once, on these nodes and in accounting."""
    wait_until(lambda: states(lab, number).count("COMPLETED") == JOBS)
    assert states(lab, number) == ["COMPLETED"] * JOBS
    restarts = of_jobs(lab, number, "Restarts")
    assert restarts == ["0"] * JOBS
    counts = "".join(lab.root(node, "cat /var/tmp/count.*") for node in nodes)
    assert (counts.count("begin"), counts.count("end")) == (JOBS, JOBS)
