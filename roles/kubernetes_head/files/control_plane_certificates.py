"""The certificates of a head's control plane, and how long they are valid."""

from __future__ import annotations

import base64
from pathlib import Path

import kubernetes_x509
from kubernetes_x509 import FormatError

KUBERNETES = Path("/etc/kubernetes")
# What `kubeadm certs renew all` renews: cmd/kubeadm/app/phases/certs/renewal/manager.go.
CERTIFICATES = (
    "pki/apiserver.crt",
    "pki/apiserver-etcd-client.crt",
    "pki/apiserver-kubelet-client.crt",
    "pki/front-proxy-client.crt",
    "pki/etcd/healthcheck-client.crt",
    "pki/etcd/peer.crt",
    "pki/etcd/server.crt",
    "admin.conf",
    "super-admin.conf",
    "controller-manager.conf",
    "scheduler.conf",
)


def certificate(path: Path) -> str:
    """Return the certificate in a file, in PEM: of a kubeconfig, its user's."""
    text = path.read_text()
    if path.suffix == ".conf":
        lines = [line.split()[1] for line in text.splitlines() if line.strip().startswith("client-certificate-data:")]
        if not lines:
            raise FormatError("there is no certificate in it")
        return base64.b64decode(lines[0]).decode("ascii")
    return text


def periods() -> dict:
    """Return begin and end of each certificate, by its file. Raises FormatError."""
    found = {}
    for name in CERTIFICATES:
        path = KUBERNETES / name
        if path.exists():
            try:
                found[name] = kubernetes_x509.validity(certificate(path))
            except (ValueError, IndexError) as error:
                raise FormatError(f"{path}: {error}")
    return found
