"""A conversation with the embedded engine itself that is longer than its context. Never what the model says."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from antwort.api.responses import Usage
from antwort.errors import ContextTooLong
from antwort.local.provider import LocalProvider
from antwort.providers.tool_emulation.emulation import Constrained
from engine_kit import ask, engine_of

pytestmark = pytest.mark.xdist_group("model")

PATIENCE, CONTEXT = 120.0, 256
BRIEF = {"truncation": "auto", "max_output_tokens": 4}


async def test_it_goes_on_for_three_times_its_context_and_refuses_what_may_not_be_cut(demo_model: Path) -> None:
    provider = LocalProvider(demo_model, context=CONTEXT, slots=1, threads=1)
    async with asyncio.timeout(PATIENCE):
        await provider.ready()
        async with engine_of(Constrained(provider, "constrained")) as engine:
            previous: str | None = None
            for n in range(6):
                text = f"This is turn number {n}. " + "The cat sat on the mat. " * 18
                response = await engine.create(ask(text, model=provider.name, previous_response_id=previous, **BRIEF))
                assert response.status in ("completed", "incomplete")
                assert isinstance(response.usage, Usage)
                assert response.usage.total_tokens <= CONTEXT
                previous = response.id
            whole = ask("And?", model=provider.name, previous_response_id=previous)
            assert await engine.count(whole) > 3 * CONTEXT
            with pytest.raises(ContextTooLong, match="the model's context has 256"):
                await engine.create(whole)
