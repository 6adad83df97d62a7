"""A store that fails under a running server."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from antwort.api.wire import replace
from antwort.app import build
from antwort.config.settings import Secret
from antwort.engine.engine import Engine
from antwort.storage.sql_store import SqlStore
from antwort.telemetry.hooks import TimedOperations
from antwort.testing import check_frames
from chat_backend import ChatBackend, Says
from database_kit import impatient_sqlite
from postgres import Postgres
from raw_http import Wire, connected
from serving import RESPONSES, serving
from settings_kit import in_front_of

BODY = {"model": "test-model", "input": "Hello"}


def remove_all(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


@pytest.mark.proves("MISTAKE-02", "TR-016")
async def test_a_response_whose_record_cannot_be_written_is_failed_and_never_completed(tmp_path: Path) -> None:
    go = asyncio.Event()
    async with ChatBackend(Says(hold=go)) as backend:
        app = await build(in_front_of(backend.url, data=tmp_path))
        async with serving(app.engine, app.asgi) as server:
            async with connected(server.port) as wire:
                wire.send("POST", RESPONSES, {**BODY, "stream": True})
                await wire.head()
                chunks = [await wire.chunk()]
                remove_all(tmp_path)
                go.set()
                while chunk := await wire.chunk():
                    chunks.append(chunk)
            response = check_frames(b"".join(chunks))
            assert response.status == "failed"
            assert response.error is not None
            assert response.error.code == "storage_unavailable"
            # Later requests fail clearly too, before any work; what needs no record is still answered.
            requests = len(backend.requests)
            reply = await server.ask("POST", RESPONSES, BODY)
            assert (reply.status, reply.error["code"]) == (503, "storage_unavailable")
            assert (reply.headers["retry-after"], reply.headers["x-should-retry"]) == ("5", "true")
            assert len(backend.requests) == requests
            assert (await server.ask("POST", RESPONSES, {**BODY, "store": False})).json()["status"] == "completed"
            ready = await server.ask("GET", "/readyz")
            assert (ready.status, ready.json()["backend"]) == (503, "ok")
            assert ready.json()["store"] != "ok"


async def limit_pages(engine: Engine, pages: int) -> None:
    """How large the file may grow; it is never made smaller than it is."""
    measured = engine._store
    assert isinstance(measured, TimedOperations)
    assert isinstance(measured._target, SqlStore)
    await measured._target.database.write(partial(_set_pages, pages=pages))


def _set_pages(connection: sqlite3.Connection, pages: int) -> None:
    connection.execute(f"PRAGMA max_page_count = {pages}")


async def rest(wire: Wire) -> bytes:
    chunks = []
    while chunk := await wire.chunk():
        chunks.append(chunk)
    return b"".join(chunks)


@pytest.mark.proves("MISTAKE-02", "TR-016")
async def test_a_response_for_whose_record_the_disk_has_no_room_is_failed_then_and_later(tmp_path: Path) -> None:
    go = asyncio.Event()
    async with ChatBackend(Says(("Hello", "x" * 200_000), hold=go)) as backend:
        app = await build(in_front_of(backend.url, data=tmp_path))
        async with serving(app.engine, app.asgi) as server, connected(server.port) as wire:
            wire.send("POST", RESPONSES, {**BODY, "stream": True})
            await wire.head()
            first = await wire.chunk()
            await limit_pages(app.engine, 1)
            go.set()
            response = check_frames(first + await rest(wire))
            assert response.status == "failed"
            assert response.error is not None
            assert response.error.code == "storage_unavailable"
            await limit_pages(app.engine, 2**30)
            stored = (await server.ask("GET", f"{RESPONSES}/{response.id}")).json()
            assert (stored["status"], stored["error"]["code"]) == ("failed", "storage_unavailable")
            assert (await server.ask("POST", RESPONSES, BODY)).json()["status"] == "completed"
        again = await build(in_front_of(backend.url, data=tmp_path))
        async with serving(again.engine, again.asgi) as server:
            assert (await server.ask("GET", f"{RESPONSES}/{response.id}")).json() == stored


@pytest.mark.parametrize("strict", [False, True], ids=["as it is", "strict"])
async def test_a_file_that_another_process_locks_is_a_503_that_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    impatient_sqlite(monkeypatch)
    async with ChatBackend(Says()) as backend:
        settings = in_front_of(backend.url, data=tmp_path)
        app = await build(replace(settings, loop=replace(settings.loop, strict=strict)))
        async with serving(app.engine, app.asgi) as server:
            with closing(sqlite3.connect(tmp_path / "antwort.db", isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                reply = await server.ask("POST", RESPONSES, BODY)
                other.execute("ROLLBACK")
            assert (reply.status, reply.error["code"]) == (500 if strict else 503, "storage_unavailable")
            assert reply.headers["retry-after"] == "5"
            assert (await server.ask("POST", RESPONSES, BODY)).status == 200


async def test_a_record_that_is_damaged_stays_a_500(tmp_path: Path) -> None:
    async with ChatBackend(Says()) as backend:
        app = await build(in_front_of(backend.url, data=tmp_path))
        async with serving(app.engine, app.asgi) as server:
            made = (await server.ask("POST", RESPONSES, BODY)).json()
            with closing(sqlite3.connect(tmp_path / "antwort.db")) as other, other:
                other.execute("UPDATE items SET raw = '{'")
            reply = await server.ask("POST", RESPONSES, {**BODY, "previous_response_id": made["id"]})
            assert (reply.status, reply.error["code"]) == (500, "storage_error")
            assert "retry-after" not in reply.headers


async def test_a_postgresql_that_is_down_is_a_503_that_may_pass(own_postgres: Postgres) -> None:
    dsn = own_postgres.migrated_database()
    async with ChatBackend(Says()) as backend:
        settings = replace(in_front_of(backend.url), memory=False, database=Secret(dsn))
        app = await build(settings)
        async with serving(app.engine, app.asgi) as server:
            made = (await server.ask("POST", RESPONSES, BODY)).json()
            await asyncio.to_thread(own_postgres.kill)
            for method, path, body in (
                ("POST", RESPONSES, BODY),
                ("POST", RESPONSES, {**BODY, "previous_response_id": made["id"]}),
                ("GET", f"{RESPONSES}/{made['id']}", None),
                ("POST", "/v1/conversations", {}),
            ):
                reply = await server.ask(method, path, body)
                assert (reply.status, reply.error["code"]) == (503, "storage_unavailable")
                assert reply.headers["retry-after"] == "5"
