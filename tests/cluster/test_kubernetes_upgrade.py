"""Kubernetes from one release to the next, while a deployment with a budget is asked all the time."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.cluster.kubernetes import PORT, RECIPES, Kubernetes, budget, named, website
from tests.cluster.lab import clusterctl, fresh_as
from tests.faults.injury import fails, watched
from tests.programs import described

OLD, NEW = "1.35.4", "1.36.3"
PREVIOUS = "kubernetes-previous"

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800), pytest.mark.kit(*RECIPES, PREVIOUS)]


@pytest.fixture(scope="module")
def lab() -> Iterator[Kubernetes]:
    """A head and two workers with the older release."""
    with fresh_as(Kubernetes, "kubernetes-upgrade", "--recipe", PREVIOUS) as lab:
        pin(lab, OLD)
        lab.run("bootstrap")
        yield lab


def pin(lab: Kubernetes, version: str) -> None:
    """Let the inventory say which release is to be there."""
    lines = lab.inventory.read_text().splitlines(keepends=True)
    lab.inventory.write_text("".join(line for line in lines if not line.startswith("    kubernetes_node_version:")))
    lab.declare(f'kubernetes_node_version: "{version}"')


def versions(lab: Kubernetes) -> dict[str, str]:
    """Return what runs: kubelet of each node, and the API server."""
    found = {node["metadata"]["name"]: node["status"]["nodeInfo"]["kubeletVersion"] for node in lab.get("nodes")}
    server = json.loads(lab.kubectl("version", "--output=json"))["serverVersion"]["gitVersion"]
    return {**found, "server": server}


def every(lab: Kubernetes, version: str) -> dict[str, str]:
    return dict.fromkeys((*lab.nodes, "server"), f"v{version}")


# A client that tries each request once more. Each line says what became of one.
CLIENT = """
systemd-run --quiet --unit=client sh -c 'while :; do
  if curl --silent --fail --max-time 3 --retry 1 --retry-delay 1 --retry-all-errors --output /dev/null {url}
  then echo answered; else echo lost; fi >> /var/tmp/requests
  sleep 0.1
done'
"""


@pytest.mark.proves("kubernetes", "The older of the supported releases becomes a cluster, too.")
@pytest.mark.proves("bootstrap", "A newer pin of Kubernetes is reported by bootstrap and moves nothing.")
def test_bootstrap__newer_pin__moves_nothing(lab: Kubernetes) -> None:
    """First: the others have the newer release."""
    assert versions(lab) == every(lab, OLD)
    lab.unchanged()
    pin(lab, NEW)
    assert "clusterctl upgrade" in fails(lab, 0)
    assert versions(lab) == every(lab, OLD)


@dataclass
class Upgrade:
    """What was seen of an upgrade: its plan and summary, the requests, how many pods were there at each look."""

    plan: str
    steps: list[list[str]]
    requests: list[str]
    available: list[int]


@pytest.fixture(scope="module")
def upgrade(lab: Kubernetes) -> Upgrade:
    """Upgrade to the newer release while two web servers are asked."""
    pin(lab, NEW)
    planned = clusterctl("plan", "upgrade", str(lab.inventory))
    assert planned.returncode == 10, described(planned)
    assert versions(lab) == every(lab, OLD), "a plan moves nothing"
    site, service = website("site", replicas=2)
    available: list[int] = []

    def look() -> None:
        # While the head is upgraded its API may not answer.
        done = lab.ask("get", "deployment", *named(site), "--output=jsonpath={.status.availableReplicas}")
        if done.returncode == 0:
            available.append(int(done.stdout or 0))

    with lab.running(site, service, budget("site", 1)):
        address = lab.get("service", *named(service))["spec"]["clusterIP"]
        lab.root("head1", CLIENT.format(url=f"http://{address}:{PORT}/"))
        try:
            with watched(look):
                summary = lab.run("upgrade")
        finally:
            lab.root("head1", "systemctl stop client")
    requests = lab.root("head1", "cat /var/tmp/requests").split()
    return Upgrade(planned.stdout, summary["steps"], requests, available)


@pytest.mark.proves("upgrade", "Kubernetes moves by a release; no request that a client retries once is lost, counted.")
@pytest.mark.proves("upgrade", "A deployment's budget holds while its nodes are upgraded.")
@pytest.mark.proves("plan", "`plan upgrade` of Kubernetes lists the releases and changes nothing.")
def test_upgrade__under_requests__loses_none(lab: Kubernetes, upgrade: Upgrade) -> None:
    assert NEW in upgrade.plan
    assert upgrade.steps == [["head1"], ["gpu01"], ["gpu02"]]
    assert upgrade.requests.count("lost") == 0, f"of {len(upgrade.requests)}"
    assert len(upgrade.requests) > 100
    assert min(upgrade.available) >= 1, upgrade.available
    assert versions(lab) == every(lab, NEW)
    assert (lab.ledger(), lab.cordoned()) == ({}, set())


@pytest.mark.proves("upgrade", "After an upgrade of Kubernetes a bootstrap and a second upgrade change nothing.")
def test_upgrade__again__changes_nothing(lab: Kubernetes, upgrade: Upgrade) -> None:
    lab.unchanged()
    lab.unchanged("upgrade")
    lab.healthy()


@pytest.mark.proves("upgrade", "Kubernetes is not moved to an older release.")
def test_upgrade__to_an_older_release__is_refused(lab: Kubernetes, upgrade: Upgrade) -> None:
    pin(lab, OLD)
    try:
        done = clusterctl("upgrade", str(lab.inventory))
        assert done.returncode == 5, described(done)
        assert f"Kubernetes {NEW} runs here, and kubernetes_node_version is {OLD}: it cannot return" in done.stdout
        assert versions(lab) == every(lab, NEW)
        assert (lab.ledger(), lab.cordoned()) == ({}, set())
    finally:
        pin(lab, NEW)
