"""Which process of xdist runs which tests."""

from xdist.scheduler import LoadFileScheduling

# Files that share a lab, by its name, in the order in which they come: tests/cluster/conftest.py sees to that.
LABS = {
    "members": ("test_membership.py", "test_upgrade.py"),
    "whole": ("test_backup.py", "test_drift.py", "test_plan.py"),
    "gpus": ("test_gpu_metrics.py", "test_health.py", "test_containers.py", "test_runtimes.py"),
}
LAB_OF = {f"tests/cluster/{file}": lab for lab, files in LABS.items() for file in files}


class ByLab(LoadFileScheduling):  # type: ignore[misc] # xdist says nothing of types
    """Lets one process run all of a file, and all files that share a lab."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return LAB_OF.get(file, file)
