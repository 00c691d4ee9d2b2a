"""Which hosts users of Slurm submit jobs from: login nodes run none, and all have the plugin for containers."""

from clusterctl.inventory.reading import Reading
from clusterctl.inventory.schedulers import LOGIN, SLURM, of_groups


def check(reading: Reading) -> None:
    """Check that login nodes belong to a cluster of Slurm and run no jobs."""
    for host in (host for host in reading.hosts.values() if LOGIN in host.groups):
        key = f"all.children.{LOGIN}"
        if SLURM.head not in reading.groups:
            reading.refuse(host.position, key, f"{host.name} would log in to Slurm, but there is no group {SLURM.head}")
        elif kind := of_groups(host.groups):
            group = next(group for group in (kind.head, kind.workers) if group in host.groups)
            hint = f"remove {host.name} from one of the two groups"
            reading.refuse(host.position, key, f"{host.name} is also in {group}, expected a host of its own", hint)


def check_submission(reading: Reading) -> None:
    """Check that all Slurm hosts have the container plugin: a host without it ignores the image."""
    if "enroot" not in reading.groups:
        return
    users_of_slurm = [group for group in ("slurm_head", "slurm_workers", LOGIN) if group in reading.groups]
    members = [host for host in reading.hosts.values() if not host.groups.isdisjoint(users_of_slurm)]
    if missing := [host.name for host in members if "enroot" not in host.groups]:
        message = f"lacks {', '.join(missing)}, where srun --container-image would fail or have no effect"
        hint = f"children: {{{', '.join(f'{group}: {{}}' for group in users_of_slurm)}}}"
        reading.refuse(reading.top, "all.children.enroot", message, hint)
