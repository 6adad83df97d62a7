"""`check_streams` finds a breach of the grammar in any run of the process, and reports it at the end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from antwort import Engine
from antwort.storage.memory import MemoryStore
from antwort.testing import GrammarError, ScriptedProvider, answer, check_streams, say
from engine_kit import ask
from tampering_store import TamperingStore

ROOT = Path(__file__).parents[2]


async def _respond(store: MemoryStore, *, stream: bool) -> list[str]:
    async with Engine(ScriptedProvider(answer(say("Hello"))), store=store) as engine:
        run = await engine.start(ask(stream=stream))
        await run.result()
        return [type(event).__name__ for batch in await run.read() for event in batch.events] if stream else []


@pytest.mark.parametrize("stream", [True, False])
async def test_a_broken_stream_is_reported_at_the_end(stream: bool) -> None:
    names: list[str] = []
    with pytest.raises(GrammarError, match=r"response\.completed"), check_streams():
        names = await _respond(TamperingStore(), stream=stream)
    assert not stream or names[-1] == "ResponseCompleted"  # the run itself is not disturbed


async def test_a_sound_stream_passes() -> None:
    with check_streams():
        await _respond(MemoryStore(), stream=True)


async def test_a_run_that_has_not_ended_is_checked_as_far_as_it_got() -> None:
    with check_streams():
        engine = Engine(ScriptedProvider(answer(say("Hello"))))
        run = await engine.start(ask(stream=True))
    await run.result()
    await engine.close()


BROKEN_TEST = """
from antwort import Engine
from antwort.testing import ScriptedProvider, answer, say
from engine_kit import ask
from tampering_store import TamperingStore
from tampering_store import TamperingStore

async def test_with_a_broken_stream():
    async with Engine(ScriptedProvider(answer(say("Hello"))), store=TamperingStore()) as engine:
        assert (await (await engine.start(ask())).result()).status == "completed"
"""


def test_the_fixture_of_all_tests_fails_a_test_with_a_broken_stream(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text(BROKEN_TEST, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", ROOT / "pyproject.toml", "-p", "conftest", tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "GrammarError" in done.stdout
    assert "1 passed, 1 error" in done.stdout
