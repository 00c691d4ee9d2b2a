"""Items of the CIS Kubernetes Benchmark, and how a cluster of clusterctl has them.

The numbers are those of version 1.12, by the checks of kube-bench (github.com/aquasecurity/kube-bench, cfg/cis-1.12 at
a73ce378). Left out are items of judgement, those for kube-proxy, which runs as a pod, and those that no value violates.

usage: python -m tests.cluster.cis > docs/kubernetes-cis.md
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml

API, CONTROLLERS, SCHEDULER, ETCD = "kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd"
_KUBERNETES = "/etc/kubernetes"
CIPHERS = "Go's defaults are current ciphers; older clients must not decide"

# Prints the files' modes and owners, and the manifests, as JSON. Runs as root on a node.
QUESTION = """
import glob, grp, json, os, pwd
files = {}
for pattern in ("/etc/kubernetes/manifests/*.yaml", "/etc/kubernetes/*.conf", "/etc/kubernetes/pki",
                "/etc/kubernetes/pki/*", "/etc/kubernetes/pki/etcd/*", "/etc/cni/net.d/*", "/var/lib/etcd",
                "/var/lib/kubelet/config.yaml", "/usr/lib/systemd/system/kubelet.service.d/*.conf"):
    for path in glob.glob(pattern):
        found = os.stat(path)
        owner = f"{pwd.getpwuid(found.st_uid).pw_name}:{grp.getgrgid(found.st_gid).gr_name}"
        files[path] = [found.st_mode & 0o777, owner]
manifests = {os.path.basename(path)[:-5]: open(path).read() for path in glob.glob("/etc/kubernetes/manifests/*.yaml")}
encryption = open("/etc/kubernetes/clusterctl/encryption.yaml").read() if manifests else ""
print(json.dumps({"files": files, "manifests": manifests, "encryption": encryption}))
"""


@dataclass(frozen=True)
class Site:
    """The files of a node, the control plane of a head, and the configuration of the node's kubelet."""

    files: Mapping[str, tuple[int, str]]
    arguments: Mapping[str, Mapping[str, str]]
    providers: tuple[str, ...]
    kubelet: Mapping[str, Any]

    def has(self, component: str, *names: str) -> bool:
        """Return whether a component has all these arguments."""
        return all(self.arguments[component].get(name) for name in names)

    def of(self, component: str, name: str, default: str = "") -> str:
        """Return an argument of a component."""
        return self.arguments[component].get(name, default)


def site(printed: str, kubelet: Mapping[str, Any]) -> Site:
    """Return what QUESTION printed on a node, with the configuration of its kubelet."""
    answer = json.loads(printed)
    arguments = {}
    for name, text in answer["manifests"].items():
        words = yaml.safe_load(text)["spec"]["containers"][0]["command"]
        options = [word.removeprefix("--").partition("=") for word in words if word.startswith("--")]
        arguments[name] = {key: value for key, _, value in options}
    resources = (yaml.safe_load(answer["encryption"]) or {"resources": []})["resources"]
    providers = tuple(name for one in resources for provider in one["providers"] for name in provider)
    files = {path: (mode, owner) for path, (mode, owner) in answer["files"].items()}
    return Site(files, arguments, providers, kubelet)


class Item(NamedTuple):
    """An item. With a reason, the cluster differs from it."""

    number: str
    what: str
    is_met: Callable[[Site], bool]
    reason: str = ""


def _mode(number: str, what: str, path: str, most: int, reason: str = "") -> Item:
    def check(found: Site) -> bool:
        modes = [mode for name, (mode, _) in found.files.items() if _matches(name, path)]
        return bool(modes) and all(mode & ~most == 0 for mode in modes)

    return Item(number, f"{what}: mode {most:o} or less", check, reason)


def _owner(number: str, what: str, path: str, owner: str = "root:root", reason: str = "") -> Item:
    def check(found: Site) -> bool:
        owners = [owned for name, (_, owned) in found.files.items() if _matches(name, path)]
        return bool(owners) and set(owners) == {owner}

    return Item(number, f"{what}: owner {owner}", check, reason)


def _matches(name: str, path: str) -> bool:
    """Return whether a file is meant by a path, which may end with `*` and a suffix."""
    head, star, tail = path.partition("*")
    return name == path if not star else name.startswith(head) and name.endswith(tail)


def _files(number: tuple[str, str], what: str, path: str) -> tuple[Item, Item]:
    return _mode(number[0], what, path, 0o600), _owner(number[1], what, path)


def _plugins(found: Site) -> list[str]:
    return found.of(API, "enable-admission-plugins").split(",")


ITEMS = (
    *_files(("1.1.1", "1.1.2"), "manifest of the API server", f"{_KUBERNETES}/manifests/kube-apiserver.yaml"),
    *_files(("1.1.3", "1.1.4"), "manifest of the controller manager", f"{_KUBERNETES}/manifests/{CONTROLLERS}.yaml"),
    *_files(("1.1.5", "1.1.6"), "manifest of the scheduler", f"{_KUBERNETES}/manifests/{SCHEDULER}.yaml"),
    *_files(("1.1.7", "1.1.8"), "manifest of etcd", f"{_KUBERNETES}/manifests/etcd.yaml"),
    _mode("1.1.9", "CNI configuration", "/etc/cni/net.d/*.conflist", 0o600),
    _owner("1.1.10", "CNI configuration", "/etc/cni/net.d/*.conflist"),
    _mode("1.1.11", "etcd's data", "/var/lib/etcd", 0o700),
    _owner("1.1.12", "etcd's data", "/var/lib/etcd", "etcd:etcd", "kubeadm runs etcd as root"),
    *_files(("1.1.13", "1.1.14"), "administrators' credentials", f"{_KUBERNETES}/*admin.conf"),
    *_files(("1.1.15", "1.1.16"), "scheduler's credentials", f"{_KUBERNETES}/scheduler.conf"),
    *_files(("1.1.17", "1.1.18"), "controller manager's credentials", f"{_KUBERNETES}/controller-manager.conf"),
    _owner("1.1.19", "certificates and keys", f"{_KUBERNETES}/pki*"),
    _mode("1.1.20", "certificates", f"{_KUBERNETES}/pki/*.crt", 0o644),
    _mode("1.1.21", "keys", f"{_KUBERNETES}/pki/*.key", 0o600),
    Item(
        "1.2.1",
        "API server: no anonymous requests",
        lambda found: found.of(API, "anonymous-auth") == "false",
        "load balancers and probes ask for its health; the authentication configuration permits no other path",
    ),
    Item("1.2.2", "API server: no token file", lambda found: not found.has(API, "token-auth-file")),
    Item("1.2.3", "API server: no external IPs of services", lambda found: "DenyServiceExternalIPs" in _plugins(found)),
    Item(
        "1.2.4",
        "API server: its certificate for kubelets",
        lambda found: found.has(API, "kubelet-client-certificate", "kubelet-client-key"),
    ),
    Item(
        "1.2.5",
        "API server: verifies kubelets' certificates",
        lambda found: found.has(API, "kubelet-certificate-authority"),
    ),
    Item("1.2.6", "API server: not everything is allowed", lambda found: "AlwaysAllow" not in _modes(found)),
    Item("1.2.7", "API server: nodes have their own rights", lambda found: "Node" in _modes(found)),
    Item("1.2.8", "API server: roles", lambda found: "RBAC" in _modes(found)),
    Item(
        "1.2.9",
        "API server: limits the rate of events",
        lambda found: "EventRateLimit" in _plugins(found),
        "the plugin is alpha; events are deleted after an hour",
    ),
    Item("1.2.10", "API server: no AlwaysAdmit", lambda found: "AlwaysAdmit" not in _plugins(found)),
    Item(
        "1.2.11",
        "API server: AlwaysPullImages",
        lambda found: "AlwaysPullImages" in _plugins(found),
        "nodes could start no pod without a registry. Kubernetes 1.35 and later checks who may use an image of a node",
    ),
    Item("1.2.12", "API server: ServiceAccount", lambda found: "ServiceAccount" not in _disabled(found)),
    Item("1.2.13", "API server: NamespaceLifecycle", lambda found: "NamespaceLifecycle" not in _disabled(found)),
    Item("1.2.14", "API server: NodeRestriction", lambda found: "NodeRestriction" in _plugins(found)),
    Item("1.2.15", "API server: no profiling", lambda found: found.of(API, "profiling") == "false"),
    Item("1.2.16", "API server: audit log", lambda found: found.has(API, "audit-log-path")),
    Item("1.2.17", "audit log: 30 days", lambda found: int(found.of(API, "audit-log-maxage", "0")) >= 30),
    Item("1.2.18", "audit log: 10 files", lambda found: int(found.of(API, "audit-log-maxbackup", "0")) >= 10),
    Item("1.2.19", "audit log: 100 MB", lambda found: int(found.of(API, "audit-log-maxsize", "0")) >= 100),
    Item("1.2.21", "API server: looks up accounts", lambda found: found.of(API, "service-account-lookup") != "false"),
    Item("1.2.22", "API server: key of accounts", lambda found: found.has(API, "service-account-key-file")),
    Item("1.2.23", "API server: certificate for etcd", lambda found: found.has(API, "etcd-certfile", "etcd-keyfile")),
    Item("1.2.24", "API server: certificate", lambda found: found.has(API, "tls-cert-file", "tls-private-key-file")),
    Item("1.2.25", "API server: authority of clients", lambda found: found.has(API, "client-ca-file")),
    Item("1.2.26", "API server: verifies etcd's certificate", lambda found: found.has(API, "etcd-cafile")),
    Item("1.2.27", "Secrets are encrypted in etcd", lambda found: found.has(API, "encryption-provider-config")),
    Item(
        "1.2.28",
        "Secrets: aescbc, kms or secretbox",
        lambda found: found.providers[:1] in (("aescbc",), ("kms",), ("secretbox",)),
    ),
    Item("1.2.29", "API server: ciphers are listed", lambda found: found.has(API, "tls-cipher-suites"), CIPHERS),
    Item(
        "1.2.30",
        "API server: tokens of accounts are not extended",
        lambda found: found.of(API, "service-account-extend-token-expiration") == "false",
        "programs with old client libraries would lose their access after an hour",
    ),
    Item(
        "1.3.1",
        "controller manager: limit of ended pods",
        lambda found: found.has(CONTROLLERS, "terminated-pod-gc-threshold"),
        "its default of 12500 pods is left",
    ),
    Item("1.3.2", "controller manager: no profiling", lambda found: found.of(CONTROLLERS, "profiling") == "false"),
    Item(
        "1.3.3",
        "controller manager: an account for each controller",
        lambda found: found.of(CONTROLLERS, "use-service-account-credentials") == "true",
    ),
    Item(
        "1.3.4",
        "controller manager: key of accounts",
        lambda found: found.has(CONTROLLERS, "service-account-private-key-file"),
    ),
    Item("1.3.5", "controller manager: authority for pods", lambda found: found.has(CONTROLLERS, "root-ca-file")),
    Item(
        "1.3.6",
        "controller manager: kubelets' serving certificates",
        lambda found: "RotateKubeletServerCertificate=false" not in found.of(CONTROLLERS, "feature-gates"),
    ),
    Item("1.3.7", "controller manager: local", lambda found: found.of(CONTROLLERS, "bind-address") == "127.0.0.1"),
    Item("1.4.1", "scheduler: no profiling", lambda found: found.of(SCHEDULER, "profiling") == "false"),
    Item("1.4.2", "scheduler: local", lambda found: found.of(SCHEDULER, "bind-address") == "127.0.0.1"),
    Item("2.1", "etcd: certificate", lambda found: found.has(ETCD, "cert-file", "key-file")),
    Item("2.2", "etcd: certificates of clients", lambda found: found.of(ETCD, "client-cert-auth") == "true"),
    Item("2.3", "etcd: no self-signed certificate", lambda found: found.of(ETCD, "auto-tls") != "true"),
    Item("2.4", "etcd: certificate for members", lambda found: found.has(ETCD, "peer-cert-file", "peer-key-file")),
    Item("2.5", "etcd: certificates of members", lambda found: found.of(ETCD, "peer-client-cert-auth") == "true"),
    Item(
        "2.6", "etcd: no self-signed certificate for members", lambda found: found.of(ETCD, "peer-auto-tls") != "true"
    ),
    Item(
        "2.7",
        "etcd: an authority of its own",
        lambda found: found.of(ETCD, "trusted-ca-file") not in ("", found.of(API, "client-ca-file")),
    ),
    Item(
        "3.1.1",
        "users have no client certificates",
        lambda _: False,
        "`clusterctl kubeconfig --user` issues one; with `kubernetes_head_oidc` a provider is used instead",
    ),
    Item("3.2.1", "audit policy", lambda found: found.has(API, "audit-policy-file")),
    _mode(
        "4.1.1",
        "kubelet's unit",
        "/usr/lib/systemd/system/kubelet.service.d/*.conf",
        0o600,
        "it has no secret, and its mode is the package's",
    ),
    _owner("4.1.2", "kubelet's unit", "/usr/lib/systemd/system/kubelet.service.d/*.conf"),
    *_files(("4.1.5", "4.1.6"), "kubelet's credentials", f"{_KUBERNETES}/kubelet.conf"),
    _mode("4.1.7", "authority of the kubelet's clients", f"{_KUBERNETES}/pki/ca.crt", 0o644),
    _owner("4.1.8", "authority of the kubelet's clients", f"{_KUBERNETES}/pki/ca.crt"),
    _mode(
        "4.1.9",
        "kubelet's configuration",
        "/var/lib/kubelet/config.yaml",
        0o600,
        "it has no secret, and kubeadm writes it",
    ),
    _owner("4.1.10", "kubelet's configuration", "/var/lib/kubelet/config.yaml"),
    Item(
        "4.2.1",
        "kubelet: no anonymous requests",
        lambda found: _kubelet(found, "authentication.anonymous.enabled") is False,
    ),
    Item(
        "4.2.2", "kubelet: not everything is allowed", lambda found: _kubelet(found, "authorization.mode") == "Webhook"
    ),
    Item(
        "4.2.3",
        "kubelet: authority of clients",
        lambda found: bool(_kubelet(found, "authentication.x509.clientCAFile")),
    ),
    Item("4.2.4", "kubelet: no port without a login", lambda found: not _kubelet(found, "readOnlyPort")),
    Item(
        "4.2.5",
        "kubelet: idle connections end",
        lambda found: _kubelet(found, "streamingConnectionIdleTimeout") != "0s",
    ),
    Item("4.2.6", "kubelet: its own rules", lambda found: _kubelet(found, "makeIPTablesUtilChains") is True),
    Item(
        "4.2.9",
        "kubelet: certificate",
        lambda found: bool(_kubelet(found, "serverTLSBootstrap") or _kubelet(found, "tlsCertFile")),
    ),
    Item("4.2.10", "kubelet: renews its certificate", lambda found: _kubelet(found, "rotateCertificates") is True),
    Item(
        "4.2.11", "kubelet: renews its serving certificate", lambda found: _kubelet(found, "serverTLSBootstrap") is True
    ),
    Item("4.2.12", "kubelet: ciphers are listed", lambda found: bool(_kubelet(found, "tlsCipherSuites")), CIPHERS),
    Item(
        "4.2.13",
        "kubelet: limit of processes in a pod",
        lambda found: (_kubelet(found, "podPidsLimit") or -1) > 0,
        "there is none: programs for training start thousands of threads",
    ),
    Item("4.2.14", "kubelet: default seccomp profile", lambda found: _kubelet(found, "seccompDefault") is True),
)


def _modes(found: Site) -> list[str]:
    return found.of(API, "authorization-mode").split(",")


def _disabled(found: Site) -> list[str]:
    return found.of(API, "disable-admission-plugins").split(",")


def _kubelet(found: Site, path: str) -> Any:
    value: Any = found.kubelet
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def page() -> str:
    """Return the table of docs/kubernetes-cis.md."""
    rows = [f"| {item.number} | {item.what} | {item.reason or 'met'} |" for item in ITEMS]
    return "\n".join(
        [
            "# CIS Kubernetes Benchmark",
            "",
            "Which items of the CIS Kubernetes Benchmark 1.12 the nodes have, and why they lack others.",
            "`tests/cluster/test_kubernetes.py` checks each in a lab; `python -m tests.cluster.cis` writes this page.",
            "",
            "| item | what | |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    sys.stdout.write(page())
