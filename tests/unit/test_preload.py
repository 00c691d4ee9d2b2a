"""What the process that forks for each task has loaded, in a process of its own."""

import json
import subprocess
import sys

import pytest

from tests.labs import REPOSITORY

# It forks as Ansible does, and has the child count the files that it reads.
SCRIPT = """
import json, os, sys
from ansible.plugins import loader
loader.init_plugin_loader()  # as ansible-playbook does
if sys.argv[1] == "preload":
    from clusterctl.ansible.preload import preload
    preload()
reader, writer = os.pipe()
if not os.fork():
    opened = []
    sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
    from clusterctl.ansible import light_module
    from clusterctl.inventory import ports, schema, services
    loader.filter_loader.get("users_complete")
    for name in ("role_packages", "role_ports", "cluster_members", "node_ip", "file", "template"):
        assert loader.lookup_loader.get(name, class_only=True)
    for name in ("node_state", "normal", "command", "include_vars"):
        assert loader.action_loader.get(name, class_only=True)
    assert loader.connection_loader.get("ssh", class_only=True)
    assert loader.shell_loader.get("sh") and loader.become_loader.get("sudo", class_only=True)
    schema.load(), ports.load_all(), services.load_all()
    for name in light_module.names():
        light_module.sources(name)
    os.write(writer, json.dumps([len(opened), opened[:3]]).encode())
    os._exit(0)
os.wait()
print(os.read(reader, 4096).decode())
"""


def opened_by_a_task(how: str) -> tuple[int, list[str]]:
    """Return how many files a forked process reads for a task's plugins and declarations, and the first ones."""
    env = {"ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"), "PATH": "/usr/bin:/bin"}
    argv = [sys.executable, "-c", SCRIPT, how]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120, cwd=REPOSITORY, env=env)
    number, first = json.loads(done.stdout)
    return int(number), list(first)


def test_task__after_preload__reads_no_usual_plugin_and_no_declaration() -> None:
    assert opened_by_a_task("nothing")[0] > 100
    assert opened_by_a_task("preload") == (0, [])


# Roles' variables as Ansible reads them, and a copy of them.
COPIES = """
import copy, sys
from ansible.parsing.dataloader import DataLoader
from ansible._internal._datatag._tags import Origin
if sys.argv[1] == "share":
    from clusterctl.ansible.preload import share_texts
    share_texts()
loader = DataLoader()
one, other = (loader.load_from_file("roles/base/vars/main.yml", trusted_as_template=True) for _ in range(2))
key = next(name for name, value in one.items() if isinstance(value, str))
assert one == other and one is not other
assert Origin.get_tag(one[key]) == Origin.get_tag(other[key]) and Origin.get_tag(one[key]).line_num
names = [name for name, value in one.items() if isinstance(value, (list, dict))]
assert names and all(one[name] is not other[name] for name in names)
print(one[key] is other[key])
"""


@pytest.mark.parametrize(("how", "shares"), [("share", "True"), ("nothing", "False")])
def test_copies__of_what_ansible_reads__share_texts_alone(how: str, shares: str) -> None:
    argv = [sys.executable, "-c", COPIES, how]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120, cwd=REPOSITORY)
    assert (done.stdout.strip(), done.stderr) == (shares, "")
