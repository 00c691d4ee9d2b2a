"""The Kubernetes part of an inventory: what is checked before any node is contacted."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from clusterctl.commands import initialise
from clusterctl.inventory import kubernetes_consistency, schedulers, schema
from clusterctl.inventory import model as inventory
from clusterctl.inventory.schedulers import KUBERNETES, SLURM
from clusterctl.inventory.schema import Schema
from clusterctl.util.errors import InputError, Problem
from tests.labs import REPOSITORY

from . import small_content

GOOD = """\
all:
  vars: {cluster_name: aurora, cluster_networks: [10.0.0.0/24]}
  children:
    kubernetes_head: {hosts: {"k[1:3]": {}}}
    kubernetes_workers:
      children: {a100: {hosts: {gpu01: {ansible_host: 10.0.0.11}, gpu02: {ansible_host: 10.0.0.12}}}}
"""
SPEC = """\
argument_specs:
  main:
    options:
      kubernetes_node_version: {type: str, description: Version.}
      kubernetes_node_pod_network: {type: str, description: Network of pods.}
      kubernetes_node_service_network: {type: str, description: Network of services.}
      kubernetes_node_service_domain: {type: str, description: Domain of services.}
      kubernetes_node_api_address: {type: str, description: Address of the API.}
      kubernetes_node_api_port: {type: int, description: Port of the API.}
      kubernetes_head_keepalived: {type: bool, description: Whether keepalived runs.}
      kubernetes_head_haproxy: {type: bool, description: Whether haproxy runs.}
      kubernetes_storage_class: {type: str, description: Class of volumes.}
      kubernetes_storage_nfs_export: {type: str, description: Export of an NFS server.}
"""
DEFAULTS = """\
kubernetes_node_version: 1.36.3
kubernetes_node_pod_network: 10.244.0.0/16
kubernetes_node_service_network: 10.96.0.0/12
kubernetes_node_service_domain: cluster.local
kubernetes_node_api_address: ""
kubernetes_node_api_port: 6443
kubernetes_head_keepalived: true
kubernetes_head_haproxy: false
kubernetes_storage_class: local
kubernetes_storage_nfs_export: ""
"""


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Schema:
    content = small_content.make(tmp_path_factory.mktemp("content"))
    for name, text in (("meta/argument_specs", SPEC), ("defaults/main", DEFAULTS)):
        path = content / f"roles/kubernetes_node/{name}.yml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return schema.load(content)


def load(directory: Path, known: Schema, text: str) -> inventory.Inventory:
    (directory / "inventory.yaml").write_text(text)
    return inventory.load(directory / "inventory.yaml", known)


def in_vars(line: str, text: str = GOOD) -> str:
    return text.replace("cluster_name: aurora,", f"cluster_name: aurora, {line},")


def problems(directory: Path, known: Schema, text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        load(directory, known, text)
    return [f"{one.key}: {one.message}" for one in caught.value.problems if isinstance(one, Problem)]


def test_kinds__of_groups__are_their_prefixes() -> None:
    assert schedulers.of_groups({"a100", "kubernetes_workers"}) is KUBERNETES
    assert schedulers.of_groups({"slurm_head", "monitoring"}) is SLURM
    assert schedulers.of_groups({"monitoring"}) is None
    assert schedulers.named("kubernetes") is KUBERNETES
    assert [schedulers.nouns(kinds) for kinds in ([SLURM], [KUBERNETES], [SLURM, KUBERNETES])] == [
        "job",
        "pod",
        "workload",
    ]


def test_inventory__of_kubernetes__has_heads_and_workers(tmp_path: Path, known: Schema) -> None:
    found = load(tmp_path, known, GOOD)
    assert found.schedulers == (KUBERNETES,)
    assert (found.head.name, sorted(found.heads)) == ("k1", ["k1", "k2", "k3"])
    assert [host.name for host in found.workers] == ["gpu01", "gpu02"]
    assert found.host("gpu01").scheduler is KUBERNETES
    assert found.informed == ("k1", "k2", "k3")


@pytest.mark.proves("inventory", "One inventory may have Slurm and Kubernetes; Slurm's head is the cluster's.")
def test_inventory__of_both__has_slurms_head_as_the_clusters(tmp_path: Path, known: Schema) -> None:
    both = GOOD + "    slurm_workers: {hosts: {cpu01: {}}}\n    slurm_head: {hosts: {head1: {}}}\n"
    found = load(tmp_path, known, both)
    assert found.schedulers == (SLURM, KUBERNETES)
    assert found.head.name == "head1"
    assert [host.name for host in found.workers] == ["gpu01", "gpu02", "cpu01"]
    assert sorted(found.heads) == ["head1", "k1", "k2", "k3"]


@pytest.mark.proves("inventory", "An even number of Kubernetes heads is refused.")
def test_heads__of_an_even_number__are_refused(tmp_path: Path, known: Schema) -> None:
    assert problems(tmp_path, known, GOOD.replace("k[1:3]", "k[1:2]")) == [
        "all.children.kubernetes_head: got 2 heads, expected an odd number"
    ]
    assert load(tmp_path, known, GOOD.replace("k[1:3]", "k1")).head.name == "k1"


def test_head__that_is_a_worker__is_refused(tmp_path: Path, known: Schema) -> None:
    text = GOOD.replace("gpu02: {ansible_host: 10.0.0.12}", "k3: {}")
    assert problems(tmp_path, known, text) == [
        "k3: is in kubernetes_head and in kubernetes_workers, expected one of them"
    ]


@pytest.mark.proves("inventory", "Pod and service networks that overlap others are refused.")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "kubernetes_node_pod_network: 10.0.0.0/16",
            "kubernetes_node_pod_network: overlaps cluster_networks, got 10.0.0.0/16 and 10.0.0.0/24",
        ),
        (
            "kubernetes_node_pod_network: 10.100.0.0/16",
            "kubernetes_node_pod_network: overlaps kubernetes_node_service_network, got 10.100.0.0/16 and 10.96.0.0/12",
        ),
        (
            "cluster_admin_networks: [10.96.5.0/24]",
            "kubernetes_node_service_network: overlaps cluster_admin_networks, got 10.96.0.0/12 and 10.96.5.0/24",
        ),
        (
            "cluster_nameservers: [10.244.3.1]",
            "kubernetes_node_pod_network: overlaps cluster_nameservers, got 10.244.0.0/16 and 10.244.3.1",
        ),
        (
            "cluster_address: 10.244.0.9",
            "kubernetes_node_pod_network: overlaps the address of k1, got 10.244.0.0/16 and 10.244.0.9",
        ),
    ],
)
def test_networks__that_overlap__are_refused(tmp_path: Path, known: Schema, line: str, expected: str) -> None:
    lists = {"cluster_admin_networks", "cluster_nameservers"}
    text = in_vars(line)
    if line.startswith("cluster_address"):
        text = GOOD.replace('"k[1:3]": {}', "k1: {cluster_address: 10.244.0.9}")
    variables = {name: schema.Option(name, "base", "list", "str") for name in lists}
    known = schema.Schema(known.groups, known.common, {**known.variables, **variables}, known.defaults)
    assert problems(tmp_path, known, text) == [expected]


def test_networks__of_anyone__are_no_overlap(tmp_path: Path, known: Schema) -> None:
    variables = {"cluster_admin_networks": schema.Option("cluster_admin_networks", "base", "list", "str")}
    known = schema.Schema(known.groups, known.common, {**known.variables, **variables}, known.defaults)
    assert load(tmp_path, known, in_vars("cluster_admin_networks: [0.0.0.0/0]"))


def test_networks__of_the_defaults__overlap_a_site_of_one_large_network(tmp_path: Path, known: Schema) -> None:
    found = problems(tmp_path, known, GOOD.replace("10.0.0.0/24", "10.0.0.0/8"))
    assert found == [
        "kubernetes_node_pod_network: overlaps cluster_networks, got 10.244.0.0/16 and 10.0.0.0/8",
        "kubernetes_node_service_network: overlaps cluster_networks, got 10.96.0.0/12 and 10.0.0.0/8",
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("kubernetes_node_pod_network: 10.244.0.0", "expected a network such as"),
        ("kubernetes_node_pod_network: 10.244.0.0/25", "bad size, got 10.244.0.0/25, expected a prefix length from 8"),
        ("kubernetes_node_service_network: 172.0.0.0/8", "bad size, got 172.0.0.0/8, expected a prefix length from 12"),
        ('kubernetes_node_pod_network: "fd00::/64"', "Kubernetes uses IPv4 only, got fd00::/64"),
        ("kubernetes_node_pod_network: 10.244.0.0/22", "10.244.0.0/22 has networks for 4 nodes, got 5 nodes"),
    ],
)
def test_networks__of_a_bad_size__are_refused(tmp_path: Path, known: Schema, line: str, expected: str) -> None:
    [found] = problems(tmp_path, known, in_vars(line))
    assert expected in found


@pytest.mark.parametrize(
    ("heads", "line", "expected"),
    [
        ("k[1:3]", "kubernetes_node_api_address: k2", "got k2, which is the address of k2 alone"),
        ("k[1:3]", "kubernetes_node_api_address: 10.0.0.11", "got 10.0.0.11, which is the worker gpu01's"),
        ("k[1:3]", "kubernetes_node_api_address: 10.97.0.1", "which is in kubernetes_node_service_network"),
        ("k1", "kubernetes_node_api_address: gpu02", "got gpu02, which is the worker gpu02's"),
        ("k[1:3]", "kubernetes_node_api_address: a_b", "expected an IP address or a host name, or nothing"),
    ],
)
def test_api_address__of_one_host_or_of_pods__is_refused(
    tmp_path: Path, known: Schema, heads: str, line: str, expected: str
) -> None:
    [found] = problems(tmp_path, known, in_vars(line, GOOD.replace("k[1:3]", heads)))
    assert expected in found


@pytest.mark.parametrize(
    ("heads", "address"), [("k1", "k1"), ("k[1:3]", "10.0.0.9"), ("k[1:3]", "api.example.com"), ("k[1:3]", '""')]
)
def test_api_address__that_all_heads_can_have__is_accepted(
    tmp_path: Path, known: Schema, heads: str, address: str
) -> None:
    line = f"kubernetes_node_api_address: {address}"
    assert load(tmp_path, known, in_vars(line, GOOD.replace("k[1:3]", heads)))


ADDRESS = "kubernetes_node_api_address: 10.0.0.9"
NO_ADDRESS = "expected an IP address that no host has in kubernetes_node_api_address"


@pytest.mark.proves("inventory", "haproxy without an address that keepalived moves is refused.")
@pytest.mark.parametrize(
    ("heads", "lines", "expected"),
    [
        ("k[1:3]", (), f"{NO_ADDRESS}, got none"),
        ("k[1:3]", ("kubernetes_node_api_address: api.example.com",), f"{NO_ADDRESS}, got api.example.com"),
        ("k1", ("kubernetes_node_api_address: k1",), f"{NO_ADDRESS}, got k1"),
        ("k[1:3]", (ADDRESS, "kubernetes_head_keepalived: false"), "expected kubernetes_head_keepalived: true"),
        ("k[1:3]", (ADDRESS,), ""),
        ("k1", (ADDRESS,), ""),
    ],
)
def test_haproxy__without_an_address_of_keepalived__is_refused(
    tmp_path: Path, known: Schema, heads: str, lines: tuple[str, ...], expected: str
) -> None:
    text = in_vars(", ".join(("kubernetes_head_haproxy: true", *lines)), GOOD.replace("k[1:3]", heads))
    if expected:
        [found] = problems(tmp_path, known, text)
        assert found.startswith(f"kubernetes_head_haproxy: {expected}")
    else:
        assert load(tmp_path, known, text)


def test_haproxy__of_one_head_alone__is_refused(tmp_path: Path, known: Schema) -> None:
    text = in_vars(ADDRESS, GOOD.replace('{"k[1:3]": {}}', '{"k[1:2]": {}, k3: {kubernetes_head_haproxy: true}}'))
    assert "kubernetes_head_haproxy: differs between k1 and k3, expected one value in all.vars" in problems(
        tmp_path, known, text
    )


@pytest.mark.proves("inventory", "NFS volumes on the first of several heads are refused.")
@pytest.mark.parametrize(
    ("heads", "line", "accepted"),
    [
        ("k[1:3]", "kubernetes_storage_class: nfs", False),
        ("k[1:3]", "kubernetes_storage_class: nfs, kubernetes_storage_nfs_export: 'nas:/volumes'", True),
        ("k1", "kubernetes_storage_class: nfs", True),
    ],
)
def test_nfs__of_the_first_of_several_heads__is_refused(
    tmp_path: Path, known: Schema, heads: str, line: str, accepted: bool
) -> None:
    text = in_vars(line, GOOD.replace("k[1:3]", heads))
    if accepted:
        assert load(tmp_path, known, text)
    else:
        [found] = problems(tmp_path, known, text)
        assert "volumes on k1 would be lost with that head" in found


def test_value__that_differs_between_nodes__is_refused(tmp_path: Path, known: Schema) -> None:
    text = GOOD.replace("ansible_host: 10.0.0.12", "ansible_host: 10.0.0.12, kubernetes_node_api_port: 7443")
    assert problems(tmp_path, known, text) == [
        "kubernetes_node_api_port: differs between k1 and gpu02, expected one value in all.vars"
    ]


@pytest.mark.proves("inventory", "Kubernetes versions outside the version skew policy are refused.")
@pytest.mark.parametrize(
    ("version", "accepted"), [("1.36.3", True), ("1.33.9", True), ("1.32.0", False), ("1.37.0", False)]
)
def test_version__of_a_worker__follows_the_skew_policy(
    tmp_path: Path, known: Schema, version: str, accepted: bool
) -> None:
    text = GOOD.replace("ansible_host: 10.0.0.12", f"ansible_host: 10.0.0.12, kubernetes_node_version: {version}")
    if accepted:
        assert load(tmp_path, known, text)
        return
    [found] = problems(tmp_path, known, text)
    assert "for gpu02, which is not compatible with the heads, expected 1.33 to 1.36" in found


@pytest.mark.parametrize(
    ("text", "expected"), [("1.36.3", 36), ("v1.30.0", 30), ("1.36.3-1.1", 36), ("1.36.*", 36), ("latest", None)]
)
def test_minor__of_a_version__is_its_second_number(text: str, expected: int | None) -> None:
    assert kubernetes_consistency.minor(text) == expected


def test_names__that_kubernetes_cannot_use__are_refused(tmp_path: Path, known: Schema) -> None:
    [found] = problems(tmp_path, known, GOOD.replace("a100:", "a100_:"))
    assert found.startswith("kubernetes_workers.children.a100_: no valid label")
    [found] = problems(tmp_path, known, GOOD.replace("gpu02:", "kubernetes-api:"))
    assert found == "kubernetes-api: is the name of the Kubernetes API in the cluster's domain"


# --- the example and `init` -------------------------------------------------------------------------------------------


@pytest.mark.proves("inventory", "The example of Kubernetes differs from Slurm's by the prefix of its groups.")
def test_examples__of_both_schedulers__differ_by_the_prefix() -> None:
    texts = {
        kind: (REPOSITORY / f"inventory/{kind.name}/inventory.yaml").read_text().replace(f"{kind.name}_", "")
        for kind in schedulers.KINDS
    }
    slurm, kubernetes = ([line for line in text.splitlines() if "#" not in line] for text in texts.values())
    assert slurm == kubernetes
    found = inventory.load(REPOSITORY / "inventory/kubernetes/inventory.yaml")
    assert (found.head.name, [host.name for host in found.workers]) == ("head1", ["gpu01", "gpu02"])


@pytest.mark.proves("init", "`init --scheduler kubernetes` writes the same inventory with the other prefix.")
def test_init__of_kubernetes__has_the_other_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLUSTERCTL_VAULT_PASSWORD_FILE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    content = small_content.make(tmp_path / "content")
    texts = []
    for kind in schedulers.KINDS:
        path = tmp_path / kind.name / "aurora"
        path.parent.mkdir()
        initialise.create(path, "head1=10.0.0.1", ["gpu[01:02]"], "admin", content, kind)
        found = inventory.load(path / "inventory.yaml", schema.load(content))
        assert found.schedulers == (kind,)
        lines = (path / "inventory.yaml").read_text().replace(f"{kind.name}_", "").splitlines()
        texts.append([line for line in lines if "#" not in line])
    assert texts[0] == texts[1]


def test_init__of_another_scheduler__is_refused() -> None:
    app = typer.Typer(rich_markup_mode=None)
    app.command()(initialise.init_command)
    done = CliRunner().invoke(app, ["x", "--scheduler", "pbs"])
    assert done.exit_code == 2
    assert "'slurm', 'kubernetes'" in done.output
