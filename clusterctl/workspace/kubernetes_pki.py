"""Derive the keys and certificate authorities of a Kubernetes control plane from one secret.

All heads need the same ones, and a new head in place of a lost one too. kubeadm uses existing files, and issues its
other certificates from them (cmd/kubeadm/app/phases/certs/certs.go of Kubernetes 1.36.3: CreatePKIAssets,
SharedCertificateExists).
"""

from clusterctl.workspace import certificates

_AUTHORITIES = {"ca": "kubernetes", "front-proxy-ca": "kubernetes front proxy", "etcd/ca": "etcd"}


def shared(secret: str, cluster: str) -> dict[str, str]:
    """Return the files that all heads share as PEM, by their paths below /etc/kubernetes/pki."""
    found: dict[str, str] = {}
    for path, purpose in _AUTHORITIES.items():
        issued = certificates.authority_for(secret, cluster, purpose)
        found |= {f"{path}.crt": issued.certificate, f"{path}.key": issued.key}
    found["sa.key"], found["sa.pub"] = certificates.key_pair(secret, "kubernetes service accounts")
    return found


def client(secret: str, cluster: str, user: str) -> dict[str, str]:
    """Return the certificate and key of a user of the API, and the authority of API servers and kubelets, as PEM."""
    issued = certificates.issue_client(secret, cluster, _AUTHORITIES["ca"], user)
    authority = certificates.authority_for(secret, cluster, _AUTHORITIES["ca"]).certificate
    return {"key": issued.key, "certificate": issued.certificate, "authority": authority}
