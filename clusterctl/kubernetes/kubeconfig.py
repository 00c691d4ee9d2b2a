"""Read the kubeconfig that a head prints, and write one for this machine.

A kubeconfig can name a program that kubectl runs (`exec`), and files of this machine. So only certificates, key and
namespace are taken from the head's, and the rest is written here.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import yaml

from clusterctl.util import yaml_text

_PEM = re.compile(rb"-----BEGIN [A-Z ]+-----\n[A-Za-z0-9+/=\n]+-----END [A-Z ]+-----\n?")
_LABEL = re.compile("[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SERVER = re.compile(r"https://\[?([A-Za-z0-9.:-]{1,253}?)\]?:(\d{1,5})")
_MAX = 1 << 20


class KubeconfigError(ValueError):
    """A kubeconfig is not one that kubeadm writes; the text says why."""


@dataclass(frozen=True)
class Kubeconfig:
    """What a user needs to log in: PEM texts in base64, the API's name and port, and a namespace if there is one."""

    authority: str
    certificate: str
    key: str
    name: str
    port: int
    namespace: str = ""

    @property
    def end(self) -> datetime | None:
        """Return when the user's certificate ends; None if it cannot be read."""
        from cryptography import x509  # slow to load

        try:
            return x509.load_pem_x509_certificate(base64.b64decode(self.certificate)).not_valid_after_utc
        except ValueError:
            return None

    def text(self, cluster: str, user: str, address: str) -> str:
        """Return the kubeconfig for a cluster whose API this machine reaches at an address.

        The certificate of the API is checked by its name, because the address may be that of a gateway.
        """
        place = f"[{address}]" if ":" in address else address
        server = {"server": f"https://{place}:{self.port}", "certificate-authority-data": self.authority}
        if address != self.name:
            server["tls-server-name"] = self.name
        context = {"cluster": cluster, "user": user} | ({"namespace": self.namespace} if self.namespace else {})
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": cluster, "cluster": server}],
            "users": [
                {"name": user, "user": {"client-certificate-data": self.certificate, "client-key-data": self.key}}
            ],
            "contexts": [{"name": f"{user}@{cluster}", "context": context}],
            "current-context": f"{user}@{cluster}",
        }
        return str(yaml.safe_dump(document, sort_keys=False))


def is_label(text: str) -> bool:
    """Return whether a text is a valid name of a namespace."""
    return _LABEL.fullmatch(text) is not None


def parse(text: str) -> Kubeconfig:
    """Return the parts of a kubeconfig with one cluster, one user and their context. Raises KubeconfigError."""
    if len(text) > _MAX:
        raise KubeconfigError("it is too large")
    try:
        data = yaml_text.load(text)
    except (yaml.YAMLError, RecursionError):
        raise KubeconfigError("it is not YAML") from None
    cluster, user, context = (_only(data, key) for key in ("clusters", "users", "contexts"))
    server = _SERVER.fullmatch(str(cluster.get("server", "")))
    if not server or not 0 < int(server[2]) < 65536:
        raise KubeconfigError("it has no URL of an API server")
    namespace = context.get("namespace", "")
    if namespace and not (isinstance(namespace, str) and is_label(namespace)):
        raise KubeconfigError("its namespace has no valid name")
    return Kubeconfig(
        _pem(cluster, "certificate-authority-data"),
        _pem(user, "client-certificate-data"),
        _pem(user, "client-key-data"),
        server[1],
        int(server[2]),
        namespace,
    )


def _only(data: Any, key: str) -> Mapping[str, Any]:
    """Return the only cluster, user or context."""
    entries = data.get(key) if isinstance(data, Mapping) else None
    entry = entries[0] if isinstance(entries, list) and len(entries) == 1 else None
    found = entry.get(key.removesuffix("s")) if isinstance(entry, Mapping) else None
    if not isinstance(found, Mapping):
        raise KubeconfigError(f"it has not exactly one of {key}")
    return found


def _pem(data: Mapping[str, Any], key: str) -> str:
    text = data.get(key)
    try:
        content = base64.b64decode(text if isinstance(text, str) else "", validate=True)
    except (binascii.Error, ValueError):
        content = b""
    if not _PEM.fullmatch(content):
        raise KubeconfigError(f"it has no {key}")
    return base64.b64encode(content).decode()
