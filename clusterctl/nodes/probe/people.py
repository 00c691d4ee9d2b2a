"""The IDs of people, as this node resolves them."""

import os
import re
import subprocess
from typing import List

from clusterctl.nodes.probe.common import PEOPLE_OF_A_SECOND, PEOPLE_SECONDS, Facts


def people_seconds(number: int) -> int:
    """Return for how long a node may resolve so many people."""
    return PEOPLE_SECONDS + number // PEOPLE_OF_A_SECOND


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
            timeout=people_seconds(len(names)),
            env=dict(os.environ, LC_ALL="C"),
        )
    except (OSError, subprocess.SubprocessError):
        found["error"] = "it does not resolve users within %d s" % people_seconds(len(names))
        return found
    asked = set(names)
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        fields = line.split(":")
        if len(fields) == 7 and fields[0] in asked and re.match(r"\d{1,10}:\d{1,10}$", ":".join(fields[2:4])):
            found["ids"].setdefault(fields[0], ":".join(fields[2:4]))
    return found
