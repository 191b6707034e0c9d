import socket
from pathlib import Path

import pytest

from noether.launch.detect.network import find_address, interface_towards


def test_the_loopback_is_reached_by_the_loopback() -> None:
    assert interface_towards("127.0.0.1") == "lo"


@pytest.mark.skipif(not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists(), reason="no IPv6 here")
def test_an_ipv6_address_is_reached_by_its_interface() -> None:
    assert find_address("::1") == "::1"
    assert interface_towards("::1") == "lo"


def test_where_no_route_leads_nothing_is_chosen() -> None:
    assert interface_towards("255.255.255.255") is None


@pytest.mark.parametrize("name", ["no-such-host.invalid", "a" * 64 + ".invalid"], ids=["unknown", "no-name-at-all"])
def test_a_name_without_an_address(name: str) -> None:
    with pytest.raises(socket.gaierror):
        find_address(name)


def test_an_address_is_its_own_name() -> None:
    assert find_address("127.0.0.1") == "127.0.0.1"
    assert find_address("localhost") == "127.0.0.1"
