"""Codex CLI: a WebSocket for a whole task, and compaction in each of its ways."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from clients.codex import Codex, Said
from clients.ground import serving, settings
from clients.lasting import NO_COUNT, sand, told
from clients.trying import NotApplicable, Trial
from clients.watched import watching
from clients.with_codex import OWN, PLAYS, CodexClient, codex_of, command, cued, streamed

SOCKET = {"model_providers.antwort.supports_websockets": True}
_LIMIT = 18_000
"""Tokens: more than Codex says by itself, fewer than it is told."""
_TOLD = 20_000
"""Words: as many as one argument of a program can hold."""
_REMOTE = {"model_providers.antwort.name": "OpenAI"}
"""By this name Codex takes a provider for one that compacts."""


async def _task(codex: Codex, at: Trial) -> Said:
    """Two commands in a real folder, and an answer."""
    answer = await codex.exec(
        cued(at, f"steps {command('echo walrus > made.txt')} {command('cat made.txt')}"), settings=SOCKET
    )
    assert (codex.work / "made.txt").read_text(encoding="utf-8") == "walrus\n"
    assert "Output:\nwalrus\n" in answer.answer
    return answer


async def websocket(at: Trial) -> None:
    """A whole task over one connection: its turns continue each other, and only what is new is sent."""
    with watching(at.ground.url) as wire:
        async with codex_of(at, url=wire.url) as codex:
            await _task(codex, at)
        assert wire.count("UPGRADE /v1/responses") == 1
        assert wire.count("POST /v1/responses") == 0
    assert len(at.reached()) == 3


async def websocket_off(at: Trial) -> None:
    """A server that has none says so, and Codex goes on over HTTP."""
    given = {**settings(at.ground.backend.url), "server": {"websocket": {"enabled": False}}}
    with TemporaryDirectory() as name:
        config = Path(name) / "antwort.yaml"
        config.write_text(json.dumps(given), encoding="utf-8")
        with serving(config, Path(name)) as url, watching(url) as wire:
            async with codex_of(at, url=wire.url) as codex:
                await _task(codex, at)
            assert wire.count("UPGRADE /v1/responses") == 1
            assert wire.count("POST /v1/responses") == 3


async def compaction(at: Trial) -> None:
    """By a question of Codex's own; and, where it takes the server for one that compacts, by a trigger."""
    assert await _compacted(at, {})
    assert not await _compacted(at, _REMOTE)
    assert not await _compacted(at, {**_REMOTE, **SOCKET})


async def _compacted(at: Trial, how: Mapping[str, object]) -> bool:
    """Whether it was Codex who asked the model to sum up a session that grew too long."""
    given = {**how, "model_auto_compact_token_limit": _LIMIT}
    before = len(at.reached())
    async with codex_of(at) as codex:
        first = await codex.exec(f"case:plain {told(at)} {sand(_TOLD)}", settings=given)
        assert first.answer.startswith(f"You said: {told(at)}")
        second = await codex.exec("resume", first.thread, "case:remember", settings=given)
    assert f"You said: {told(at)}" in second.answer  # which Codex itself does not keep
    begun, summed, _ = (body["messages"][0]["content"] for body in at.reached()[before:])
    return bool(begun == summed)


async def auto_compaction(at: Trial) -> None:
    del at
    raise NotApplicable("Codex decides itself when to compact, and asks for it")


async def conversation(at: Trial) -> None:
    del at
    raise NotApplicable("Codex keeps its conversations itself")


async def input_tokens(at: Trial) -> None:
    del at
    raise NotApplicable(NO_COUNT)


async def truncation(at: Trial) -> None:
    del at
    raise NotApplicable("Codex says nothing of truncation: it compacts")


_LONG = (websocket_off, websocket, conversation, compaction, auto_compaction, input_tokens, truncation)

CODEX = CodexClient(
    "codex",
    "@openai/codex",
    {play.__name__.replace("_", "-"): streamed(play) for play in (*PLAYS, *OWN, *_LONG)},
)
