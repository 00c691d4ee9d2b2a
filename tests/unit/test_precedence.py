"""Which value wins is decided by Ansible, and told beforehand by our own reading: both must agree."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.inventory import model as inventory
from clusterctl.inventory import schema
from clusterctl.util import paths

from . import small_content

PLAY = [
    {
        "hosts": "all",
        "gather_facts": False,
        "tasks": [
            {
                "ansible.builtin.assert": {"that": "lookup('vars', item) == expected[inventory_hostname][item]"},
                "loop": "{{ expected[inventory_hostname] | list }}",
            }
        ],
    }
]
FILES = {
    "inventory.yaml": """\
all:
  vars: {cluster_name: aurora, cluster_timezone: Europe/Berlin, demo_level: high, demo_port: 1}
  children:
    slurm_head: {hosts: {head1: }}
    slurm_workers:
      vars: {demo_ratio: 0.1, demo_on: true, demo_extra: {from: workers}, demo_file: /workers}
      hosts: {"gpu[01:03]": {}}
      children:
        a100: {vars: {demo_ratio: 0.2, demo_any: a100, demo_port: 2}, hosts: {gpu02: {demo_any: gpu02}, gpu03: }}
        zone: {vars: {demo_any: zone}, hosts: {gpu03: }}
    monitoring: {vars: {demo_any: monitoring}, hosts: {head1: , gpu01: }}
""",
    "group_vars/all.yml": "cluster_networks: [10.0.0.0/8]\ndemo_file: /all-file\n",
    "group_vars/slurm_workers/one.yml": "demo_users: [{name: ada}]\n",
    "group_vars/a100.yaml": "demo_users: []\ndemo_extra: {from: a100-file}\n",
    "host_vars/gpu03.yml": "demo_extra: {from: host-file}\n",
}


@pytest.mark.proves("print-command", "Ansible gives each host the values that clusterctl reads.")
def test_ansible_gives_each_host_the_values_that_we_read(tmp_path: Path) -> None:
    """The defaults of the playbook lose against everything that a person writes; Ansible's own order has them win."""
    content, cluster = small_content.make(tmp_path / "content"), tmp_path / "aurora"
    for name, text in FILES.items():
        (cluster / name).parent.mkdir(parents=True, exist_ok=True)
        (cluster / name).write_text(text, encoding="utf-8")
    (content / "playbooks/play.yml").write_text(json.dumps(PLAY), encoding="utf-8")
    read = inventory.load(cluster / "inventory.yaml", schema.load(content))
    expected = {host.name: dict(host.variables) for host in read.hosts}
    assert {host: values["cluster_timezone"] for host, values in expected.items()} == dict.fromkeys(
        ["head1", "gpu01", "gpu02", "gpu03"], "Europe/Berlin"
    )
    (tmp_path / "expected.json").write_text(json.dumps({"expected": expected}), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    environment |= {"ANSIBLE_CONFIG": str(paths.content() / "ansible.cfg"), "ANSIBLE_HOME": str(tmp_path / "home")}
    playbook = Path(sys.executable).parent / "ansible-playbook"
    run = subprocess.run(
        [playbook, "-i", "aurora/inventory.yaml", "-e", "@expected.json", "content/playbooks/play.yml"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("All assertions passed") == sum(len(values) for values in expected.values())
