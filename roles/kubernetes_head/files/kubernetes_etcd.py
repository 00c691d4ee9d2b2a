"""etcd's members, their health and snapshots, by the HTTP interface of etcd 3.4 and later.

Paths and fields: api/etcdserverpb/rpc.proto of etcd 3.6. 64-bit numbers are texts in it, and bytes are base64.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import ssl
import urllib.parse
from pathlib import Path

PKI = Path("/etc/kubernetes/pki/etcd")
LOCAL = "https://127.0.0.1:2379"
PAGE = 512  # bytes; the size of a database is a multiple of its page size
DIGEST = hashlib.sha256().digest_size


class EtcdError(Exception):
    """etcd does not respond, or refuses."""


def urls(cluster, *without):
    """Return the URLs of etcd: of this head, then of the other heads, except some."""
    others = [one for name, one in sorted(cluster["heads"].items()) if name not in (cluster["name"], *without)]
    hosts = [f"[{address}]" if ":" in address else address for address in others]
    return [LOCAL, *(f"https://{host}:2379" for host in hosts)]


def context():
    """Return the TLS context of a client: the certificate that kubeadm issues for checks of etcd."""
    found = ssl.create_default_context(cafile=str(PKI / "ca.crt"))
    found.load_cert_chain(str(PKI / "healthcheck-client.crt"), str(PKI / "healthcheck-client.key"))
    return found


def request(url, path, body, seconds=5):
    """Send one request; return the open response. Raises EtcdError."""
    place = urllib.parse.urlsplit(url)
    connection = http.client.HTTPSConnection(place.hostname, place.port, timeout=seconds, context=context())
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            text = response.read(4096).decode("utf-8", "replace")
            raise EtcdError(f"{url}: {message(text)}")
        return response
    except (OSError, http.client.HTTPException) as error:
        raise EtcdError(f"{url}: {error}")


def message(text):
    """Return the message in an error of etcd."""
    try:
        data = json.loads(text)
        return str(data.get("message") or data.get("error") or text)
    except (ValueError, AttributeError):
        return text.strip() or "no message"


def call(urls, path, body):
    """Return the reply of the first of several members that responds. Raises EtcdError with all errors."""
    errors = []
    for url in urls:
        try:
            return json.loads(request(url, path, body).read())
        except (EtcdError, ValueError) as error:
            errors.append(str(error))
    raise EtcdError("no member of etcd responds: " + "; ".join(errors))


def parse(reply):
    """Return the members in a reply: dictionaries of id, name, learner, and the URLs for clients and peers.

    A member that was added and has not started yet has no name and no URL for clients.
    """
    return [
        {
            "id": str(member["ID"]),
            "name": member.get("name", ""),
            "learner": bool(member.get("isLearner", False)),
            "clients": member.get("clientURLs", []),
            "peers": member.get("peerURLs", []),
        }
        for member in reply.get("members", [])
    ]


def members(urls=(LOCAL,)):
    """Return the members, each with its health and the bytes of its database. Fails if etcd has no quorum."""
    found = parse(call(urls, "/v3/cluster/member/list", {"linearizable": True}))
    for member in found:
        member.update(health(member["clients"]))
    return found


def health(urls):
    """Return whether a member responds and knows a leader, and the bytes of its database."""
    for url in urls:
        try:
            status = json.loads(request(url, "/v3/maintenance/status", {}, seconds=3).read())
            return {"healthy": status.get("leader", "0") != "0", "bytes": int(status.get("dbSize", 0))}
        except (EtcdError, ValueError):
            continue
    return {"healthy": False, "bytes": 0}


def named(found, name, address=""):
    """Return the members of a node: by name, or by the address of one that never started."""
    peer = f"https://[{address}]:2380" if ":" in address else f"https://{address}:2380"
    return [
        member
        for member in found
        if member["name"] == name or (address and not member["name"] and peer in member["peers"])
    ]


def refusal(found, member):
    """Return why a member must not be removed; nothing if the others keep their quorum.

    A learner does not count. https://etcd.io/docs/v3.6/faq/ describes the quorum: more than half of the voters.
    """
    others = [one for one in found if one["id"] != member["id"] and not one["learner"]]
    if member["learner"]:
        return ""
    if not others:
        return "it is the only member"
    healthy = sum(one["healthy"] for one in others)
    expected = len(others) // 2 + 1
    if healthy >= expected:
        return ""
    silent = ", ".join(one["name"] or one["id"] for one in others if not one["healthy"])
    return f"etcd would have {healthy} of {len(others)} members, expected {expected} or more; {silent} does not respond"


def remove(found, name, address=""):
    """Remove a node's members; return the members that remain. Raises EtcdError if etcd would lose its quorum."""
    for member in named(found, name, address):
        why = refusal(found, member)
        if why:
            raise EtcdError(f"{name} stays a member of etcd: {why}")
        # The other members first: the removed one stops.
        order = [url for one in found if one["id"] != member["id"] and one["healthy"] for url in one["clients"]]
        call(order, "/v3/cluster/member/remove", {"ID": member["id"]})
        found = [one for one in found if one["id"] != member["id"]]
    return found


def snapshot(target, url=LOCAL):
    """Write a snapshot of the database to a new file, and check its digest."""
    response = request(url, "/v3/maintenance/snapshot", {}, seconds=60)
    with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        for line in response:
            part = json.loads(line)
            if "error" in part:
                raise EtcdError(f"snapshot: {message(json.dumps(part['error']))}")
            file.write(base64.b64decode(part["result"].get("blob", "")))
        file.flush()
        os.fsync(file.fileno())
    check(target)


def check(path):
    """Check a snapshot: etcd sends the SHA-256 of the database after it (etcdutl/snapshot/v3_snapshot.go)."""
    size = Path(path).stat().st_size - DIGEST
    if size <= 0 or size % PAGE:
        raise EtcdError(f"{path} is not a whole snapshot: it has {size + DIGEST} bytes")
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        left = size
        while left:
            part = file.read(min(left, 1 << 20))
            digest.update(part)
            left -= len(part)
        if file.read() != digest.digest():
            raise EtcdError(f"{path} is damaged: its SHA-256 differs")
