"""Make a role with all its parts: scripts/new-role NAME. What it needs besides is printed.

The role installs one package of its own name and starts its service, on hosts of a new group of that name, until its
files say otherwise.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

from tests.labs import REPOSITORY

_NAME = re.compile(r"[a-z][a-z0-9_]{1,30}")
_FILES = {
    "roles/NAME/defaults/main.yml": """\
---
NAME_version: ""
""",
    "roles/NAME/meta/argument_specs.yml": """\
---
argument_specs:
  main:
    short_description: Short description of NAME
    description:
      - What the role delivers, in a sentence.
    options:
      NAME_version:
        type: str
        description: Version of the package, such as V(1.2.*). Empty is the newest of the package sources.
""",
    "roles/NAME/meta/services.yml": """\
---
- {unit: NAME.service}
""",
    "roles/NAME/vars/main.yml": """\
---
__NAME_packages: "{{ ['NAME'] | pinned(NAME_version) }}"
""",
    "roles/NAME/tasks/main.yml": """\
---
- name: Configure NAME
  node_state:
    packages: "{{ __NAME_packages }}"
    units:
      - {name: NAME, restart_on: [package:NAME]}
""",
    "roles/NAME/tasks/remove.yml": """\
---
- name: Remove NAME
  node_state:
    state: absent
""",
    "tests/molecule/NAME/molecule.yml": """\
---
scenario:
  name: NAME
""",
    "tests/molecule/NAME/converge.yml": """\
---
- name: Converge
  hosts: slurm_workers
  gather_facts: true
  roles: [NAME]
""",
    "tests/molecule/NAME/verify.yml": """\
---
- name: Verify
  hosts: slurm_workers
  gather_facts: true
  tasks:
    - name: Ask systemd whether it runs, now and after a reboot
      ansible.builtin.command: systemctl {{ item }} NAME
      loop: [is-active, is-enabled]
      changed_when: false

    - name: Remove the role
      ansible.builtin.include_role: {name: NAME, tasks_from: remove}

    - name: Ask dpkg
      ansible.builtin.command: dpkg-query --show --showformat=${db:Status-Status} NAME
      register: asked
      changed_when: false
      failed_when: asked.stdout == 'installed'
""",
}
_PLAY = """\
- name: Configure NAME
  hosts: NAME
  roles:
    - {role: NAME, tags: NAME}

"""
# Before it all roles of their own groups are played, after it monitoring's.
_BEFORE = "- name: Set up Prometheus\n"
_GENERATED = {
    "docs/variables.md": "clusterctl.cli.docs_variables",
    "docs/ports.md": "clusterctl.inventory.ports",
    "docs/packages.md": "tests.systems.packages",
}


def make(name: str, root: Path = REPOSITORY) -> list[Path]:
    """Write the files of a role and its play; return the files. ValueError for a name that cannot be one."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r}: expected a name such as tuned: small letters, digits and _")
    if (root / "roles" / name).exists():
        raise ValueError(f"roles/{name} exists already")
    playbook = root / "playbooks/bootstrap.yml"
    before, found, after = playbook.read_text().partition(_BEFORE)
    if not found:
        raise ValueError(f"{playbook} has no play {_BEFORE.strip()!r}")
    made = []
    for file, text in _FILES.items():
        path = root / file.replace("NAME", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("NAME", name))
        made.append(path)
    playbook.write_text(before + _PLAY.replace("NAME", name) + found + after)
    return [*made, playbook]


def main() -> int:
    """Make the role that the command line names."""
    parser = argparse.ArgumentParser(prog="scripts/new-role", description="Make a role with all its parts.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("name", nargs="?", metavar="NAME", help="the role's name, and that of its group and package")
    what.add_argument("--docs", action="store_true", help="only generate the pages of variables, ports and packages")
    asked = parser.parse_args()
    name = asked.name
    try:
        made = [] if asked.docs else make(name)
    except ValueError as error:
        parser.error(str(error))
    for page, module in _GENERATED.items():
        text = subprocess.run([sys.executable, "-m", module], check=True, capture_output=True, text=True).stdout
        (REPOSITORY / page).write_text(text)
    print(*(str(path.relative_to(REPOSITORY)) for path in (*made, *map(REPOSITORY.joinpath, _GENERATED))), sep="\n")
    if made:
        print(f'Next: edit them, then scripts/role {name}. CONTRIBUTING.md, "Add a role", says what each is for.')
    return 0


if __name__ == "__main__":
    sys.exit(main())
