"""Services that roles declare: one list for status, verify and metrics."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusterctl.inventory import services
from clusterctl.util import paths
from clusterctl.util.errors import ClusterctlError

from .ssh_server import host
from .test_lookups import look_up

EVERYWHERE = {"clusterctl-firewall", "chrony", "prometheus-node-exporter"}
HEAD = {"dnsmasq", "munge", "slurmctld", "slurmdbd", "slurm-health.socket", "slurm-metrics.timer"}


def names(*groups: str, **variables: Any) -> set[str]:
    of = replace(host(22), groups=frozenset(groups), variables=variables)
    return {one.names[0] for one in services.of_host(of)}


@pytest.mark.proves("status", "The services of a host are those that its groups' roles declare.")
def test_of_host__by_groups__are_those_of_their_roles() -> None:
    assert names("slurm_workers") == EVERYWHERE | {"munge", "slurmd"}
    assert names("kubernetes_workers") == EVERYWHERE | {"containerd", "kubelet", "gpu-health.timer"}
    assert names("slurm_head") == EVERYWHERE | HEAD | {"mariadb"}
    assert names("slurm_head", slurm_head_database_host="10.0.0.9") == EVERYWHERE | HEAD
    assert names("monitoring", "docker", "containerd") == EVERYWHERE | {
        "prometheus",
        "prometheus-alertmanager",
        "landing-page",
        "docker",
        "containerd",
    }
    assert services.scheduling() == {"munge", "slurmctld", "slurmdbd", "mariadb"}


@pytest.mark.proves("verify", "`verify` asks for the units that `status` shows, by the system's own names.")
@pytest.mark.parametrize(("family", "clock"), [("Debian", "chrony.service"), ("RedHat", "chronyd.service")])
@pytest.mark.parametrize("groups", [["slurm_workers"], ["monitoring", "slurm_head"]])
def test_role_services__of_a_host__are_those_of_status(family: str, clock: str, groups: list[str]) -> None:
    known = {"inventory_hostname": "x", "group_names": groups, "ansible_facts": {"os_family": family}}
    found = look_up("role_services", [], known)
    assert clock in found
    declared = services.of_host(replace(host(22), groups=frozenset(groups), variables={}))
    assert {*found} == {one.unit[family] for one in declared}


def test_role_services__everywhere__has_the_units_of_all_systems() -> None:
    found = look_up("role_services", [], {}, everywhere=True)
    assert {"chrony.service", "chronyd.service", "sshd.service", "slurm-health.socket"} <= {*found}


@pytest.mark.proves("code", "Every unit that a role keeps running is declared, or listed here with the reason.")
def test_declared__units_that_roles_start__are_all_there() -> None:
    """Units of templates and of roles that not every host of a group has are not for all hosts of the group."""
    declared = {name for of_role in services.load_all().values() for one in of_role for name in one.unit.values()}
    started: set[str] = set()
    for tasks in paths.content().glob("roles/*/tasks/*.yml"):
        for task in yaml.safe_load(tasks.read_text(encoding="utf-8")) or []:
            units = task.get("node_state", {}).get("units", []) if isinstance(task.get("node_state"), dict) else []
            started |= {one["name"] for one in units if isinstance(one, dict) and "{" not in one["name"]}
    started = {name if "." in name else f"{name}.service" for name in started}
    assert started - declared - NOT_EVERYWHERE == set()


# One acts at boot and ends; one is masked where logins follow jobs; one is for a class of volumes. One only counts
# updates: a node without it is in service.
NOT_EVERYWHERE = {"gpu-config.service", "systemd-logind.service", "nfs-server.service", "update-metrics.timer"}


@pytest.mark.parametrize(
    "text",
    ["[{}]", "[{unit: munge}]", "[{unit: a.service, group: x}]", "[{unit: {Debian: a.service}}]", "[munge.service]"],
)
def test_load__declaration_that_cannot_be_meant__is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta/services.yml").write_text(text, encoding="utf-8")
    with pytest.raises(ClusterctlError, match=r"meta/services\.yml"):
        services.load(tmp_path)
