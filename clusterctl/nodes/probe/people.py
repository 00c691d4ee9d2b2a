"""The IDs of people, as this node resolves them."""

import os
import re
import subprocess
from typing import List

from clusterctl.nodes.probe.common import PEOPLE_SECONDS, Facts


def people(names: List[str]) -> Facts:
    """Return UID and GID of each person that the node knows, or why it has no answer.

    A directory whose server does not respond must not delay the answer for long.
    """
    found = {"ids": {}, "error": None}  # type: Facts
    if not names:
        return found
    try:
        done = subprocess.run(
            ["getent", "passwd", "--", *names],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PEOPLE_SECONDS,
            env=dict(os.environ, LC_ALL="C"),
        )
    except (OSError, subprocess.SubprocessError):
        found["error"] = "it does not resolve users within %d s" % PEOPLE_SECONDS
        return found
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        fields = line.split(":")
        if len(fields) == 7 and fields[0] in names and re.match(r"\d{1,10}:\d{1,10}$", ":".join(fields[2:4])):
            found["ids"].setdefault(fields[0], ":".join(fields[2:4]))
    return found
