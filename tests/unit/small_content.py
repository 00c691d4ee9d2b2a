"""A small Ansible content tree for tests of the inventory: two schedulers, one role with an option of each type."""

from pathlib import Path

_FILES = {
    "playbooks/bootstrap.yml": """\
- {name: All, hosts: all, roles: [base]}
- {name: Heads, hosts: "slurm_head:kubernetes_head", roles: [base]}
- {name: Workers, hosts: "slurm_workers:!slurm_head", roles: [{role: demo}]}
- {name: More workers, hosts: kubernetes_workers, roles: [demo]}
- {name: Metrics, hosts: monitoring, roles: []}
""",
    "playbooks/group_vars/all.yml": """\
cluster_address: "{{ ansible_host | default(inventory_hostname) }}"
cluster_domain: "{{ cluster_name }}.cluster"
cluster_ca_certificates: []
cluster_networks: []
cluster_timezone: Etc/UTC
ansible_become: true
""",
    "roles/base/meta/argument_specs.yml": """\
argument_specs:
  main:
    options:
      cluster_name: {type: str, required: true, description: Name of the cluster.}
      cluster_address: {type: str, description: Address inside the cluster.}
      cluster_domain: {type: str, description: DNS domain.}
      cluster_networks: {type: list, elements: str, description: "Networks, C(CIDR)."}
      cluster_ca_certificates: {type: list, elements: str, description: PEM files.}
      cluster_timezone: {type: str, description: [Time zone.]}
""",
    "roles/demo/meta/argument_specs.yml": """\
argument_specs:
  main:
    options:
      demo_level: {type: str, choices: [low, high], description: How much.}
      demo_port: {type: int, description: TCP port.}
      demo_ratio: {type: float, description: A share.}
      demo_on: {type: bool, description: Whether.}
      demo_file: {type: path, description: A file.}
      demo_extra: {type: dict, description: "Options, by name."}
      demo_any: {type: raw, description: Anything.}
      demo_token: {type: int, no_log: true, description: Not to be shown.}
      demo_users:
        type: list
        elements: dict
        description: People.
        options:
          name: {type: str, required: true, description: Login name.}
          uid: {type: int, description: Number.}
          groups: {type: list, elements: str, description: Groups.}
""",
    "roles/demo/defaults/main.yml": """\
demo_level: low
demo_port: 9999
demo_ratio: 0.5
demo_on: false
demo_file: /etc/demo
demo_extra: {}
demo_any: ""
demo_users: []
""",
    "roles/demo/meta/secrets.yml": """\
demo_key: {bytes: 128, encoding: base64}
demo_password: {bytes: 32, encoding: urlsafe}
demo_hash: {bcrypt_of: demo_password}
demo_hex: {bytes: 32, encoding: hex}
""",
}


def make(directory: Path) -> Path:
    """Write the tree below `directory` and return it."""
    for name, text in _FILES.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return directory
