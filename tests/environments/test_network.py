import socket
import time
from pathlib import Path

import pytest

from noether.environments.network import interface_towards, resolve_host
from noether.errors import RequestError


def test_the_loopback_is_reached_by_the_loopback() -> None:
    assert interface_towards("127.0.0.1") == "lo"


def test_every_own_address_is_found_on_its_interface() -> None:
    """Not on `lo`, although the route to an own address is the loopback: no other host comes there."""
    names = {name for _, name in socket.if_nameindex()}
    assert {interface_towards("127.0.0.1")} <= names
    own = socket.gethostbyname("localhost")
    assert interface_towards(own) in names


@pytest.mark.skipif(not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists(), reason="no IPv6 here")
def test_an_ipv6_address_is_reached_by_its_interface() -> None:
    assert resolve_host("::1") == "::1"
    assert interface_towards("::1") == "lo"


def test_where_no_route_leads_nothing_is_chosen() -> None:
    assert interface_towards("255.255.255.255") is None


def test_a_name_that_does_not_resolve_ends_in_words() -> None:
    started = time.monotonic()
    with pytest.raises(RequestError) as caught:
        resolve_host("no-such-host.invalid", seconds=0.3)
    assert time.monotonic() - started < 30
    assert "the master's name no-such-host.invalid does not resolve" in str(caught.value)
    assert "master_addr=ADDRESS" in str(caught.value)


def test_an_address_is_its_own_name() -> None:
    assert resolve_host("127.0.0.1") == "127.0.0.1"
    assert resolve_host("localhost") == "127.0.0.1"
