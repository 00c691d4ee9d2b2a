"""Which hosts can serve Slurm's REST API: it needs Slurm's configuration, which only a head has."""

from clusterctl.inventory.reading import Reading
from clusterctl.inventory.schedulers import SLURM

GROUP = "slurmrestd"


def check(reading: Reading) -> None:
    """Check that the hosts of the group are heads of Slurm."""
    for host in reading.hosts.values():
        if GROUP in host.groups and SLURM.head not in host.groups:
            message = f"{host.name} is not in {SLURM.head}, and only a head can serve Slurm's REST API"
            hint = f"{GROUP}: {{children: {{{SLURM.head}: {{}}}}}}"
            reading.refuse(host.position, f"all.children.{GROUP}", message, hint)
