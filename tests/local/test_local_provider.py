"""A model on this machine, as a provider: whoever runs it, it answers like any backend."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from antwort.errors import AntwortError, InvalidField, ModelNotFound
from antwort.local.demo import DEMO_NAME
from antwort.local.provider import LocalProvider
from antwort.local.server_options import CannotRun
from antwort.net.connection import CONNECT_LIMIT_SECONDS
from antwort.providers.base import ChatRequest, Delta, TextDelta
from antwort.providers.errors import NotReady
from chat_backend import ChatBackend, Says
from fleet_kit import asking
from local_kit import BROKEN, GOOD, SLOW, Lives, demo_file, gguf_file
from replay import answering, playing
from replay_backend import whole

ASKED = asking(stream=True)


def ready_at(backend: ChatBackend) -> Sequence[str]:
    return (f"ready={backend.url.removesuffix('/v1')}", "wait")


@asynccontextmanager
async def provided(
    tmp_path: Path, *scripts: Sequence[str], patience: float | None = None, file: Path | None = None
) -> AsyncIterator[tuple[LocalProvider, Lives]]:
    """A provider of the model `m`, or of a file, whose processes take these steps."""
    lives = Lives(*scripts)
    provider = LocalProvider(file or gguf_file(tmp_path / "m.gguf"), patience=patience, start_process=lives)
    try:
        async with asyncio.timeout(20):
            yield provider, lives
    finally:
        await provider.close()
    assert all(each.has_ended for each in lives.begun)


async def said(provider: LocalProvider, request: ChatRequest = ASKED) -> str:
    batches: list[list[Delta]] = [batch async for batch in provider.infer(request)]
    return "".join(each.text for batch in batches for each in batch if isinstance(each, TextDelta))


async def test_an_inference_starts_the_model_and_is_answered(tmp_path: Path) -> None:
    async with ChatBackend(Says(["Hello"])) as backend:
        async with provided(tmp_path, ready_at(backend)) as (provider, lives):
            assert (provider.name, provider.is_demo, provider.pid) == ("m", False, None)
            assert [model.id for model in await provider.models()] == ["m"]
            assert not provider.capabilities("m").vision
            assert not lives.begun
            assert await said(provider) == "Hello"
            await provider.check()
            assert provider.pid == lives.begun[0].pid
        assert set(backend.keys) == {f"Bearer {lives.begun[0].key}"}


async def test_it_answers_by_its_own_name_alone(tmp_path: Path) -> None:
    async with provided(tmp_path, SLOW) as (provider, lives):
        with pytest.raises(ModelNotFound):
            await said(provider, asking("gpt-5"))
        assert not lives.begun


async def test_every_process_has_a_key_of_its_own(tmp_path: Path) -> None:
    async with provided(tmp_path, GOOD) as (provider, lives):
        await provider.door()
        os.kill(lives.begun[0].pid, signal.SIGKILL)
        await lives.begun[0].ended()
        await provider.door()
    assert len({*(each.key for each in lives.begun), ""}) == 3


@pytest.mark.parametrize("share", [None, 0.01])
async def test_an_inference_waits_no_longer_than_it_may(tmp_path: Path, share: float | None) -> None:
    """Another backend may be there for the same model: then there is only a share of the time."""
    async with provided(tmp_path, SLOW, patience=0.01 if share is None else 60) as (provider, _):
        CONNECT_LIMIT_SECONDS.set(share)
        with pytest.raises(NotReady) as caught:
            await said(provider)
        CONNECT_LIMIT_SECONDS.set(None)
    assert caught.value.retry_after is not None


async def test_what_comes_after_its_death_goes_to_the_next_process(tmp_path: Path) -> None:
    async with (
        ChatBackend(Says(["one"])) as first,
        ChatBackend(Says(["two"])) as second,
        provided(tmp_path, ready_at(first), ready_at(second)) as (provider, lives),
    ):
        assert await said(provider) == "one"
        os.kill(lives.begun[0].pid, signal.SIGKILL)
        await lives.begun[0].ended()
        assert await said(provider) == "two"


async def test_a_death_that_shows_only_at_the_door_costs_nobody_an_answer(tmp_path: Path) -> None:
    """It is no longer reached, and the system has not told yet that it is gone."""
    async with ChatBackend(Says(["two"])) as second:
        gone = ("ready=http://127.0.0.1:9", "wait")
        async with provided(tmp_path, gone, ready_at(second)) as (provider, lives):
            await provider.ready()
            asyncio.get_running_loop().call_later(0.05, os.kill, lives.begun[0].pid, signal.SIGKILL)
            assert await said(provider) == "two"


async def test_a_process_that_dies_as_it_is_asked_is_followed_by_the_next(tmp_path: Path) -> None:
    """Its socket still takes the request, and nothing comes back."""

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        os.kill(lives.begun[0].pid, signal.SIGKILL)
        writer.close()

    dying = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = dying.sockets[0].getsockname()[1]
    async with dying, ChatBackend(Says(["two"])) as second:
        gone = (f"ready=http://127.0.0.1:{port}", "wait")
        async with provided(tmp_path, gone, ready_at(second)) as (provider, lives):
            await provider.ready()
            assert await said(provider) == "two"
            assert len(lives.begun) == 2


async def test_a_schema_that_the_model_would_be_lost_in_is_refused_before_it_is_started(tmp_path: Path) -> None:
    schema = {"type": "json_schema", "json_schema": {"schema": {"enum": [str(each) for each in range(501)]}}}
    async with provided(tmp_path, SLOW) as (provider, lives):
        with pytest.raises(InvalidField, match="cannot have more than 500 enum values") as caught:
            await said(provider, asking(stream=True, response_format=schema))
        assert caught.value.param == "text.format"
        assert not lives.begun


async def test_a_demo_model_that_cannot_be_loaded_is_told_with_what_fetches_it_anew(tmp_path: Path) -> None:
    data = tmp_path / "my data"
    async with provided(tmp_path, BROKEN, file=demo_file(data)) as (provider, _):
        with pytest.raises(CannotRun) as caught:
            await provider.ready()
    assert str(caught.value) == (
        "gguf_init: failed to read header; where its file is damaged, "
        f"`antwort model pull --data '{data}'` fetches it anew"
    )


async def test_the_demo_model_is_kept_from_going_round_in_circles_in_free_talk_alone(tmp_path: Path) -> None:
    form = {"type": "json_object"}
    async with (
        ChatBackend(Says(["Hello"])) as backend,
        provided(tmp_path, ready_at(backend)) as (other, _),
        provided(tmp_path, ready_at(backend), file=demo_file(tmp_path)) as (provider, _),
    ):
        await said(other)
        for fields in ({}, {"response_format": form}, {"frequency_penalty": 0.0}):
            await said(provider, asking(DEMO_NAME, stream=True, **fields))
        assert [each.get("presence_penalty") for each in backend.requests] == [None, 1.5, None, None]


async def test_no_more_than_its_slots_are_asked_for_at_once(tmp_path: Path) -> None:
    """Each takes a thread of llama.cpp, which are few."""
    hold = asyncio.Event()
    async with (
        ChatBackend(Says(["Hello"], hold=hold)) as backend,
        provided(tmp_path, ready_at(backend)) as (provider, _),
    ):
        answers = asyncio.gather(*(said(provider) for _ in range(8)))
        await backend.until(lambda: len(backend.requests) == 2)
        await provider.check()  # a whole exchange later there are still two
        assert len(backend.requests) == 2
        hold.set()
        assert await answers == ["Hello"] * 8
        assert len(backend.requests) == 8


async def test_one_that_is_there_and_cannot_be_reached_is_an_error(tmp_path: Path) -> None:
    async with provided(tmp_path, ("ready=http://127.0.0.1:9", "wait")) as (provider, lives):
        with pytest.raises(AntwortError) as caught:
            await said(provider)
        assert (caught.value.status, caught.value.code) == (503, "backend_unavailable")
        with pytest.raises(AntwortError):
            await provider.check()
        assert len(lives.begun) == 1


async def test_a_model_that_cannot_be_loaded_says_so(tmp_path: Path) -> None:
    async with provided(tmp_path, BROKEN) as (provider, _):
        with pytest.raises(CannotRun, match="failed to read header"):
            await provider.ready()


# ---- how much fits ----


async def test_it_says_how_much_was_ordered_before_it_is_loaded(tmp_path: Path) -> None:
    provider = LocalProvider(gguf_file(tmp_path / "m.gguf"), context=1024)
    assert provider.capabilities("m").context_length == 1024
    assert [model.context_length for model in await provider.models()] == [1024]
    assert await provider.count(ASKED) is None
    assert provider.pid is None  # nobody starts it for that
    await provider.close()


@pytest.mark.parametrize(("told", "length"), [(512, 512), (100_000, 4096)])
async def test_a_model_with_a_shorter_context_than_was_ordered_says_so(tmp_path: Path, told: int, length: int) -> None:
    listed = whole(b'{"data": [{"id": "m", "owned_by": "llamacpp"}]}')
    props = whole(b'{"default_generation_settings": {"n_ctx": %d}}' % told)
    async with (
        playing({"GET /v1/models": listed, "GET /props": props}) as engine,
        provided(tmp_path, (f"ready={engine.url}", "wait")) as (provider, _),
    ):
        await provider.check()
        assert [model.context_length for model in await provider.models()] == [length]
        assert provider.capabilities("m").context_length == length


async def test_it_counts_by_the_tokenizer_of_the_model(tmp_path: Path) -> None:
    async with (
        answering(lambda _: whole(b'{"input_tokens": 9}')) as engine,
        provided(tmp_path, (f"ready={engine.url}", "wait")) as (provider, _),
    ):
        await provider.ready()
        assert await provider.count(ASKED) == 9
        assert await provider.count(asking("other")) is None
