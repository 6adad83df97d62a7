"""Background responses of a program that has an engine and a store, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from antwort import Engine, Identity, SqliteStore
from antwort.errors import UnsupportedFeature
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, say

ADA = Identity(owner="ada")


class Lent:
    """A store of somebody else's making."""

    def __init__(self) -> None:
        self._store = MemoryStore()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_a_store_in_a_file_is_enough_for_background_responses(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "responses.db")
    async with Engine(ScriptedProvider(answer(say("All is done."))), store=store) as engine:
        queued = await engine.create({"input": "Hi", "background": True}, ADA)
        assert queued.status == "queued"
        async with await engine.follow(ADA, queued.id) as reader:
            numbers = [number async for number, _ in reader.events()]
        assert numbers == list(range(len(numbers)))
        assert (await engine.retrieve(ADA, queued.id)).output_text == "All is done."


async def test_what_a_program_leaves_when_it_ends_the_next_one_on_the_file_makes_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "responses.db"
    first = ScriptedProvider(answer(say("I begin"), asyncio.Event()))
    async with Engine(first, store=await SqliteStore.open(file)) as engine:
        queued = await engine.create({"input": "Hi", "background": True}, ADA)
        async with await engine.follow(ADA, queued.id) as reader:
            seen = [number async for number, _ in _until_text(reader.events())]
    async with Engine(ScriptedProvider(answer(say("Done."))), store=await SqliteStore.open(file)) as engine:
        async with await engine.follow(ADA, queued.id, after=seen[-1]) as reader:
            later = [number async for number, _ in reader.events()]
        response = await engine.retrieve(ADA, queued.id)
    assert response.status == "completed"
    assert later[0] == seen[-1] + 1
    assert response.output_text.endswith("Done.")


async def _until_text(events: Any) -> Any:
    async for number, event in events:
        yield number, event
        if type(event).__name__ == "OutputTextDelta":
            return


async def test_an_engine_over_another_store_says_why_there_are_none() -> None:
    store: Any = Lent()
    async with Engine(ScriptedProvider(answer(say("Hi."))), store=store) as engine:
        with pytest.raises(UnsupportedFeature, match="no log of runs for the store of the engine") as caught:
            await engine.create(input="Hi", background=True)
    assert caught.value.param == "background"
