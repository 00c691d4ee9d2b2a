"""Which address a host with a name has in the cluster: IPv4 only, by the networks of the cluster in their order."""

import pytest

from clusterctl.inventory.addresses import candidates

ETH, IB = ("fd00::7/64", "10.0.0.7/24"), ("192.168.0.7/24",)


@pytest.mark.parametrize(
    ("nics", "networks", "found"),
    [
        ([ETH], [], ["10.0.0.7"]),
        ([(), ("127.0.0.1/8", "169.254.0.9/16", "fe80::1/64")], [], []),
        ([ETH, IB], [], ["10.0.0.7", "192.168.0.7"]),
        ([ETH, IB], ["192.168.0.0/24"], ["192.168.0.7"]),
        ([ETH, IB], ["192.168.0.0/24", "10.0.0.0/24"], ["192.168.0.7"]),
        ([ETH, IB], ["fd00::/64", "10.0.0.1/24"], ["10.0.0.7"]),
        ([ETH, IB], ["fd00::/64"], []),
        ([ETH, IB], ["10.0.0.0/24", "172.16.0.0/12"], ["10.0.0.7"]),
        ([ETH, IB], ["0.0.0.0/0"], ["10.0.0.7", "192.168.0.7"]),
        ([("10.0.0.7/24", "10.0.0.50/32", "10.0.0.51/24")], [], ["10.0.0.7"]),
        ([("10.0.0.7/24", "172.16.0.7/16")], [], ["10.0.0.7", "172.16.0.7"]),
        ([("10.0.0.7/8", "10.1.0.7/16")], ["10.1.0.0/16"], ["10.1.0.7"]),
    ],
)
def test_candidates__of_interfaces__are_those_of_the_first_network(
    nics: list[tuple[str, ...]], networks: list[str], found: list[str]
) -> None:
    assert candidates(nics, networks) == found


def test_candidates__of_others__are_left_out() -> None:
    assert candidates([("10.0.0.50/32", "10.0.0.7/24"), ("10.244.1.1/24",)], [], ["10.244.0.0/16", "10.0.0.50"]) == [
        "10.0.0.7"
    ]
