"""Kubernetes on one lab, in order: empty nodes, a cluster, GPU pods, what is refused, nodes that come, go and fail.

What shows that a pod was not disturbed is its containers' numbers: with a restart there is another. The API is asked by
kubectl as root of the head has it, etcd and kubelet by curl.
"""

import base64
import json
import os
import pty
import re
import signal
import stat
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import yaml

from tests.bench import counts
from tests.cluster import cis
from tests.cluster.drift import ByHand, changed, drift, inflict, items, reported
from tests.cluster.kubernetes import (
    BUSYBOX,
    GPU,
    PORT,
    RECIPES,
    Kubernetes,
    Manifest,
    adding,
    api_url,
    budget,
    condition,
    deployment,
    kubeconfig,
    named,
    pod,
    status_of,
    stored,
    tokens,
    user_of,
    website,
)
from tests.cluster.lab import HERE, clusterctl, fresh_as, podman
from tests.cluster.test_bootstrap import SCAN_LIMIT, declared
from tests.cluster.test_gpu_metrics import ask, query
from tests.cluster.test_half_way import root_of
from tests.cluster.test_upgrade import started
from tests.faults.injury import (
    GUARD,
    begin,
    container,
    fails,
    inventory_with,
    outsider,
    wait_until,
    watched,
)
from tests.manifests import differences, lasting
from tests.programs import conversation, output_of

pytestmark = pytest.mark.kit(*RECIPES)

GROUPS = {"head1": {"kubernetes_head", "monitoring"}, "gpu01": {"kubernetes_workers"}}
TASKS = 40
"""Ansible tasks that a worker's path must not have, each of which costs 0.2 to 0.3 s of CPU."""
SEEN = "hostname; ls /dev | grep -x 'nvidia[0-9]*' || true; nvidia-smi -L"


@pytest.fixture(scope="module")
def lab() -> Iterator[Kubernetes]:
    """A fresh lab of one head and two workers."""
    with fresh_as(Kubernetes, "kubernetes") as lab:
        lab.declare(f'kubernetes_head_user_quota: {{requests.{GPU}: "2"}}', "gpu_health_interval: 10")
        yield lab


@pytest.fixture(scope="module")
def cluster(lab: Kubernetes) -> Kubernetes:
    """The same lab, bootstrapped."""
    lab.run("bootstrap")
    return lab


def uuids(printed: str) -> set[str]:
    """Return the GPUs that nvidia-smi has listed."""
    return set(re.findall(r"^GPU \d+: NVIDIA A100-SXM4-80GB \(UUID: (GPU-\S+)\)$", printed, re.MULTILINE))


# From nothing to a cluster


@pytest.mark.proves("kubernetes", "An empty lab becomes a Kubernetes cluster whose nodes are ready and in service.")
def test_bootstrap__empty_nodes__are_a_ready_cluster(cluster: Kubernetes) -> None:
    assert cluster.ready() == dict.fromkeys(cluster.nodes, True)
    assert (cluster.ledger(), cluster.cordoned()) == ({}, set())
    versions = {node["status"]["nodeInfo"]["kubeletVersion"] for node in cluster.get("nodes")}
    assert len(versions) == 1, versions
    held = cluster.root("gpu01", "apt-mark showhold").split()
    assert {*held} >= {"kubelet", "kubeadm", "kubectl"}
    wait_until(lambda: {one["status"]["phase"] for one in cluster.pods()} <= {"Running", "Succeeded"})


@pytest.mark.proves("costs", "A Kubernetes worker's path through a bootstrap has fewer than 40 tasks.")
def test_bootstrap__from_nothing__keeps_a_workers_path_short(cluster: Kubernetes) -> None:
    run = min((cluster.inventory.parent / ".clusterctl" / "runs").glob("*-bootstrap"))
    tasks = {host: found["run"] for host, found in counts.tasks(run).items()}
    assert {host: number for host, number in tasks.items() if host in cluster.worker_names and number >= TASKS} == {}


@pytest.mark.proves("kubernetes", "Workers have labels of their recorded GPUs.")
def test_labels__of_workers__are_those_of_the_hardware_record(cluster: Kubernetes) -> None:
    record = json.loads((cluster.inventory.parent / "hardware" / "gpu01.json").read_text())
    labels = cluster.get("node", "gpu01")["metadata"]["labels"]
    assert labels["clusterctl/gpu-count"] == str(len(record["gpus"])) == "4"
    assert labels["clusterctl/gpu-memory-gib"] == str(record["gpus"][0]["memory_mb"] // 1024)
    assert record["gpus"][0]["type"] in labels["clusterctl/gpu-model"].lower()
    assert "clusterctl/gpu-count" not in cluster.get("node", "head1")["metadata"]["labels"]


@pytest.mark.proves("kubernetes", "The labels of GPUs are what NVIDIA's GPU feature discovery finds on the node.")
def test_labels__of_workers__are_those_of_gpu_feature_discovery(cluster: Kubernetes) -> None:
    plugins = cluster.get("daemonsets", "--namespace=nvidia-device-plugin")
    (image,) = {one["image"] for found in plugins for one in found["spec"]["template"]["spec"]["containers"]}
    one = pod("features", image, "", gpus=4, node="gpu01")
    one["spec"]["containers"][0]["command"] = [
        "gpu-feature-discovery", "--oneshot", "--no-timestamp", "--use-node-feature-api=false", "--output-file=",
    ]  # fmt: skip
    printed = cluster.output(one)
    features = dict(re.findall(r"^nvidia\.com/gpu\.(\w+)=(\S+)$", printed, re.MULTILINE))
    labels = cluster.get("node", "gpu01")["metadata"]["labels"]
    assert labels["clusterctl/gpu-count"] == features["count"], printed
    assert labels["clusterctl/gpu-memory-gib"] == str(int(features["memory"]) // 1024), printed
    assert labels["clusterctl/gpu-model"] in features["product"].lower(), printed


@pytest.mark.proves("kubernetes", "A second run changes nothing and restarts no pod, by independent manifests.")
def test_second_run__changes_nothing(cluster: Kubernetes) -> None:
    before, pods = cluster.manifests(), cluster.containers(*cluster.nodes)
    cluster.unchanged()
    assert differences(before, cluster.manifests()) == []
    assert cluster.containers(*cluster.nodes) == pods


@pytest.mark.proves("plan", "A plan of a finished Kubernetes cluster reports no change.")
def test_plan__of_a_finished_cluster__announces_nothing(cluster: Kubernetes) -> None:
    cluster.unchanged("plan bootstrap")


@pytest.mark.proves("verify", "`verify` passes on a Kubernetes cluster, `status` reports it healthy.")
def test_verify_and_status__of_a_healthy_cluster__pass(cluster: Kubernetes) -> None:
    assert {host["status"] for host in cluster.run("verify")["hosts"].values()} == {"ok"}
    cluster.healthy()
    assert cluster.ledger() == {}


@pytest.mark.proves("monitoring", "Prometheus has the metrics of Kubernetes' nodes, pods, GPUs, etcd and certificates.")
def test_metrics__in_prometheus__are_those_of_the_cluster(cluster: Kubernetes) -> None:
    jobs = {"apiserver": cluster.head_names, "kubelet": cluster.nodes, "pods": cluster.nodes}

    def scraped() -> set[tuple[str, str]]:
        found = query(cluster, f'up{{job=~"{"|".join(jobs)}"}} == 1')
        return {(one["metric"]["job"], one["metric"]["instance"]) for one in found}

    wait_until(
        lambda: scraped() == {(job, name) for job, names in jobs.items() for name in names}, lambda: f"{scraped()}"
    )
    expected = {
        'kubernetes_node_state{state="ready"}': cluster.nodes,
        "kubelet_certificate_manager_client_ttl_seconds > 0": cluster.nodes,
        "kubelet_certificate_manager_server_ttl_seconds > 0": cluster.nodes,
        "kubelet_running_pods > 0": cluster.nodes,
        'container_memory_working_set_bytes{container="etcd"} > 0': cluster.head_names,
        "min by (instance) (kubernetes_certificate_end_seconds) - time() > 300 * 86400": cluster.head_names,
        "etcd_server_has_leader == 1": cluster.head_names,
    }

    def hosts(metric: str) -> list[str]:
        return sorted(one["metric"].get("node", one["metric"]["instance"]) for one in query(cluster, metric))

    wait_until(
        lambda: all(hosts(metric) == sorted(names) for metric, names in expected.items()),
        lambda: str({metric: hosts(metric) for metric in expected}),
    )
    idle = 'kubernetes_gpus{resource="gpu",use="idle"}'
    wait_until(lambda: [one["value"][1] for one in query(cluster, idle)] == ["8"], lambda: str(query(cluster, idle)))
    names = {alert["labels"]["alertname"] for alert in ask(cluster, "alerts")["alerts"]}
    assert not {name for name in names if name.startswith(("Kubernetes", "Etcd", "Pod", "Exporter", "Daemon"))}


# Pods


@pytest.mark.proves("kubernetes", "A pod has exactly the GPUs that it asks for, seen by NVIDIA's `nvidia-smi`.")
def test_pod__with_two_gpus__has_these_alone(cluster: Kubernetes) -> None:
    printed = cluster.output(pod("two", cluster.image, SEEN, gpus=2, node="gpu01"))
    assert len(uuids(printed)) == 2, printed
    assert len(re.findall(r"^nvidia\d$", printed, re.MULTILINE)) == 2, printed
    assert uuids(printed) < uuids(cluster.root("gpu01", "nvidia-smi -L"))


@pytest.mark.proves("kubernetes", "A pod that asks for no GPU has none, whatever its environment says.")
def test_pod__without_gpus__has_none(cluster: Kubernetes) -> None:
    one = pod("none", cluster.image, "ls /dev; command -v nvidia-smi || echo no program", node="gpu01")
    one["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    printed = cluster.output(one)
    assert "nvidia" not in printed
    assert "no program" in printed


@pytest.mark.proves("kubernetes", "Pods on one node share no GPU, and one more than there are waits.")
@pytest.mark.proves("status", "`status` has a waiting pod with the scheduler's reason, and the allocated GPUs.")
def test_pods__beside_each_other__share_no_gpu(cluster: Kubernetes) -> None:
    both = [pod(f"half-{n}", cluster.image, f"{SEEN}; exec sleep 600", gpus=2, node="gpu01") for n in (1, 2)]
    late = pod("late", cluster.image, SEEN, gpus=1, node="gpu01")
    with cluster.running(*both):
        wait_until(lambda: all("GPU 1" in cluster.logs(one) for one in both))
        first, second = (uuids(cluster.logs(one)) for one in both)
        assert len(first | second) == 4
        cluster.apply(late)
        wait_until(lambda: f"Insufficient {GPU}" in cluster.kubectl("describe", "pod", *named(late)))
        assert cluster.phase(late) == "Pending"
        status = cluster.healthy()
        (waiting,) = status["kubernetes"]["waiting"]
        assert (waiting["namespace"], waiting["name"], waiting["phase"]) == ("default", "late", "Pending")
        assert f"Insufficient {GPU}" in waiting["reason"]
        assert {name: sum(one["allocated"].values()) for name, one in status["kubernetes"]["nodes"].items()} == {
            "head1": 0, "gpu01": 4, "gpu02": 0,
        }  # fmt: skip
        (sums,) = status["gpus"].values()
        assert sums == {"total": 8, "allocated": 4, "idle": 4, "out_of_service": 0}
    wait_until(lambda: cluster.phase(late) == "Succeeded")
    assert len(uuids(cluster.logs(late))) == 1
    cluster.delete(late)


@pytest.mark.proves("kubernetes", "A pod reaches a service on another node by its name, and names outside resolve.")
def test_service__from_another_node__is_reached_by_name(cluster: Kubernetes) -> None:
    site, service = website("site", node="gpu01")
    ask = f"""bash -euc 'exec 3<>/dev/tcp/site.default.svc.cluster.local/{PORT}
    printf "GET / HTTP/1.0\\r\\n\\r\\n" >&3; cat <&3'; getent hosts head1.{cluster.name}.cluster
    RES_OPTIONS=use-vc getent hosts gpu01.{cluster.name}.cluster"""
    with cluster.running(site, service):
        printed = cluster.output(pod("asks", cluster.image, ask, node="gpu02"))
    assert re.search("^site-", printed, re.MULTILINE), printed
    assert cluster.address("head1") in printed
    assert cluster.address("gpu01") in printed  # over TCP: CoreDNS asks as it was asked


@pytest.mark.proves("kubernetes", "A volume of the default class keeps what a pod wrote for the next one.")
def test_volume__of_the_default_class__outlives_its_pod(cluster: Kubernetes) -> None:
    claim: Manifest = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "kept"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
    }
    volumes = [{"name": "kept", "persistentVolumeClaim": {"claimName": "kept"}}]
    told = uuid.uuid4().hex

    def run(name: str, script: str) -> str:
        one = pod(name, BUSYBOX, script, volumes=volumes)
        one["spec"]["containers"][0]["volumeMounts"] = [{"name": "kept", "mountPath": "/kept"}]
        return cluster.output(one)

    cluster.apply(claim)
    try:
        run("writes", f"echo {told} > /kept/file")
        assert run("reads", "cat /kept/file").strip() == told
    finally:
        cluster.delete(claim)


# What is refused


@pytest.mark.proves("secrets", "Without credentials the Kubernetes API answers health probes alone.")
@pytest.mark.proves("secrets", "Without credentials kubelet and etcd answer nothing; no node serves a registry.")
def test_anonymous_calls__to_api_kubelet_etcd__are_refused(cluster: Kubernetes) -> None:
    head, worker = cluster.address("head1"), cluster.address("gpu01")
    api = api_url(cluster, "gpu01")
    asked = {
        f"{api}/{path}": status_of(cluster, "gpu01", f"{api}/{path}")
        for path in ("livez", "readyz", "api", "version", "metrics", "openapi/v2",
                     "api/v1/namespaces/kube-public/configmaps/cluster-info", "api/v1/namespaces/kube-system/secrets")
    }  # fmt: skip
    probes = {f"{api}/livez", f"{api}/readyz"}
    assert {url: status for url, status in asked.items() if url in probes} == dict.fromkeys(probes, "200")
    assert {status for url, status in asked.items() if url not in probes} == {"401"}, asked
    for path in ("pods", "metrics", "run/default/x/y", "logs/"):
        assert status_of(cluster, "gpu02", f"https://{worker}:10250/{path}") == "401", path
    registry = [f"{kind}://{address}:5000/v2/" for kind in ("http", "https") for address in (head, worker)]
    closed = [f"http://{worker}:10255/pods", f"https://{head}:2379/version", f"https://{head}:2380/members",
              f"https://{head}:10257/metrics", f"https://{head}:10259/metrics", *registry]  # fmt: skip
    assert {url: status_of(cluster, "gpu02", url) for url in closed} == dict.fromkeys(closed, "000")
    assert status_of(cluster, "head1", f"https://{head}:2379/version") == "000", "etcd wants a client's certificate"


@pytest.mark.proves("firewall", "From outside, exactly the ports of docs/ports.md of Kubernetes' nodes are open.")
def test_from_outside__declared_ports_alone__are_open(cluster: Kubernetes) -> None:
    addresses = {cluster.address(node): node for node in GROUPS}
    with outsider(cluster) as source:
        asked = {"source": source, "addresses": [*addresses], "name": "gpu01", "pages": ["/", "/api", "/metrics"]}
        seen = json.loads(output_of([sys.executable, str(HERE / "scan.py"), json.dumps(asked)], SCAN_LIMIT))
    for address, node in addresses.items():
        found = {key: seen[address][key] for key in ("tcp", "udp")}
        assert found == declared(node, "admin", groups=GROUPS), node
        for port, answers in seen[address]["pages"].items():
            assert all(answer == "" or " 401 " in answer for answer in answers), f"{node}: {port} answers {answers}"


@pytest.mark.proves("secrets", "etcd stores Kubernetes' secrets encrypted.")
@pytest.mark.proves("secrets", "The audit log has the requests for a secret, and never its value.")
def test_secret__as_etcd_has_it__is_encrypted(cluster: Kubernetes) -> None:
    value = uuid.uuid4().hex
    kept = [
        {"apiVersion": "v1", "kind": kind, "metadata": {"name": "canary"}, field: {"value": value}}
        for kind, field in (("Secret", "stringData"), ("ConfigMap", "data"))
    ]
    cluster.apply(*kept)
    try:
        assert value.encode() in stored(cluster, "/registry/configmaps/default/canary"), "what is not encrypted is read"
        secret = stored(cluster, "/registry/secrets/default/canary")
        assert secret.startswith(b"k8s:enc:secretbox:v1:")
        assert value.encode() not in secret
        assert cluster.kubectl("get", "secret", "canary", "--output=jsonpath={.data.value}")
    finally:
        cluster.delete(*kept)
    log = cluster.root("head1", 'cat /var/log/kubernetes/*.log | grep \'"name":"canary"\'')
    requests = [one for one in map(json.loads, log.splitlines()) if one["objectRef"]["resource"] == "secrets"]
    assert {one["verb"] for one in requests} >= {"create", "get", "delete"}, log
    encoded = base64.b64encode(value.encode()).decode()
    count = f"cat /var/log/kubernetes/*.log | grep --count --fixed-strings -e {value} -e {encoded} || [ $? = 1 ]"
    assert cluster.root("head1", count) == "0\n"


@pytest.mark.proves("secrets", "After a bootstrap there is no token with which a node could join.")
def test_tokens__after_a_bootstrap__are_none(cluster: Kubernetes) -> None:
    assert tokens(cluster) == []


@pytest.mark.proves("secrets", "The control plane's keys on a head are readable by root alone.")
def test_keys__of_the_control_plane__are_roots_alone(cluster: Kubernetes) -> None:
    find = "find /etc/kubernetes /var/lib/kubelet/pki -name '*.key' -o -name '*.conf' -o -name '*.pem'"
    modes = cluster.root("head1", f"{find} | xargs stat --dereference --format='%a %U %n'").splitlines()
    open_to_pods = ("/kubelet.conf.d/", "/etc/kubernetes/resolv.conf")
    secret = [line for line in modes if not any(part in line for part in open_to_pods)]
    assert len(secret) > 10
    assert [line for line in secret if not re.match(r"[46]00 root ", line)] == []
    assert cluster.root("head1", "stat --format='%a %U' /var/lib/etcd/member") == "700 root\n"


@pytest.mark.proves(
    "kubernetes", "A head and a worker have the items of docs/kubernetes-cis.md, except those with a reason."
)
def test_cis__items_of_the_page__are_as_it_says(cluster: Kubernetes) -> None:
    for node, sections in (("head1", ("1", "2", "3", "4")), ("gpu01", ("4",))):
        shown = json.loads(cluster.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/configz"))
        found = cis.site(cluster.ssh(node, "sudo", "python3", "-", stdin=cis.QUESTION), shown["kubeletconfig"])
        items = [item for item in cis.ITEMS if item.number.startswith(sections)]
        met = {item.number: item.is_met(found) for item in items}
        assert met == {item.number: not item.reason for item in items}, node


@pytest.mark.proves("untrusted", "A user's pod that is privileged or has the node's files is refused.")
@pytest.mark.parametrize(
    "spec",
    [
        {"hostNetwork": True},
        {"hostPID": True},
        {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]},
        {"privileged": True},
    ],
    ids=lambda spec: next(iter(spec)),
)
def test_pod__that_would_be_its_nodes__is_refused(cluster: Kubernetes, spec: Manifest) -> None:
    one = pod("bold", BUSYBOX, "true", **{key: value for key, value in spec.items() if key != "privileged"})
    if "privileged" in spec:
        one["spec"]["containers"][0]["securityContext"] = spec
    assert 'violates PodSecurity "baseline:' in cluster.refused(one)


# What a kubelet answers with a token: busybox' wget prints the status of an error.
ASK_KUBELET = """token=$(cat /var/run/secrets/kubernetes.io/serviceaccount/token)
for url in {urls}; do
  for header in "X-None: none" "Authorization: Bearer $token"; do
    answer=$(timeout 20 wget -q -O - --no-check-certificate --header "$header" $url 2>&1 || true)
    echo "${{answer##*HTTP/1.1 }}"
  done
done
"""


@pytest.mark.proves("untrusted", "A pod connects to no etcd, and its account reads no secrets and no kubelet.")
def test_pod__reaches_for_credentials__gets_none(cluster: Kubernetes) -> None:
    head = cluster.address("head1")
    ask = "timeout 5 bash -c '</dev/tcp/{}/{}' 2>/dev/null && echo {} open || echo {} closed"
    script = "; ".join(ask.format(head, port, port, port) for port in (6443, 2379, 2380))
    printed = cluster.output(pod("curious", cluster.image, script, node="gpu01"))
    assert printed.splitlines() == ["6443 open", "2379 closed", "2380 closed"]
    may = ("auth", "can-i", "--as=system:serviceaccount:default:default")
    kubelets = ("get", "nodes", "--subresource=proxy")
    for what in (("get", "secrets", "--all-namespaces"), ("create", "pods"), kubelets):
        assert cluster.ask(*may, *what).stdout.strip() == "no", what
    urls = [
        f"https://{cluster.address(node)}:10250/{path}" for node in ("gpu01", "gpu02") for path in ("pods", "metrics")
    ]
    printed = cluster.output(pod("asks", BUSYBOX, ASK_KUBELET.format(urls=" ".join(urls)), node="gpu01"))
    assert printed.splitlines() == ["401 Unauthorized", "403 Forbidden"] * len(urls), printed


# People


@pytest.mark.proves("bootstrap", "The administrator's kubeconfig is stored, readable by its owner alone.")
@pytest.mark.proves("kubeconfig", "The administrator's kubeconfig works, and is readable by its owner alone.")
def test_kubeconfig__of_the_administrator__is_the_owners_alone(cluster: Kubernetes) -> None:
    path = cluster.inventory.parent / ".clusterctl" / "kubeconfig"
    assert path.stat().st_mode & 0o777 == 0o600
    stored = path.read_text()
    kubeconfig(cluster)
    assert path.read_text() == stored
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert with_config(cluster, path, "auth", "can-i", "*", "*") == "yes\n"


def with_config(lab: Kubernetes, path: Path, *argv: str) -> str:
    """Run kubectl on the head with a kubeconfig of this machine; return what it prints, with its errors."""
    place = "/run/someones.conf"
    lab.ssh("head1", "sudo", "install", "-m", "600", "/dev/stdin", place, stdin=path.read_text())
    words = " ".join(f"'{word}'" for word in argv)
    return lab.root("head1", f"kubectl --kubeconfig={place} {words} 2>&1 || true; rm {place}")


@pytest.mark.proves(
    "kubeconfig", "A person's kubeconfig reaches the person's namespace, within its quota, and nothing else."
)
def test_kubeconfig__of_a_person__reaches_one_namespace(cluster: Kubernetes, tmp_path: Path) -> None:
    path = tmp_path / "alice.conf"
    kubeconfig(cluster, "--user", "alice", "--output", str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    namespace = user_of(path.read_text())["namespace"]
    (quota,) = cluster.get("resourcequota", f"--namespace={namespace}")
    assert quota["spec"]["hard"] == {f"requests.{GPU}": "2"}
    greedy = pod("greedy", BUSYBOX, "true", gpus=3)
    greedy["metadata"]["namespace"] = namespace
    assert "exceeded quota" in cluster.refused(greedy)
    assert with_config(cluster, path, "auth", "whoami").count("alice")
    for argv, answer in {
        ("create", "deployments"): "yes",
        ("delete", "pods"): "yes",
        ("create", "rolebindings"): "no",
        ("create", "pods", "--namespace=default"): "no",
        ("get", "secrets", "--namespace=kube-system"): "no",
        ("list", "nodes"): "no",
    }.items():
        said = with_config(cluster, path, "auth", "can-i", *argv)
        assert said.strip().splitlines()[-1] == answer, f"{argv}: {said}"
    one = pod("hers", BUSYBOX, "echo works")
    one["metadata"]["namespace"] = namespace
    assert cluster.output(one) == "works\n"


# Settings of GPUs


@pytest.mark.proves("kubernetes", "A tainted GPU node runs only pods that ask for GPUs, or tolerate its taint.")
@pytest.mark.proves("kubernetes", "`kubernetes_worker_gpu_taint` set back removes the taint.")
@pytest.mark.long
def test_gpu_taint__of_workers__keeps_other_pods_away(cluster: Kubernetes) -> None:
    def taints() -> dict[str, set[str]]:
        nodes = {node["metadata"]["name"]: node["spec"].get("taints", []) for node in cluster.get("nodes")}
        return {name: {f"{one['key']}:{one['effect']}" for one in found} for name, found in nodes.items()}

    def is_kept_away(one: Manifest) -> bool:
        return "untolerated taint" in cluster.kubectl("describe", "pod", *named(one))

    before = taints()
    with inventory_with(cluster, "kubernetes_worker_gpu_taint: true"):
        cluster.run("bootstrap")
    try:
        tainted = {name: found | {f"{GPU}:NoSchedule"} for name, found in before.items() if name != "head1"}
        assert taints() == before | tainted
        stranger = pod("plain", BUSYBOX, "true", tolerations=[])
        cluster.apply(stranger)
        try:
            wait_until(lambda: is_kept_away(stranger))
            assert len(uuids(cluster.output(pod("asks", cluster.image, SEEN, gpus=1, tolerations=[])))) == 1
            assert cluster.output(pod("tolerates", BUSYBOX, "echo runs", node="gpu01")) == "runs\n"
            of_class: Manifest = {"runtimeClassName": "nvidia", "tolerations": []}
            assert cluster.output(pod("classed", BUSYBOX, "echo runs", **of_class)) == "runs\n"
            assert cluster.phase(stranger) == "Pending"
        finally:
            cluster.delete(stranger)
    finally:
        cluster.run("bootstrap")
    assert taints() == before


@pytest.mark.proves("kubernetes", "With two time slices of each GPU on one worker, two pods share a GPU.")
@pytest.mark.proves("kubernetes", "Time slices of one worker change no other, and go with their setting.")
@pytest.mark.long
def test_time_slices__of_one_worker__let_pods_share_its_gpus(cluster: Kubernetes) -> None:
    def variants() -> set[str]:
        return {one["metadata"]["name"] for one in cluster.get("daemonsets", "--namespace=nvidia-device-plugin")}

    text, plain, pods = cluster.inventory.read_text(), variants(), cluster.containers("head1", "gpu01")
    inventory = yaml.safe_load(text)
    inventory["all"]["children"]["kubernetes_workers"]["hosts"]["gpu02"]["kubernetes_gpu_time_slices"] = 2
    cluster.inventory.write_text(yaml.safe_dump(inventory, sort_keys=False))
    try:
        cluster.run("bootstrap")
        cluster.unchanged("plan bootstrap")
        wait_until(lambda: (cluster.gpus("gpu01"), cluster.gpus("gpu02")) == (4, 8))
        shared = [pod(f"slice-{n}", cluster.image, f"{SEEN}; exec sleep 600", gpus=1, node="gpu02") for n in range(8)]
        with cluster.running(*shared):
            wait_until(lambda: all("GPU 0" in cluster.logs(one) for one in shared))
            seen = Counter(gpu for one in shared for gpu in uuids(cluster.logs(one)))
        assert sorted(seen.values()) == [2, 2, 2, 2], seen
    finally:
        cluster.inventory.write_text(text)
        cluster.run("bootstrap")
    wait_until(lambda: cluster.gpus("gpu02") == 4)
    assert variants() == plain
    assert cluster.containers("head1", "gpu01") == pods


# Nodes that come, go and fail


@pytest.fixture(scope="module")
def steady(cluster: Kubernetes) -> dict[str, tuple[str, ...]]:
    """Two pods on the first worker that run through all that follows; returns the containers of all pods there."""
    one = deployment("steady", "exec sleep infinity", replicas=2, node="gpu01")
    cluster.apply(one, budget("steady", 2))
    cluster.wait(one)
    return cluster.containers("gpu01")


def undisturbed(lab: Kubernetes, steady: dict[str, tuple[str, ...]]) -> None:
    """See that no container of these pods was restarted or replaced."""
    now = lab.containers("gpu01")
    assert {uid: now.get(uid) for uid in steady} == steady


@contextmanager
def moving(lab: Kubernetes, steady: dict[str, tuple[str, ...]]) -> Iterator[None]:
    """Have a web server on each worker meanwhile, with a budget of one.

    See that one of them is always available, and that the other pods of the head and the first worker run on.
    """
    site, service = website("moves", replicas=2)
    site["spec"]["template"]["spec"]["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule",
            "nodeTaintsPolicy": "Honor",  # a cordoned node is no place, so the evicted pod may run beside the other one
            "labelSelector": {"matchLabels": {"app": "moves"}},
        }
    ]
    with lab.running(site, service, budget("moves", 1)):
        places = {one["spec"]["nodeName"] for one in lab.pods() if one["metadata"]["name"].startswith("moves-")}
        assert places == {"gpu01", "gpu02"}
        heads = lab.containers("head1")
        seen: list[int] = []
        with watched(lambda: seen.append(lab.get("deployment", "moves")["status"].get("availableReplicas", 0))):
            yield
        assert min(seen) >= 1, seen
        undisturbed(lab, steady)
        now = lab.containers("head1")
        assert {uid: now.get(uid) for uid in heads} == heads


def answered(answers: dict[str, str], *argv: str) -> tuple[int, str]:
    """Run clusterctl on a terminal and answer its questions in their order; return its exit code and output."""
    controller, terminal = pty.openpty()
    pipes = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
    with os.fdopen(controller, "r+b", buffering=0) as ours, conversation(["clusterctl", *argv], GUARD, **pipes) as run:
        os.close(terminal)
        printed = ""
        with suppress(OSError):  # its end closes the terminal
            for question, answer in answers.items():
                while question not in printed:
                    printed += ours.read(1 << 16).decode(errors="replace")
                ours.write(f"{answer}\n".encode())
            while True:
                printed += ours.read(1 << 16).decode(errors="replace")
        return run.wait(GUARD), printed


@pytest.mark.proves("remove-node", "A pod that no controller would replace is listed, and its node is not removed.")
@pytest.mark.proves("remove-node", "`remove-node --force` lists the pods that it would kill, and asks.")
@pytest.mark.long
def test_remove_node__pod_without_a_controller__is_listed(
    cluster: Kubernetes, steady: dict[str, tuple[str, ...]]
) -> None:
    lonely, text = pod("lonely", BUSYBOX, "exec sleep 3000", node="gpu02"), cluster.inventory.read_text()
    with cluster.running(lonely):
        said = fails(cluster, 4, "gpu02", "--timeout", "0.1", "--yes", verb="remove-node")
        assert "default/lonely" in said
        assert cluster.inventory.read_text() == text
        assert cluster.ready()["gpu02"]
        assert "gpu02" in cluster.cordoned()
        plan = clusterctl("plan", "remove-node", str(cluster.inventory), "gpu02")
        assert plan.returncode == 10, plan.stdout + plan.stderr
        assert "default/lonely" in plan.stdout
        asked = {"Remove gpu02 from": "y", "Kill 1 pod?": "n"}
        code, printed = answered(asked, "remove-node", str(cluster.inventory), "gpu02", "--force")
        assert code == 7, printed
        assert "pod default/lonely (no controller restarts it, running on gpu02)" in printed
        assert "No pod was killed" in printed
        assert cluster.inventory.read_text() == text
        assert cluster.phase(lonely) == "Running"


@pytest.mark.proves("remove-node", "A removed worker leaves Kubernetes; its pods move within their budget.")
@pytest.mark.proves("remove-node", "A removed worker keeps no credential, no pod and no network of the cluster.")
@pytest.mark.proves("remove-node", "Removing a node restarts no pod on other nodes, counted by containers.")
def test_remove_node__with_pods__moves_them_and_keeps_nothing(
    cluster: Kubernetes, steady: dict[str, tuple[str, ...]]
) -> None:
    cluster.root("head1", "kubernetes-drain remove-node --in gpu02")  # of the test before
    with moving(cluster, steady):
        fails(cluster, 0, "gpu02", "--yes", verb="remove-node")
    assert set(cluster.ready()) == {"head1", "gpu01"}
    assert cluster.ledger() == {}
    assert "gpu02" not in cluster.inventory.read_text()
    left = cluster.remains("gpu02")
    assert [path for path in left["files"] if re.match("/etc/kubernetes/(.*conf|pki)|/var/lib/clusterctl", path)] == []
    assert [line for line in left["packages"] if line.split()[0] == "kubelet" and line.endswith("ii ")] == []
    assert "kubelet" not in cluster.inside("gpu02", "ps", "-e", "-o", "comm=")
    links = cluster.inside("gpu02", "ip", "-brief", "link")
    assert not re.search(r"^(cni0|flannel|veth)", links, re.MULTILINE), links
    pods = "ls /var/lib/kubelet/pods /etc/cni/net.d/*.conf* 2>/dev/null || true"
    assert cluster.inside("gpu02", "sh", "-c", pods) == ""


@pytest.mark.proves("add-node", "A new Kubernetes worker takes no pod before a test pod has passed on it.")
@pytest.mark.proves("add-node", "Adding a node restarts no pod on other nodes and changes no other worker.")
@pytest.mark.proves("add-node", "After add-node no join token is left, and a bootstrap changes nothing.")
def test_add_node__while_pods_run__disturbs_none(cluster: Kubernetes, steady: dict[str, tuple[str, ...]]) -> None:
    before, seen = cluster.manifest("gpu01"), []

    def look() -> None:
        for node in cluster.get("nodes"):
            if node["metadata"]["name"] == "gpu02":
                marks = node["metadata"].get("annotations", {})
                causes = [name for name in marks if name.startswith("clusterctl/drain.")]
                # It joins with a taint, before the head has cordoned it.
                taints = {taint["key"] for taint in node["spec"].get("taints", [])}
                closed = node["spec"].get("unschedulable", False) or "clusterctl/new" in taints
                seen.append((condition(node, "Ready"), closed, causes != []))

    with watched(look):
        fails(cluster, 0, *adding(cluster, "gpu02"), verb="add-node")
    assert ("True", True, True) in seen, "ready, but not proven yet"
    proven = max(place for place, sample in enumerate(seen) if sample[2]) + 1
    assert ("True", False) not in [sample[:2] for sample in seen[:proven]], "it could have had a pod before"
    undisturbed(cluster, steady)
    assert differences(before, cluster.manifest("gpu01")) == []
    wait_until(lambda: cluster.ready().get("gpu02"))
    assert (cluster.ledger(), cluster.cordoned(), tokens(cluster)) == ({}, set(), [])
    printed = cluster.output(pod("arrives", cluster.image, SEEN, gpus=4, node="gpu02"))
    assert len(uuids(printed)) == 4
    cluster.unchanged()


@pytest.mark.proves("bootstrap", "A dead Kubernetes worker is reported; the others converge and their pods continue.")
@pytest.mark.long
def test_worker__is_dead__the_others_go_on(cluster: Kubernetes, steady: dict[str, tuple[str, ...]]) -> None:
    podman("stop", "--time", "0", container(cluster, "gpu02"))
    try:
        assert "gpu02" in fails(cluster, 3)
        summary = cluster.run("bootstrap", "--skip-unreachable", expect=4)
        assert summary["skipped"] == ["gpu02"]
        assert {name: host["changed"] for name, host in summary["hosts"].items()} == {"head1": 0, "gpu01": 0}
        wait_until(lambda: cluster.ready().get("gpu02") is False)
        cluster.run("status", expect=4)
        undisturbed(cluster, steady)
    finally:
        cluster.up()
    wait_until(lambda: cluster.ready().get("gpu02"))
    cluster.run("bootstrap", "--limit", "gpu02")
    assert (cluster.ledger(), cluster.cordoned()) == ({}, set())
    wait_until(lambda: cluster.gpus("gpu02") == 4)


@pytest.mark.proves("bootstrap", "A worker that an operator has cordoned stays cordoned.")
@pytest.mark.long
def test_cordon__of_an_operator__stays(cluster: Kubernetes) -> None:
    cluster.kubectl("cordon", "gpu02")
    try:
        cluster.run("bootstrap")
        assert cluster.cordoned() == {"gpu02"}
    finally:
        cluster.kubectl("uncordon", "gpu02")


@pytest.mark.proves("status", "`status` reports an edited kubelet file; bootstrap repairs it and restarts no pod.")
@pytest.mark.long
def test_drift__of_kubelets_configuration__is_reported_and_repaired(
    cluster: Kubernetes, steady: dict[str, tuple[str, ...]]
) -> None:
    before, pods = cluster.manifests(), cluster.containers(*cluster.nodes)
    path = cluster.root("gpu02", "ls /etc/kubernetes/kubelet.conf.d/*.conf").split()[0]
    cluster.root("gpu02", f"echo '# by hand' >> {path}")
    (node,) = (one for one in cluster.run("status", expect=4)["nodes"] if one["name"] == "gpu02")
    assert path in json.dumps(node["drift"])
    changed = {name: host["changed"] for name, host in cluster.run("bootstrap")["hosts"].items()}
    assert changed == {"head1": 0, "gpu01": 0, "gpu02": 1}
    after = cluster.manifests()
    assert [line for line in differences(before, after) if "/daemons/kubelet.service/" not in line] == []
    assert cluster.containers(*cluster.nodes) == pods
    undisturbed(cluster, steady)


def fault(lab: Kubernetes, *what: str) -> None:
    done = clusterctl("lab", "fault", "--name", lab.name, "gpu02", *what)
    assert done.returncode == 0, done.stderr


@pytest.mark.proves("health", "A GPU fault cordons its Kubernetes node and takes the GPU from the allocatable ones.")
@pytest.mark.proves("health", "After a diagnosis of a cleared fault the node and all its GPUs are back.")
def test_gpu_fault__on_a_worker__cordons_it_until_it_is_cleared(
    cluster: Kubernetes, steady: dict[str, tuple[str, ...]]
) -> None:
    fault(cluster, "ecc", "--gpu", "1")
    try:
        wait_until(lambda: "health" in cluster.ledger().get("gpu02", {}), lambda: str(cluster.ledger()))
        assert cluster.ledger()["gpu02"]["health"].startswith("GPU 1: ")
        assert cluster.cordoned() == {"gpu02"}
        wait_until(lambda: cluster.gpus("gpu02") == 3)
        events = cluster.get("events", "--all-namespaces", "--field-selector=involvedObject.name=gpu02")
        assert [one for one in events if "GPU 1" in one.get("message", "")], "an event says which GPU, and why"
        (ill,) = (one for one in cluster.run("health", expect=4)["nodes"] if one["name"] == "gpu02")
        assert not ill["fit"]
        undisturbed(cluster, steady)
    finally:
        fault(cluster, "clear")
    assert cluster.run("health", "gpu02", "--diagnose")["exit_code"] == 0
    wait_until(lambda: cluster.ledger() == {}, lambda: str(cluster.ledger()))
    assert cluster.cordoned() == set()
    wait_until(lambda: cluster.gpus("gpu02") == 4)
    cluster.healthy()


@pytest.mark.proves("reboot", "A Kubernetes worker reboots; its pods move within their budget, and others continue.")
@pytest.mark.proves("reboot", "A rebooted Kubernetes worker is back in service with all its GPUs.")
@pytest.mark.long
def test_reboot__of_a_worker_with_pods__moves_them_and_comes_back(
    cluster: Kubernetes, steady: dict[str, tuple[str, ...]]
) -> None:
    before = {node: started(cluster, node) for node in cluster.nodes}
    with moving(cluster, steady):
        assert cluster.run("reboot", "gpu02")["steps"] == [["gpu02"]]
    assert {node for node in cluster.nodes if started(cluster, node) != before[node]} == {"gpu02"}
    assert (cluster.ledger(), cluster.cordoned()) == ({}, set())
    assert cluster.ready() == dict.fromkeys(cluster.nodes, True)
    printed = cluster.output(pod("arrives", cluster.image, SEEN, gpus=4, node="gpu02"))
    assert len(uuids(printed)) == 4
    cluster.unchanged()


# The authority's certificate is as it was: the same key, names and uses, 360 days later.
LATE = """cd /etc/kubernetes/pki
at() { date --utc --date="$1" +%Y%m%d%H%M%SZ; }
openssl x509 -in apiserver.crt -CA ca.crt -CAkey ca.key -set_serial 365 -out late.crt \\
  -not_before "$(at '360 days ago')" -not_after "$(at '5 days')"
openssl verify -CAfile ca.crt late.crt
mv late.crt apiserver.crt
"""
CONTROL_PLANE = ("etcd-", "kube-apiserver-", "kube-controller-manager-", "kube-scheduler-")


@pytest.mark.proves("kubernetes", "A certificate of the control plane that ends in 5 days is renewed.")
@pytest.mark.proves("kubernetes", "The renewal restarts the control plane's containers and no other pod.")
@pytest.mark.long
def test_certificate__that_ends_soon__is_renewed(cluster: Kubernetes) -> None:
    def ends() -> bool:
        """Return whether the certificate ends within 300 days."""
        days = f"openssl x509 -in /etc/kubernetes/pki/apiserver.crt -noout -checkend {300 * 86400} || true"
        return "will expire" in cluster.root("head1", days)

    def containers() -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
        """Return the containers of the control plane, and all others."""
        found = cluster.containers(*cluster.nodes)
        static = {uid: one for uid, one in found.items() if one[0].startswith(CONTROL_PLANE)}
        return static, {uid: one for uid, one in found.items() if uid not in static}

    static, others = containers()
    assert len(static) == len(CONTROL_PLANE)
    timer, service = "kubernetes-certificates.timer", "kubernetes-certificates.service"
    cluster.root("head1", f"systemctl stop {timer}; systemctl start {service}")  # none that has begun runs any more
    try:
        cluster.root("head1", LATE)
        assert ends()
        cluster.root("head1", f"systemctl start {service}")
    finally:
        cluster.root("head1", f"systemctl start {timer}")
    assert not ends()
    assert cluster.kubectl("get", "--raw=/readyz") == "ok"
    serves = f"openssl s_client -connect {cluster.address('head1')}:6443 </dev/null 2>/dev/null | openssl x509"
    assert cluster.root("head1", serves) == cluster.root("head1", "openssl x509 -in /etc/kubernetes/pki/apiserver.crt")
    wait_until(lambda: not {*static.values()} & {*containers()[0].values()}, lambda: f"{containers()[0]}")
    assert containers()[1] == others
    cluster.unchanged()
    cluster.healthy()


@pytest.mark.proves("add-node", "An add-node killed while a Kubernetes worker joins is completed by the same command.")
@pytest.mark.proves("remove-node", "`--dead` removes a lost Kubernetes worker from the head alone.")
@pytest.mark.long
def test_add_node__killed_while_the_node_joins__is_completed_by_the_same_command(
    cluster: Kubernetes, steady: dict[str, tuple[str, ...]]
) -> None:
    podman("rm", "--force", "--volumes", "--time", "0", container(cluster, "gpu02"))
    fails(cluster, 0, "gpu02", "--dead", "--yes", verb="remove-node")
    assert set(cluster.ready()) == {"head1", "gpu01"}
    cluster.up()
    run = begin(cluster, "add-node", *adding(cluster, "gpu02"))
    kubernetes = root_of(cluster, "gpu02")[1] / "etc/kubernetes"
    wait_until(lambda: (kubernetes / "bootstrap-kubelet.conf").exists() or run.poll() is not None)
    assert run.poll() is None, "it ended before it could be killed"
    os.killpg(run.pid, signal.SIGKILL)
    run.wait(GUARD)
    fails(cluster, 0, *adding(cluster, "gpu02"), verb="add-node")
    wait_until(lambda: cluster.ready().get("gpu02"))
    assert (cluster.ledger(), cluster.cordoned(), tokens(cluster)) == ({}, set(), [])
    undisturbed(cluster, steady)
    cluster.unchanged()


_OWN, _MANIFESTS = "/etc/kubernetes/clusterctl", "/etc/kubernetes/manifests"
BY_HAND: ByHand = {
    "key's mode": ("head1", "chmod 0644 /etc/kubernetes/pki/ca.key",
                   ("kubernetes_head", "file", "/etc/kubernetes/pki/ca.key", "mode 0644, was 0600")),
    "file edited": ("head1", f"echo '# by hand' >> {_OWN}/audit-policy.yaml",
                    ("kubernetes_head", "file", f"{_OWN}/audit-policy.yaml", "edited")),
    "secret edited": ("head1", f"echo '# by hand' >> {_OWN}/encryption.yaml",
                      ("kubernetes_head", "file", f"{_OWN}/encryption.yaml", "edited")),
    "manifest edited": ("head1", f"echo '# by hand' >> {_MANIFESTS}/kube-scheduler.yaml",
                        ("kubernetes_head", "file", f"{_MANIFESTS}/kube-scheduler.yaml", "edited")),
    "program removed": ("head1", "rm /usr/local/sbin/kubernetes-drain",
                        ("kubernetes_head", "file", "/usr/local/sbin/kubernetes-drain", "removed")),
    "timer disabled": ("head1", "systemctl -q disable --now kubernetes-certificates.timer",
                       ("kubernetes_head", "unit", "kubernetes-certificates.timer", "disabled, was enabled")),
    "containerd stopped": ("gpu01", "systemctl stop containerd",
                           ("containerd", "unit", "containerd.service", "not running")),
    "file removed": ("gpu01", "rm /etc/crictl.yaml", ("kubernetes_node", "file", "/etc/crictl.yaml", "removed")),
    "package released": ("gpu01", "apt-mark unhold kubectl",
                         ("kubernetes_node", "package", "kubectl", "no longer held")),
    "kubelet stopped": ("gpu02", "systemctl stop kubelet",
                        ("kubernetes_node", "unit", "kubelet.service", "not running")),
    "network's unit stopped": ("gpu02", "systemctl stop kubernetes-network",
                               ("kubernetes_network", "unit", "kubernetes-network.service", "not running")),
    "kernel setting": ("gpu02", "sysctl -q -w net.bridge.bridge-nf-call-ip6tables=0",
                       ("kubernetes_node", "sysctl", "net.bridge.bridge-nf-call-ip6tables", "0, was 1")),
}  # fmt: skip
PLUGIN = "nvidia-device-plugin"
# Changes of the API's objects, which are recorded on no node: `status` does not see them, a run does.
OBJECTS = {
    ("head1", "DaemonSet", f"{PLUGIN}/{PLUGIN}"): ("delete", "daemonset", PLUGIN, f"--namespace={PLUGIN}"),
    ("head1", "ConfigMap", "local-path-storage/local-path-config"): (
        "patch", "configmap", "local-path-config", "--namespace=local-path-storage",
        '--patch={"data":{"setup":"true"}}',
    ),
    ("head1", "ClusterRole", "clusterctl:metrics"): (
        "patch", "clusterrole", "clusterctl:metrics", "--type=json",
        '--patch=[{"op":"add","path":"/rules/-","value":{"apiGroups":[""],"resources":["secrets"],"verbs":["get"]}}]',
    ),
}  # fmt: skip


@pytest.mark.proves("status", "`status` reports exactly twelve kinds of manual change on Kubernetes' nodes.")
@pytest.mark.proves("bootstrap", "A run repairs exactly the manual changes of Kubernetes' nodes and objects.")
@pytest.mark.proves("bootstrap", "A repair of stopped kubelets and containerds restarts no pod.")
@pytest.mark.long
def test_changes_by_hand__of_nodes_and_objects__are_reported_and_repaired(cluster: Kubernetes) -> None:
    def pods() -> dict[str, tuple[str, ...]]:
        """Return the containers of all pods but those of the DaemonSet that is deleted."""
        return {uid: one for uid, one in cluster.containers(*cluster.nodes).items() if not one[0].startswith(PLUGIN)}

    before, running = cluster.manifests(), pods()
    for argv in OBJECTS.values():
        cluster.kubectl(*argv)
    inflict(cluster, BY_HAND)
    reported(cluster.run("status", expect=4), BY_HAND)
    assert changed(cluster.run("bootstrap")) == items(BY_HAND) | OBJECTS.keys()
    assert differences(lasting(before), lasting(cluster.manifests())) == []
    wait_until(lambda: cluster.ready() == dict.fromkeys(cluster.nodes, True), lambda: f"{cluster.ready()}")
    wait_until(lambda: {cluster.gpus(node) for node in cluster.worker_names} == {4})
    assert pods() == running
    assert drift(cluster.healthy()) == {}
    cluster.unchanged()


@pytest.mark.proves("bootstrap", "Static pods that were changed or removed by hand run again as they were.")
@pytest.mark.long
def test_manifests__changed_by_hand__are_written_again(cluster: Kubernetes) -> None:
    def pod(component: str) -> str:
        return cluster.root("head1", f"crictl ps --quiet --name {component}").strip()

    before, kept = cluster.root("head1", f"cat {_MANIFESTS}/*"), (pod("etcd"), pod("kube-apiserver"))
    running = cluster.containers(*cluster.worker_names)
    paths = [f"{_MANIFESTS}/{name}.yaml" for name in ("kube-controller-manager", "kube-scheduler")]
    cluster.root("head1", f"sed -i '/--leader-elect=/a\\    - --v=1' {paths[0]}; rm {paths[1]}")
    wait_until(lambda: not pod("kube-scheduler"))
    assert {name: what for (*_, name), what in drift(cluster.run("status", expect=4)).items()} == {
        paths[0]: "edited",
        paths[1]: "removed",
    }
    assert changed(cluster.run("bootstrap")) == {("head1", "file", path) for path in paths}
    assert cluster.root("head1", f"cat {_MANIFESTS}/*") == before
    assert pod("kube-scheduler")
    assert "--v=1" not in cluster.root("head1", "ps -C kube-controller-manager -o args=")
    assert (pod("etcd"), pod("kube-apiserver")) == kept
    cluster.unchanged()
    cluster.healthy()
    assert cluster.containers(*cluster.worker_names) == running
