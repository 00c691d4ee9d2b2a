"""A first bootstrap of Kubernetes is killed, or its head fails: the same command again completes it."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.kubernetes import BUSYBOX, RECIPES, Kubernetes, pod, tokens
from tests.cluster.lab import fresh_as
from tests.faults.injury import fails
from tests.faults.test_killed import Site, check, five_kills, new_seed, renew
from tests.faults.test_killed import undisturbed as undisturbed  # a fixture
from tests.manifests import differences

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600), pytest.mark.kit(*RECIPES)]


@pytest.fixture(scope="module")
def lab() -> Iterator[Kubernetes]:
    """Fresh nodes: one head and one worker."""
    with fresh_as(Kubernetes, "kubernetes-killed", workers=1) as lab:
        yield lab


@pytest.mark.proves("plan", "A plan of a new Kubernetes cluster announces it, and changes nothing.")
def test_plan__of_empty_nodes__announces_the_cluster(lab: Kubernetes) -> None:
    before = lab.manifests()
    announced = lab.run("plan bootstrap", expect=10)["hosts"]
    kinds = {change["kind"] for host in announced.values() for change in host["changes"]}
    assert {"package", "file", "unit", "kubernetes", "DaemonSet", "node"} <= kinds
    assert differences(before, lab.manifests()) == []


@pytest.mark.proves("faults", "Three runs killed at random, then one more, reach Kubernetes' undisturbed state.")
def test_three_kills__of_a_bootstrap__end_in_the_undisturbed_state(
    lab: Kubernetes, undisturbed: tuple[dict[str, Any], float]
) -> None:
    """At the same random parts of the way each time, so that a change is judged by itself."""
    check(lab, undisturbed, kills=3, seed=3)
    assert lab.ready() == dict.fromkeys(lab.nodes, True)
    assert (lab.ledger(), lab.cordoned(), tokens(lab)) == ({}, set(), [])
    assert lab.output(pod("after", BUSYBOX, "echo works", node="gpu01")) == "works\n"
    lab.unchanged()


@pytest.mark.proves("faults", "A head fails while new workers are prepared beside it: none joins; exit 5.")
@pytest.mark.proves("faults", "After that, the same command reaches Kubernetes' undisturbed state.")
def test_first_bootstrap__head_fails__workers_wait_for_it(
    lab: Kubernetes, undisturbed: tuple[dict[str, Any], float]
) -> None:
    """The worker has the head's DNS, which does not serve."""
    renew(lab)
    path = "/etc/dnsmasq.hosts"
    lab.root("head1", f"touch {path}; mount --bind {path} {path}")
    assert path in fails(lab, 5)
    assert lab.address("head1") in lab.root("gpu01", "cat /etc/resolv.conf")
    assert lab.root("gpu01", "ls /etc/kubernetes/kubelet.conf 2>/dev/null || true") == ""
    lab.root("head1", f"umount {path}; rm {path}")
    lab.run("bootstrap")
    # The file that stood in the way is recorded as the original.
    found = differences(undisturbed[0], lab.comparable_manifests())
    assert [line for line in found if "%2Fetc%2Fdnsmasq.hosts" not in line and "/head1/" in line] == [
        line for line in found if line.startswith("/head1/files//var/lib/clusterctl/state/base.json:")
    ]
    assert [line for line in found if not line.startswith("/head1/")] == []


OBJECTS = (
    ("clusterrole", "flannel"),
    ("storageclass", "local"),
    ("configmap", "kube-flannel-cfg", "--namespace=kube-flannel"),
)


class Changes(Site):
    """What an operator changes in a cluster of Kubernetes: variables, an object and a label by hand."""

    changes = ("zone", "user", "team", "label", "slices", "object", "label by hand", "file")
    lab: Kubernetes

    def make(self, what: str, *, pick: bool) -> None:
        match what:
            case "team":  # of a role that is played alone
                self.of_all["kubernetes_quota_teams"] = {"vision": {"quota": {"pods": "7" if pick else "9"}}}
            case "label":
                self.of_one["kubernetes_worker_labels"] = {"rack": "r1" if pick else "r2"}
            case "slices":
                self.of_all["kubernetes_gpu_time_slices"] = 2 if pick else 1
            case "object":
                self.lab.kubectl("delete", "--ignore-not-found", *self.chance.choice(OBJECTS))
            case "label by hand":
                self.lab.kubectl("label", "node", "gpu01", "clusterctl/gpu-count-")
            case "file":
                self.lab.root(self.chance.choice(self.lab.nodes), "echo '# mine' >> /etc/chrony/chrony.conf")
            case _:
                super().make(what, pick=pick)


@pytest.fixture(scope="module")
def site() -> Iterator[Changes]:
    """A finished cluster of one head and one worker, for changes."""
    with fresh_as(Kubernetes, "kubernetes-changes", workers=1) as lab:
        made = Changes(lab, random.Random(new_seed()))  # noqa: S311 - when, not what
        lab.run("bootstrap")
        yield made


@pytest.mark.proves("faults", "Kills of runs on Kubernetes make no later one leave out what was not done.")
@pytest.mark.parametrize("part", range(4))
def test_five_kills_between_changes(site: Changes, part: int) -> None:
    five_kills(site)
