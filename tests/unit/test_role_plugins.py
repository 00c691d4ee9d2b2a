"""The filters and lookups by which roles turn the inventory into a node's description."""

import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest
from ansible.errors import AnsibleError

from clusterctl.inventory import addresses
from clusterctl.util import paths


def plugin(path: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(
        path.replace("/", "_"), paths.content() / f"plugins/{path}.py"
    )
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module  # where a dataclass looks for its names
    specification.loader.exec_module(module)
    return module


USERS = plugin("filter/users")
FILES = plugin("filter/absent_unless")
NODE_IP = plugin("lookup/node_ip")
PROXY = plugin("filter/proxy_of")

ADA = {"name": "ada", "uid": 10001, "groups": ["vision"], "ssh_keys": [" ssh-ed25519 AAAA ada\n"]}


def ada(**other: Any) -> list[dict[str, Any]]:
    """Ada's account with all its keys."""
    people: list[dict[str, Any]] = USERS.complete([ADA | other], "/home", "/bin/bash", "cluster")
    return people


def test_two_accounts_with_one_number_are_refused() -> None:
    with pytest.raises(AnsibleError, match="two accounts have the uid 10001"):
        USERS.complete([ADA, {"name": "bob", "uid": 10001}], "/home", "/bin/bash", "cluster")


def test_an_administrator_of_the_nodes_is_none_of_slurm() -> None:
    assert USERS.in_slurm(ada(admin=True), "cluster")["users"][0]["admin_level"] == "None"


def test_home__named__is_where_it_says() -> None:
    assert ada(home="/srv/admins/ada")[0]["home"] == "/srv/admins/ada"


def test_keys_are_whole_lines_and_leave_with_their_user() -> None:
    assert USERS.key_files(ada(), "/keys") == [{"dest": "/keys/ada", "content": "ssh-ed25519 AAAA ada\n"}]
    assert USERS.key_files(ada(state="absent"), "/keys") == [{"dest": "/keys/ada", "state": "absent"}]
    assert USERS.key_files(ada(ssh_keys=[]), "/keys") == [{"dest": "/keys/ada", "state": "absent"}]


def test_everybody_has_an_account_in_slurm() -> None:
    people = [*ada(admin=True, slurm_admin_level="Operator", slurm_options={"MaxJobs": 3}), {"name": "verify"}]
    assert USERS.in_slurm(people, "cluster") == {
        "accounts": [{"name": "cluster"}],
        "users": [
            {"name": "ada", "accounts": ["cluster"], "admin_level": "Operator", "options": {"MaxJobs": 3}},
            {"name": "verify", "accounts": ["cluster"], "admin_level": "None", "options": {}},
        ],
    }


def test_in_slurm__accounts_of_the_inventory__follow_their_parents() -> None:
    declared = [
        {"name": "Vision", "parent": "science"},
        {"name": "science"},
        {"name": "root", "options": {"MaxJobs": 9}},
    ]
    people = ada(slurm_account="vision") + ada(name="bob", slurm_account="art")
    names = [one["name"] for one in USERS.in_slurm(people, "cluster", declared)["accounts"]]
    assert names == ["root", "science", "Vision", "art"]


def test_a_setting_that_is_taken_back_takes_its_files_with_it() -> None:
    files = [{"dest": "/a", "content": "x", "mode": "0600", "before_packages": True}]
    assert FILES.absent_unless(files, "http://proxy") == files
    assert FILES.absent_unless(files, "") == [{"dest": "/a", "before_packages": True, "state": "absent"}]
    assert FILES.absent_unless(files, "", "restored") == [{"dest": "/a", "before_packages": True, "state": "restored"}]


RECORD = {
    "nics": [
        {"name": "lo", "addresses": ["127.0.0.1/8"]},
        {"name": "mgmt", "addresses": ["fe80::1/64", "192.0.2.7/24"]},
        {"name": "ib0", "addresses": ["10.0.0.7/24"]},
    ]
}


@pytest.mark.parametrize(
    ("networks", "address"),
    [
        ([], "192.0.2.7"),
        (["10.0.0.0/24"], "10.0.0.7"),
        (["10.0.0.1/24"], "10.0.0.7"),
        (["10.0.0.0/24", "192.0.2.0/24"], "10.0.0.7"),
        (["192.0.2.0/24", "10.0.0.0/24"], "192.0.2.7"),
        (["172.16.0.0/12"], ""),
    ],
)
def test_a_name_gets_a_recorded_address_in_the_clusters_networks(networks: list[str], address: str) -> None:
    assert NODE_IP.recorded(RECORD, networks) == address


def test_node_ip__of_kubernetes__is_no_address_of_pods() -> None:
    record = {"nics": [{"name": "cilium_host", "addresses": ["10.244.0.7/32"]}, *RECORD["nics"]]}
    assert NODE_IP.recorded(record, [], dict.fromkeys(addresses.BESIDE, "")) == "10.244.0.7"
    beside = {**dict.fromkeys(addresses.BESIDE, ""), addresses.POD_NETWORK: "10.244.0.0/16"}
    assert NODE_IP.recorded(record, [], beside) == "192.0.2.7"


@pytest.mark.parametrize(
    ("url", "is_proxied"),
    [
        ("https://hooks.slack.com/services/x", True),
        ("https://chat.example.org/x", False),
        ("https://a.b.example.org:8443/x", False),
        ("https://badexample.org/x", True),
        ("https://site.test/x", True),
        ("https://hooks.site.test/x", False),
        ("http://10.1.2.3:9/x", False),
        ("http://10.2.2.3:9/x", True),
        ("http://[fd00::7]/x", False),
        ("http://LOCALHOST/x", False),
        ("http://127.0.0.9:8098/x", False),
        ("http://[::1]/x", False),
        ("https://ports.test:8443/x", False),
        ("https://ports.test/x", True),
        ("http://plain.test/x", False),
        ("https://plain.test/x", True),
        ("http://[fd01::7]:8080/x", False),
        ("no url", True),
        ("http://[bad/x", True),
    ],
)
def test_proxy_of__by_exceptions__as_no_proxy_says(url: str, is_proxied: bool) -> None:
    exceptions = ["example.org", ".site.test", "10.1.0.0/16", "fd00::/64", "ports.test:8443", "plain.test:80"]
    exceptions += ["[fd01::7]:8080"]
    assert PROXY.proxy_of(url, "http://proxy:3128", exceptions) == ("http://proxy:3128" if is_proxied else "")
    assert PROXY.proxy_of(url, "http://proxy:3128", ["*"]) == PROXY.proxy_of(url, "", []) == ""
