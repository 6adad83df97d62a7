"""A conversation with the embedded engine itself, compacted by it. Never what the model says."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from antwort.api.wire import to_plain
from antwort.local.provider import LocalProvider
from antwort.providers.tool_emulation.emulation import Constrained
from engine_kit import ask, engine_of

pytestmark = pytest.mark.xdist_group("model")

PATIENCE, CONTEXT = 120.0, 1024
TALK: list[dict[str, Any]] = [
    {"role": role, "content": f"This is message {n}. " + "The cat sat on the mat. " * 8}
    for n in range(2)
    for role in ("user", "assistant")
]


async def test_what_was_said_is_summed_up_and_gone_on_from(demo_model: Path) -> None:
    provider = LocalProvider(demo_model, context=CONTEXT, slots=1, threads=2)
    async with asyncio.timeout(PATIENCE):
        await provider.ready()
        async with engine_of(Constrained(provider, "constrained"), compaction_summary=64) as engine:
            window = await engine.compact(model=provider.name, input=TALK)
            assert window.usage.output_tokens > 0
            again = [*to_plain(window)["output"], {"role": "user", "content": "And?"}]
            response = await engine.create(ask(again, model=provider.name, max_output_tokens=4))
            assert response.usage is not None
            assert response.usage.total_tokens < CONTEXT / 2
