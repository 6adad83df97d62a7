"""Where a server listens."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack

import pytest

from antwort import Engine
from antwort.server.server import listen
from antwort.testing import ScriptedProvider
from serving import serving


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no socket for both kinds of addresses")
def test_every_address_of_ipv6_is_every_address() -> None:
    with listen("::", 0) as sock:
        port = sock.getsockname()[1]
        for near in ("127.0.0.1", "::1"):
            socket.create_connection((near, port), timeout=5).close()


def test_every_address_of_ipv4_is_no_address_of_ipv6() -> None:
    with listen("0.0.0.0", 0) as sock:
        assert sock.family == socket.AF_INET


def test_a_new_client_waits_only_a_few_turns_behind_many_others_that_connect() -> None:
    """uvloop accepts one connection of a socket in a turn of the event loop."""
    uvloop = pytest.importorskip("uvloop")

    async def turns_until_answered() -> int:
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(serving(Engine(ScriptedProvider())))
            for _ in range(320):  # they are connected to, and not yet accepted: the event loop does not run meanwhile
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            asking, turns = asyncio.create_task(server.ask("GET", "/healthz")), 0
            while not asking.done():
                await asyncio.sleep(0)
                turns += 1
            assert asking.result().status == 200
            return turns

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(turns_until_answered()) < 160
