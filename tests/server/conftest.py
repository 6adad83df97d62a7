"""What depends on how a connection behaves is tested on both event loops; everything else on the standard one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

BOTH = {
    "test_idempotency",
    "test_leaving",
    "test_limits",
    "test_shutdown",
    "test_websocket_limits",
    "test_websocket_shutdown",
    "test_websocket_upgrade",
}


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.stem not in BOTH:
        return {"asyncio": asyncio.new_event_loop}
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
