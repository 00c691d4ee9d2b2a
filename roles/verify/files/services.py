"""Check that a node's services run now and after a reboot, and that munge works; report the GPUs' health.

Sent to python3 on the node by standard input.

Usage: python3 - UNIT...
"""

import os
import subprocess
import sys

HEALTH = "/usr/local/sbin/gpu-health"
PROPERTIES = "Id,LoadState,ActiveState,SubState,UnitFileState"


def output(*argv, text=None):
    """Return the exit status and the output of a command, including standard error."""
    done = subprocess.run(
        argv, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, check=False
    )
    return done.returncode, done.stdout.strip()


def unit_problems(units):
    """Yield the problems of each unit."""
    _, shown = output("systemctl", "show", "--property=" + PROPERTIES, *units)
    for unit, block in zip(units, shown.split("\n\n")):
        state = dict(line.split("=", 1) for line in block.splitlines())
        if state["ActiveState"] != "active":
            _, journal = output("journalctl", "--unit", unit, "--lines", "5", "--no-pager", "--output", "cat")
            yield "%s is %s (%s), not active: %s" % (unit, state["ActiveState"], state["SubState"], journal)
        if state["UnitFileState"] != "enabled":
            what = state["UnitFileState"] or "missing"
            yield "%s is %s, not enabled: it would not start after a reboot" % (unit, what)


def munge_problems():
    """Yield an error if munge does not accept its own credential."""
    status, credential = output("munge", "--no-input")
    if status == 0:
        status, credential = output("unmunge", text=credential)
    if status:
        yield "munge: " + credential


def firewall_problems():
    """Yield an error if the firewall's rules are not loaded."""
    status, error = output("/usr/local/sbin/clusterctl-firewall", "status")
    if status:
        yield error


def health_problems():
    """Yield an error if the GPUs' health cannot be reported to the head.

    The last check may have been during a reset or an upgrade of the driver, and the next one is minutes away.
    """
    status, error = output(HEALTH)
    if status:
        yield error


def main(units):
    """Print each problem; return the exit status, 0 without problems, else 1."""
    problems = list(unit_problems(units))
    if "munge.service" in units and not problems:
        problems += munge_problems()
    if "clusterctl-firewall.service" in units and not problems:
        problems += firewall_problems()
    if {"slurmd.service", "kubelet.service"} & set(units) and not problems and os.path.exists(HEALTH):
        problems += health_problems()
    print("\n".join(problems) or "%d services enabled and active" % len(units))
    return 1 if problems else 0


sys.exit(main(sys.argv[1:]))
