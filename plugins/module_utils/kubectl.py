"""Run kubectl on a head as the cluster's administrator."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time

from ansible.module_utils.node_state.tools import ENVIRONMENT, NodeError, complaint, without_proxies

KUBECONFIG = "/etc/kubernetes/admin.conf"
CACHE = "/var/cache/clusterctl/kubectl"  # by default kubectl writes to the directory of the user
SECONDS = 120
# Errors while an API server starts, as it does after an upgrade of its kubelet. Before it has read the roles it forbids
# everything, also to the administrator.
STARTING = re.compile(
    r"connection (refused|reset)|was refused|: EOF$|TLS handshake timeout|\(ServiceUnavailable\)|etcdserver: "
    r"|not yet ready to handle request|error validating data: unknown"
    r"|\(Forbidden\).* User \"kubernetes-admin\" cannot ",
    re.MULTILINE,
)
STARTING_S = 90  # seconds in which an API server must have started


def kubectl(*argv, stdin=None, check=True, seconds=SECONDS, kubeconfig=KUBECONFIG):
    """Run kubectl; return (exit status, standard output, standard error). `stdin` is text, or an object for JSON.

    With `check`, repeats what fails because the API server starts, and raises NodeError if it fails otherwise.
    Raises NodeError if it does not end in `seconds`.
    """
    deadline = time.monotonic() + STARTING_S
    while True:
        status, out, said = _once(*argv, stdin=stdin, seconds=seconds, kubeconfig=kubeconfig)
        if not check or status == 0:
            return status, out, said
        if not STARTING.search(said) or time.monotonic() > deadline:
            raise NodeError(f"kubectl {' '.join(argv[:2])}: {complaint(said or out)}")
        time.sleep(1)


def _once(*argv, stdin, seconds, kubeconfig):
    """Run kubectl once; return the same."""
    environment = {**without_proxies(os.environ), **ENVIRONMENT, "KUBECONFIG": kubeconfig, "KUBERC": "off"}
    given = stdin if stdin is None or isinstance(stdin, str) else json.dumps(stdin)
    source = {"stdin": subprocess.DEVNULL} if given is None else {"input": given}
    command = ["kubectl", f"--cache-dir={CACHE}", *argv]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            timeout=seconds,
            check=False,
            **source,
        )
    except subprocess.TimeoutExpired:
        raise NodeError(f"kubectl {argv[0]} did not end in {seconds} s; the API may not respond") from None
    except FileNotFoundError:  # in a dry run before the packages are installed
        return 127, "", "it is not installed"
    except OSError as error:
        raise NodeError(f"cannot run kubectl: {error.strerror}") from None
    return done.returncode, done.stdout, done.stderr


def as_list(objects):
    """Return objects as one List, as kubectl reads it from standard input."""
    return {"apiVersion": "v1", "kind": "List", "items": list(objects)}


def items(output):
    """Return the objects in kubectl's JSON: it prints a List, one object alone without a list, and nothing for none."""
    if not output.strip():
        return []
    data = json.loads(output)
    return data["items"] if data.get("kind", "").endswith("List") and "items" in data else [data]


def get(*argv, **options):
    """Return the objects that `kubectl get` finds."""
    return items(kubectl("get", *argv, "--output=json", **options)[1])
