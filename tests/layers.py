"""Which tests make a layer, and which paths touch it: the only map from a change to the tests that it needs.

A test file belongs to one layer. A landing runs the layers in ALWAYS, then the layers that a changed path touches, then
what was proven longest ago (tests/selection.py). A path that no line of TOUCHES matches touches every layer.
"""

import re
from collections.abc import Iterable

from tests.labs import REPOSITORY

LAYERS: dict[str, tuple[str, ...]] = {
    # Pure logic, and the command line without nodes.
    "unit": ("tests/unit/", "tests/systems/"),
    # One cluster's whole life, and what must survive what.
    "core": (
        "tests/cluster/test_bootstrap.py",
        "tests/cluster/test_membership.py",
        "tests/cluster/test_costs.py",
        "tests/faults/test_faults.py",
    ),
    # Each role in containers: check, converge, converge again, verify, remove.
    "roles": ("tests/molecule/",),
    # What is done to a cluster that works.
    "day2": (
        "tests/cluster/test_backup.py",
        "tests/cluster/test_drift.py",
        "tests/cluster/test_half_way.py",
        "tests/cluster/test_package_cache.py",
        "tests/cluster/test_plan.py",
        "tests/cluster/test_power_cut.py",
        "tests/cluster/test_secret.py",
        "tests/cluster/test_security_updates.py",
        "tests/cluster/test_unchanged.py",
        "tests/cluster/test_upgrade.py",
    ),
    # GPUs: driver, settings, health, metrics, containers in jobs.
    "gpu": (
        "tests/cluster/test_containers.py",
        "tests/cluster/test_driver.py",
        "tests/cluster/test_gpu_config.py",
        "tests/cluster/test_gpu_metrics.py",
        "tests/cluster/test_health.py",
        "tests/cluster/test_logins.py",
        "tests/cluster/test_tenancy.py",
        "tests/cluster/test_runtimes.py",
        "tests/cluster/test_usage.py",
    ),
    # Slurm: accounts, shares and limits; what happens between jobs.
    "slurm": (
        "tests/cluster/test_between_jobs.py",
        "tests/cluster/test_identity.py",
        "tests/cluster/test_job_examples.py",
        "tests/cluster/test_login_nodes.py",
        "tests/cluster/test_placement.py",
        "tests/cluster/test_sleep.py",
        "tests/cluster/test_slurm_changes.py",
        "tests/cluster/test_slurm_heads.py",
        "tests/cluster/test_slurm_policy.py",
        "tests/cluster/test_slurm_whole.py",
        "tests/cluster/test_storage.py",
        "tests/cluster/test_slurmrestd.py",
    ),
    # What is seen of a cluster, and what follows: alerts, receivers, drains, pages, dashboards, logs.
    "monitoring": (
        "tests/cluster/test_alert_limit.py",
        "tests/cluster/test_alerts.py",
        "tests/cluster/test_dashboards.py",
        "tests/cluster/test_log_search.py",
        "tests/cluster/test_logs.py",
        "tests/cluster/test_open.py",
    ),
    # Logs: the programs that ship, store and search them.
    "logs": ("tests/cluster/test_elasticsearch.py", "tests/cluster/test_log_programs.py"),
    # Kubernetes: its clusters, pods with GPUs, heads, releases, backups.
    "kubernetes": (
        "tests/cluster/test_kubernetes.py",
        "tests/cluster/test_kubernetes_api.py",
        "tests/cluster/test_kubernetes_beside_slurm.py",
        "tests/cluster/test_kubernetes_choices.py",
        "tests/cluster/test_kubernetes_demo.py",
        "tests/cluster/test_kubernetes_e2e.py",
        "tests/cluster/test_kubernetes_heads.py",
        "tests/cluster/test_kubernetes_killed.py",
        "tests/cluster/test_kubernetes_monitoring.py",
        "tests/cluster/test_kubernetes_restore.py",
        "tests/cluster/test_kubernetes_upgrade.py",
        "tests/cluster/test_unchanged_kubernetes.py",
    ),
    # Other systems, Pythons and versions; the demo; clusters of another shape.
    "systems": (
        "tests/cluster/test_demo.py",
        "tests/cluster/test_firewalld.py",
        "tests/cluster/test_first_hour.py",
        "tests/cluster/test_newer_python.py",
        "tests/cluster/test_shapes.py",
        "tests/cluster/test_slurm_releases.py",
        "tests/cluster/test_slurm_source.py",
        "tests/cluster/test_systems.py",
        "tests/test_newer_python.py",
    ),
    # Secrets that never show, runs that are killed at any moment, the rarer faults.
    "contract": (
        "tests/faults/test_canary.py",
        "tests/faults/test_killed.py",
        "tests/faults/test_more_faults.py",
    ),
    # That every measurement can be started.
    "bench": ("tests/bench/",),
}
ALWAYS = ("unit", "core")
ALL = tuple(LAYERS)

# The first line that matches counts. () is no layer beyond those in ALWAYS.
TOUCHES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"docs/(examples/slurm/|jobs\.md$)", ("slurm",)),
    (r"(docs/|inventory/|README|CONTRIBUTING|CHANGELOG|LICENSE|tests/ledger\.json$|tests/costs\.)", ()),
    (r"(tests/unit/|tests/samples/|scripts/(lint|new-role|pages|pictures|role|test|warm)$|\.ci/|\.gitignore$)", ()),
    (r"scripts/recordings$", ()),
    (r"(tests/bench/|scripts/bench$)", ("bench",)),
    (r"tests/cluster/(control_plane|kubernetes)\.py$", ("kubernetes",)),
    (r"tests/(alerts|molecule)/", ("roles",)),
    (r"scripts/demo$", ("kubernetes", "systems")),
    (r"tests/pythons\.py$", ("systems",)),
    (r"tests/cluster/logs\.py$", ("logs", "monitoring")),
    (r"tests/cluster/(alerting|watched)\.py$", ("monitoring",)),
    (r"tests/cluster/(crash|gpus|nvml_check)\.py$", ("gpu",)),
    (r"tests/cluster/sessions\.py$", ("gpu", "slurm")),
    (r"tests/cluster/sid\.py$", ("gpu", "roles")),
    (r"tests/cluster/(scan|members)\.py$", ("core", "day2")),
    (r"tests/cluster/drift\.py$", ("day2", "kubernetes")),
    (r"tests/faults/(canary|canary_site|search)\.py$", ("contract",)),
    (r"tests/faults/repository\.py$", ("contract", "day2", "gpu")),
    (
        r"tests/(git|layers|ledger|new_role|pictures|proof|recordings|report|role|run|scheduling|selection|web_pages)\.py$",
        (),
    ),
    (
        r"(roles/(alert_drain|alertmanager|blackbox_exporter|grafana|kibana|landing_page|logstash|mysqld_exporter"
        r"|prometheus)/"
        r"|clusterctl/\w+/(alert\w*|open|pages|tunnel)\.py$)",
        ("monitoring", "roles"),
    ),
    (r"roles/(elasticsearch|filebeat|logging)/", ("logs", "monitoring", "roles")),
    (r"tests/cluster/shipping\.py$", ("logs",)),
    (r"tests/(log_pages|pipelines)\.py$", ("logs", "monitoring")),
    (r"tests/dashboards/", ("monitoring",)),
    (r"roles/(apptainer|docker|enroot|podman|pyxis)/", ("gpu", "roles")),
    (r"roles/(containerd|containers|dcgm_exporter|gpu_health|nvidia_\w+)/", ("gpu", "kubernetes", "roles")),
    (r"plugins/.*/(slurm_(accounts|limits|reservations)|users)\.py$", ("roles", "slurm")),
    (
        r"clusterctl/(inventory/(directory|login_nodes|slurm_(heads|limits|policy|power|reservations|rest))|run/sleeping"
        r"|nodes/(probe/)?people|nodes/probe/reservations"
        r"|slurm/(by_hand|quota)|commands/quota\w*)\.py$",
        ("slurm",),
    ),
    (r"tests/cluster/((directory|hung_mount|nfs|slurm)\.py|mount\.nfs4)$", ("slurm",)),
    (r"(clusterctl/(inventory/(mounts|storage)|run/mount_checks)|plugins/.*/nfs\w*)\.py$", ("roles", "slurm")),
    (r"roles/gpu_health/", ("gpu", "kubernetes", "roles", "slurm")),
    (r"roles/package_cache/", ("day2", "roles")),
    (r"roles/(login|nfs_\w+|slurmrestd|sssd)/", ("roles", "slurm")),
    (r"roles/gpu_config/", ("gpu", "roles")),
    (r"roles/slurm_logins/", ("gpu", "roles", "slurm")),
    (r"roles/(backup|os_upgrade|reboot|removal|restore)/", ("day2", "kubernetes", "roles")),
    (r"playbooks/(add|backup|reboot|remove|replace|restore|upgrade)[^/]*\.yml$", ("day2", "contract", "kubernetes")),
    (r"plugins/.*/(os_upgrade|slurm_backup|slurm_restore|cluster_backup)\.py$", ("day2", "roles")),
    (r"plugins/.*/(gpu_config|nvidia\w*)\.py$", ("gpu", "roles")),
    (r"(plugins/.*/(kube\w+|etcd_backup)\.(py|yml)$|roles/kubernetes_\w+/)", ("kubernetes", "roles")),
    (r"clusterctl/(kubernetes/|\w+/kube\w+\.py$)", ("kubernetes",)),
    (
        r"clusterctl/(commands|run|workspace)/(\w+_node|archive|backup|draining|edits|membership|planning|reboot|removals|restore|rolling|secret|upgrade)\.py$",
        ("day2", "contract", "kubernetes"),
    ),
    (r"clusterctl/(commands/usage|nodes/prometheus|slurm/accounting|util/period)[\w.]*$", ("gpu", "kubernetes")),
    (r"clusterctl/lab/kit\w*\.py$", ("gpu", "kubernetes", "logs")),
    (r"clusterctl/lab/fault\.py$", ("gpu", "kubernetes")),
    (r"clusterctl/lab/kit_server/", ("gpu", "kubernetes", "logs")),
    (r"clusterctl/lab/nvml/", ("gpu", "kubernetes")),
    (r"clusterctl/lab/recipes/(elasticsearch|filebeat|opensearch)/", ("logs", "monitoring")),
    (r"clusterctl/lab/recipes/(debian|dcgm-exporter-simulated|nvidia-container-toolkit)/", ("gpu", "kubernetes")),
    (r"clusterctl/lab/recipes/", ("kubernetes",)),
)


def layer_of(file: str) -> str:
    """Return the layer that a test file belongs to; a file of no layer is an error of this map."""
    for layer, files in LAYERS.items():
        if any(file == name or (name.endswith("/") and file.startswith(name)) for name in files):
            return layer
    raise LookupError(f"{file}: no layer in tests/layers.py has this test file")


def touched(paths: Iterable[str]) -> set[str]:
    """Return the layers that changes of these paths touch, beyond those that always run."""
    found: set[str] = set()
    for path in paths:
        try:
            found.add(layer_of(path))
            continue
        except LookupError:
            pass
        found.update(next((layers for pattern, layers in TOUCHES if re.match(pattern, path)), ALL))
    return found


_FILES = tuple(name for names in LAYERS.values() for name in names if name.endswith(".py"))


def _users(path: str) -> set[str]:
    """Return a test file and those that import it, directly or through others."""
    found: set[str] = set()
    new = {path}
    while new:
        found |= new
        modules = "|".join(
            name.removesuffix(".py").replace("/", ".").replace(".test_", "(\\.| import .*)test_") for name in new
        )
        imports = re.compile(rf"^(from|import) ({modules})\b", re.MULTILINE)
        new = {name for name in _FILES if name not in found and imports.search((REPOSITORY / name).read_text())}
    return found


def invalidated(paths: Iterable[str]) -> set[str]:
    """Return the layers, and the single test files, whose tests have to pass again after changes of these paths.

    A test file of a cluster is used by itself and by the test files that import it, directly or through others; one of
    units or roles by its layer, and what below tests/ touches no layer by units. Anything else may also change what the
    layers in ALWAYS test.
    """
    found: set[str] = set()
    for path in paths:
        if path in _FILES:
            found |= _users(path)
            continue
        try:
            found.add(layer_of(path))
        except LookupError:
            others = touched([path])
            found.update(others, ALWAYS if others or not path.startswith("tests/") else ["unit"])
    return found


def tier_of(file: str, long: bool) -> str:
    """Return `ci` for what each landing runs, `rotation` for what it runs in its turn."""
    return "ci" if layer_of(file) in ALWAYS and not long else "rotation"
