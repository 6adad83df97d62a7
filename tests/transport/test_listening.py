"""Where a server listens."""

from __future__ import annotations

import socket

import pytest

from antwort.transport.server import listen


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no socket for both kinds of addresses")
def test_every_address_of_ipv6_is_every_address() -> None:
    with listen("::", 0) as sock:
        port = sock.getsockname()[1]
        for near in ("127.0.0.1", "::1"):
            socket.create_connection((near, port), timeout=5).close()


def test_every_address_of_ipv4_is_no_address_of_ipv6() -> None:
    with listen("0.0.0.0", 0) as sock:
        assert sock.family == socket.AF_INET
