"""The program of Ansible's process (process.py): `ansible-playbook`, which first loads its code, and then waits.

It reads its command from standard input, as a line of JSON: the arguments, and what its environment has besides. It
ends if none comes. Its own arguments are for people who look at the list of processes.
"""

import json
import os
import sys


def main() -> None:
    """Load Ansible's code, wait for the command, and run it."""
    from ansible.cli import playbook

    from clusterctl.ansible import preload

    preload.read_declarations()
    preload.share_texts()
    line = b""
    while not line.endswith(b"\n"):  # what follows is for Ansible, which reads it by itself
        if not (byte := os.read(0, 1)):
            return
        line += byte
    command = json.loads(line)
    os.environ.update(command["environment"])
    sys.argv = ["ansible-playbook", *command["argv"]]
    playbook.main()


if __name__ == "__main__":
    main()
