"""What role sssd writes on each supported system, where a lost line would open local accounts to a directory."""

import configparser
import re
from pathlib import Path

import pytest

from tests import programs
from tests.systems.rendering import SYSTEMS, Role, a_cluster

PASSWD = {
    "root": ["x", "0", "0", "", "/root", "/bin/bash"],
    "ubuntu": ["x", "1000", "1000", "", "/home/ubuntu", "/bin/bash"],
    "sshd": ["x", "101", "65534", "", "/run/sshd", "/usr/sbin/nologin"],
}
AUTHSELECT = """#!/bin/sh
if [ "$1" = current ]; then echo 'sssd with-faillock without-nullok with-mkhomedir'; else echo "$@" >DIR/called; fi
"""


def sssd(directory: Path, system: str) -> Role:
    accounts = [
        {"name": "ada", "uid": 10001},
        {"name": "gone", "uid": 10002, "state": "absent"},
        {"name": "eve", "state": "absent"},
    ]
    role = a_cluster(directory, system).role(
        "sssd", "gpu01", users_accounts=accounts, users_operators=["olga"], ansible_user="deploy"
    )
    role.variables["ansible_facts"]["getent_passwd"] = PASSWD
    return role


def options(role: Role, section: str) -> dict[str, str]:
    found = configparser.ConfigParser(interpolation=None)
    found.read_string(role.render(role.path / "templates/sssd.conf.j2"))
    return dict(found[section])


@pytest.mark.proves("identity", "SSSD ignores entries of a directory with the name of a local account.")
@pytest.mark.parametrize("system", SYSTEMS)
def test_filter_users__of_each_system__has_the_accounts_with_a_shell(tmp_path: Path, system: str) -> None:
    found = options(sssd(tmp_path, system), "nss")["filter_users"].split(", ")
    assert found == ["ada", "clusterverify", "deploy", "munge", "olga", "root", "slurm", "ubuntu"]


@pytest.mark.proves("identity", "SSSD resolves no name that is a path, and no ID of slurm and systemd.")
def test_sssd_conf__names_and_ids__are_limited(tmp_path: Path) -> None:
    role = sssd(tmp_path, "debian-13")
    found = options(role, "domain/directory")
    assert (found["min_id"], found["max_id"]) == ("1000", "59999")
    for name, is_one in {"eve": True, "GPU-users": True, "../etc": False, "a/b": False, ".a": False, "": False}.items():
        assert bool(re.match(found["re_expression"], name)) is is_one, name
    role.variables.update(sssd_id_mapping=True)
    assert options(role, "domain/directory")["max_id"] == "2000200000"


@pytest.mark.proves("identity", "The guard of the directory's people is an account step of each service.")
@pytest.mark.parametrize("system", SYSTEMS)
def test_pam__of_each_system__asks_the_guard(tmp_path: Path, system: str) -> None:
    role = sssd(tmp_path, system)
    files = {item["dest"]: item for _, call in role.calls() for item in call.get("files", [])}
    if role.variables["ansible_facts"]["os_family"] == "Debian":
        text = str(role.content(files["/usr/share/pam-configs/clusterctl-directory"]))
        assert "Account:" in text and "/usr/local/sbin/directory-guard" in text and "pam_access.so" in text
        return
    for service in ("login", "su", "cockpit", "remote"):
        assert "directory-guard" in files[f"/etc/pam.d/{service}"]["insert"], service


@pytest.mark.proves("identity", "The RHEL family keeps the features of authselect that the site has.")
def test_authselect__with_features_of_the_site__keeps_them(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    role = sssd(tmp_path / "cluster", "rocky-9")
    (argv,) = [item["on_change"] for item in role.value("__sssd_home_files")]
    (tmp_path / "authselect").write_text(AUTHSELECT.replace("DIR", str(tmp_path)))
    (tmp_path / "authselect").chmod(0o755)
    done = programs.call([*argv], 30, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    wanted = "select sssd with-faillock with-mkhomedir without-nullok --backup=clusterctl-sssd\n"
    assert (tmp_path / "called").read_text() == wanted
