"""What roles change on a node besides their records, and which others look at it; for unchanged.py."""

from collections.abc import Mapping

PROVEN: Mapping[str, str] = {
    "alert_drain": "node_state",
    "alertmanager": "node_state, and its programs",
    "apptainer": "whether users can have namespaces is in the digest",
    "base": "besides node_state it confirms a firewall that was changed",
    "blackbox_exporter": "node_state",
    "containerd": "node_state",
    "containers": "node_state",
    "dcgm_exporter": "reads the GPUs",
    "docker": "its group is in the digest",
    "elasticsearch": "node_state",
    "enroot": "node_state",
    "filebeat": "node_state",
    "gpu_config": "a test compares the GPUs with their settings, and links of instances are in the digest",
    "gpu_health": "node_state",
    "grafana": "node_state",
    "kibana": "node_state",
    "kubernetes_exporter": "node_state; its objects are in the digest of a head",
    "kubernetes_gpu": "node_state; its objects are in the digest of a head",
    "kubernetes_head": "what kubeadm keeps, and its objects, are in the digest; see also OF_ALL",
    "kubernetes_network": "node_state; its objects are in the digest of a head",
    "kubernetes_node": "the images of archives are in the digest",
    "kubernetes_quota": "its objects are in the digest of a head",
    "kubernetes_storage": "node_state; its objects are in the digest of a head",
    "kubernetes_worker": "what kubeadm keeps, and the node in Kubernetes' API, are in the digest",
    "landing_page": "node_state",
    "logging": "a test asks what the search engine lacks",
    "login": "node_state",
    "logstash": "node_state",
    "mpi": "node_state",
    "munge": "node_state; the key is replaced by plays of their own",
    "mysqld_exporter": "node_state",
    "nfs_client": "node_state; mounts are units",
    "nfs_server": "node_state; quotas are set again only after a change of the inventory, or by --full",
    "node_exporter": "node_state",
    "nvidia_cuda": "reads the GPUs",
    "nvidia_driver": "builds and loads the driver: packages, kernel, boot and GPUs are in the digest",
    "nvidia_container_toolkit": "SELinux's setting is in the digest",
    "package_cache": "SELinux's setting is in the digest; cached files are no state of the node",
    "packages": "node_state",
    "podman": "node_state",
    "prometheus": "node_state, and its programs",
    "pyxis": "the plugin is in the digest",
    "slurm_exporter": "node_state",
    "slurm_head": "databases and accounting are in the digest; new workers are not in service",
    "slurm_logins": "node_state",
    "slurmrestd": "node_state",
    "slurm_worker": "besides node_state it reconfigures the controller after a change",
    "sssd": "what follows the directory is no state of a run: see nodes/probe/state.py",
    "users": "accounts of the node, and accounts and reservations in Slurm, are in the digest",
    "verify": "changes nothing that a run without failures has left",
}
"""Roles of which all that they change on a node is recorded or in the digest, and why: see test_unchanged.py."""

_METRICS = "serves or reads metrics"
SEPARATE: Mapping[str, str] = {
    "alert_drain": "receives alerts",
    "alertmanager": _METRICS,
    "apptainer": "users run its program",
    "base": "no role reads its files; daemons that are restarted for them are its own",
    "blackbox_exporter": _METRICS,
    "filebeat": "reads logs",
    "gpu_health": "a timer and role verify run its program",
    "grafana": _METRICS,
    "kibana": "shows logs",
    "kubernetes_exporter": _METRICS,
    "kubernetes_quota": "its objects limit pods of users",
    "landing_page": _METRICS,
    "logging": "users and pipelines of the search engine, of which the other roles have copies from the same secrets",
    "login": "users run its programs",
    "logstash": "receives logs",
    "mpi": "users run its programs",
    "mysqld_exporter": _METRICS,
    "nfs_server": "its clients are other hosts",
    "node_exporter": _METRICS,
    "packages": "each role also installs its own",
    "podman": "users run its program",
    "prometheus": _METRICS,
    "slurm_exporter": _METRICS,
    "slurm_logins": "sshd reads its files at each login",
    "slurmrestd": "users run programs that use it",
    "sssd": "sshd, PAM and the resolver of names read its files",
    "users": "it also adds the users to Slurm",
}
"""Roles of which no other role has more to do if they change something, and why, except FOLLOWERS and verify."""

FOLLOWERS: Mapping[str, set[str]] = {
    "base": {"apptainer"},  # whether users can run a container depends on the kernel's settings
    "users": {"docker"},  # it sets the members of its group
}
"""By SEPARATE role: the roles that look at what it changes."""

PARTS_OF: Mapping[str, set[str]] = {
    "kubernetes_exporter": {"objects of kubernetes_exporter"},
    "kubernetes_quota": {"objects of kubernetes_quota"},
    "users": {"accounts", "accounting", "reservations"},
}
"""Parts of the state that roles can change, besides their records, and packages if they report that."""
