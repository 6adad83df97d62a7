"""Sending requests at the same time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from fuzz.asked import Asked
from fuzz.backend import Backstage
from fuzz.server import FuzzServer, Hang, Reply

AT_ONCE = 8
Sent = tuple[Asked, Reply | Hang, float]
"""What came of a request, and after how many seconds."""


def send_together(server: FuzzServer, stage: Backstage, requests: Sequence[Asked]) -> list[Sent]:
    """All at once; what came of each, in order. Only the replies depend on who was first."""
    stage.play([play for asked in requests for play in asked.script or () if not asked.mark])
    stage.play_marked({asked.mark: [*asked.script] for asked in requests if asked.mark and asked.script is not None})
    if len(requests) == 1:
        return [_sent(server, requests[0])]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [*pool.map(lambda asked: _sent(server, asked), requests)]


def _sent(server: FuzzServer, asked: Asked) -> Sent:
    began = time.perf_counter()
    try:
        reply: Reply | Hang = server.send(asked.method, asked.path, asked.body, asked.headers)
    except Hang as hang:
        reply = hang
    return asked, reply, time.perf_counter() - began
