"""Run kubectl as the cluster's administrator, for the programs of a head."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.parse
from pathlib import Path

ADMIN = "/etc/kubernetes/admin.conf"
CACHE = "/var/cache/clusterctl/kubectl"  # by default kubectl writes to the directory of the user
PAGE = 500  # objects, as kubectl reads them (--chunk-size)
CLUSTER = Path("/etc/kubernetes/clusterctl/nodes.json")


class KubernetesError(Exception):
    """A command failed; the text is its error."""


def environment():
    """Return the environment of kubectl and kubeadm, without a site's proxies: they do not reach the API."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return dict(kept, LC_ALL="C", KUBECONFIG=ADMIN, KUBERC="off")


def run(*argv, stdin=None, seconds=60):
    """Run a command; return its output. Raises KubernetesError if it fails. `stdin` is text, or an object for JSON."""
    given = stdin if stdin is None or isinstance(stdin, str) else json.dumps(stdin)
    source = {"stdin": subprocess.DEVNULL} if given is None else {"input": given}
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment(),
            timeout=seconds,
            check=False,
            **source,
        )
    except subprocess.TimeoutExpired:
        raise KubernetesError(f"{argv[0]} did not end in {seconds} s")
    except OSError as error:
        raise KubernetesError(f"cannot run {argv[0]}: {error.strerror}")
    if done.returncode:
        words = " ".join((done.stderr.strip() or done.stdout.strip()).split())
        command = " ".join(word for word in argv[:4] if not word.startswith("-"))
        raise KubernetesError(f"{command}: {words[-500:]}")
    return done.stdout


def kubectl(*argv, **options):
    """Run kubectl; return its output."""
    return run("kubectl", f"--cache-dir={CACHE}", *argv, **options)


def get(*argv):
    """Return the objects that `kubectl get` finds."""
    printed = kubectl("get", *argv, "--output=json")
    data = json.loads(printed) if printed.strip() else {"items": []}
    return data.get("items", [data])


def own_server():
    """Return the URL of this head's own API server; admin.conf has the address of all heads."""
    found = cluster()
    address = found["heads"][found["name"]]
    return f"https://[{address}]:{found['port']}" if ":" in address else f"https://{address}:{found['port']}"


def raw(path):
    """Return what this head's own API server has at a path. Raises KubernetesError, also if it is not JSON."""
    try:
        return json.loads(kubectl("get", "--raw", path, f"--server={own_server()}"))
    except ValueError as error:
        raise KubernetesError(f"{path}: {error}")


def pages(path):
    """Yield the objects of a long list at a path of this head's own API server, page by page.

    The API server ignores the limit for resourceVersion=0.
    """
    query, token = f"{path}{'&' if '?' in path else '?'}limit={PAGE}", ""
    while True:
        found = raw(f"{query}&continue={urllib.parse.quote(token, safe='')}" if token else query)
        yield found["items"]
        token = found["metadata"].get("continue", "")
        if not token:
            return


def cluster():
    """Return what the role wrote about this head and the cluster's nodes."""
    return json.loads(CLUSTER.read_text())


def only_root(program):
    """End the program unless root runs it."""
    if os.geteuid() != 0:
        sys.exit(f"{program}: only root can run this")
