"""Read the tokens with which nodes join: bootstrap tokens that kubernetes-join creates, each for one node."""

from __future__ import annotations

import base64
import math
from datetime import datetime

import kubernetes_api

KIND = "bootstrap.kubernetes.io/token"
NAMESPACE = "--namespace=kube-system"
PREFIX = "bootstrap-token-"  # of a Secret's name; the token's public part follows
MARK = "clusterctl: "


def secrets():
    """Return the Secrets of all tokens, also of those that an administrator made with kubeadm."""
    return kubernetes_api.get("secrets", NAMESPACE, f"--field-selector=type={KIND}")


def text_of(secret, key):
    """Return a text of a Secret; empty if it has none."""
    return base64.b64decode((secret.get("data") or {}).get(key, "")).decode("utf-8", "replace")


def node_of(secret):
    """Return the node that a token is for; empty if kubernetes-join did not make it."""
    description = text_of(secret, "description")
    return description[len(MARK) :] if description.startswith(MARK) else ""


def end_of(secret):
    """Return when a token expires, in seconds since 1970.

    As Kubernetes does it, one without a time never expires, and one with an unknown time has: GetExpiration in
    util/secrets/secrets.go of k8s.io/cluster-bootstrap.
    """
    text = text_of(secret, "expiration")
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z").timestamp() if text else math.inf
    except ValueError:
        return 0.0


def valid(found, now):
    """Return the tokens of kubernetes-join that have not expired: (node, end) by the token's public part."""
    tokens = {one["metadata"]["name"]: (node_of(one), end_of(one)) for one in found}
    return {name[len(PREFIX) :]: (node, end) for name, (node, end) in tokens.items() if node and end > now}
