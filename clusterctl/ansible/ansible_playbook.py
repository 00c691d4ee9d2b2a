"""The program of Ansible's process (process.py): `ansible-playbook`, which first loads its code, and then waits.

It reads its command from standard input, as a line of JSON: the arguments, and what its environment has besides. It
ends if none comes. Its own arguments are for people who look at the list of processes.
"""

import atexit
import json
import os
import sys


def main() -> None:
    """Load Ansible's code, wait for the command, and run it."""
    codes: list[int] = []
    atexit.register(_exit_at_once, codes)  # before what Ansible's code registers, so that it is called after that

    from ansible.cli import playbook

    from clusterctl.ansible import compiled, preload

    preload.read_declarations()
    preload.share_texts()
    compiled.keep()
    line = b""
    while not line.endswith(b"\n"):  # what follows is for Ansible, which reads it by itself
        if not (byte := os.read(0, 1)):
            return
        line += byte
    command = json.loads(line)
    os.environ.update(command["environment"])
    sys.argv = ["ansible-playbook", *command["argv"]]
    try:
        playbook.main()
    except SystemExit as end:
        if isinstance(end.code, int):
            codes.append(end.code)
        raise


def _exit_at_once(codes: list[int]) -> None:
    """Exit with Ansible's code without freeing the memory, which takes Python a quarter of a second."""
    if codes:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(codes[0])


if __name__ == "__main__":
    main()
