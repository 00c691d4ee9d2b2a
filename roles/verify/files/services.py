"""Proves that the services of a node run now and after a reboot, and that munge works; has the GPUs' health told.

Fed to python3 on the node by stdin.

Usage: python3 - UNIT...
"""

import os
import subprocess
import sys

HEALTH = "/usr/local/sbin/gpu-health"
PROPERTIES = "Id,LoadState,ActiveState,SubState,UnitFileState"


def output(*argv, text=None):
    """Return what a command prints, standard error included."""
    done = subprocess.run(
        argv, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, check=False
    )
    return done.returncode, done.stdout.strip()


def unit_problems(units):
    """Yield what is wrong with each unit."""
    _, told = output("systemctl", "show", "--property=" + PROPERTIES, *units)
    for unit, block in zip(units, told.split("\n\n")):
        state = dict(line.split("=", 1) for line in block.splitlines())
        if state["ActiveState"] != "active":
            _, journal = output("journalctl", "--unit", unit, "--lines", "5", "--no-pager", "--output", "cat")
            yield "%s is %s (%s), not active: %s" % (unit, state["ActiveState"], state["SubState"], journal)
        if state["UnitFileState"] != "enabled":
            what = state["UnitFileState"] or "missing"
            yield "%s is %s, not enabled: it would not come back after a reboot" % (unit, what)


def munge_problems():
    """Yield an explanation where a credential made here is not accepted here."""
    status, credential = output("munge", "--no-input")
    if status == 0:
        status, credential = output("unmunge", text=credential)
    if status:
        yield "munge: " + credential


def firewall_problems():
    """Yield an explanation where the firewall's rules are not in the kernel."""
    status, told = output("/usr/local/sbin/clusterctl-firewall", "status")
    if status:
        yield told


def health_problems():
    """Yield an explanation where the head cannot be told how the GPUs are.

    Slurm's last look may have been while they were exchanged or reset, and its next one would be minutes away.
    """
    status, told = output(HEALTH)
    if status:
        yield told


def main(units):
    """Return the exit status: 0 when all is well, else 1 after printing each problem."""
    problems = list(unit_problems(units))
    if "munge.service" in units and not problems:
        problems += munge_problems()
    if "clusterctl-firewall.service" in units and not problems:
        problems += firewall_problems()
    if "slurmd.service" in units and not problems and os.path.exists(HEALTH):
        problems += health_problems()
    print("\n".join(problems) or "%d services enabled and active" % len(units))
    return 1 if problems else 0


sys.exit(main(sys.argv[1:]))
