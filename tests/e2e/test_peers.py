"""The way by which processes that share a database reach each other."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from live_server import launched, run
from postgres import free_port
from raw_http import ask

KEY = "sk-antwort-0123456789"
HELLO = {"model": "scripted", "input": "Hello"}


def addresses(database: str) -> list[str]:
    """What those that live have told the others."""
    with psycopg.connect(database) as connection:
        return [row[0] for row in connection.execute("SELECT address FROM workers ORDER BY address")]


async def test_each_process_can_be_reached_at_the_address_that_it_tells(migrated_database: str, tmp_path: Path) -> None:
    flags, environment = ("--scripted", "--data", str(tmp_path)), {"ANTWORT_DATABASE": migrated_database}
    async with launched(*flags, environment=environment) as one, launched(*flags, environment=environment) as other:
        told = await asyncio.to_thread(addresses, migrated_database)
        places = [urlsplit(address) for address in told]
        assert [place.hostname for place in places] == ["127.0.0.1", "127.0.0.1"]
        assert not {place.port for place in places} & {one.port, other.port}
        for place in places:
            assert place.port is not None
            made = (await ask(place.port, "POST", "/v1/responses", HELLO)).json()
            found = [await ask(port, "GET", f"/v1/responses/{made['id']}") for port in (one.port, other.port)]
            assert [reply.status for reply in found] == [200, 200]


async def test_keys_are_asked_for_there_as_well(migrated_database: str, tmp_path: Path) -> None:
    file = tmp_path / "antwort.yaml"
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    file.write_text(f"auth: {{keys: [{{name: ada, sha256: {digest}}}]}}")
    port = free_port()
    flags = ("--scripted", "--data", str(tmp_path), "--config", str(file), "--set", f"server.peer_port={port}")
    url = f"http://localhost:{port}"
    async with launched(*flags, "--set", f"server.peer_url={url}", environment={"ANTWORT_DATABASE": migrated_database}):
        assert await asyncio.to_thread(addresses, migrated_database) == [url]
        stranger = await ask(port, "GET", "/v1/models")
        ada = await ask(port, "GET", "/v1/models", headers={"authorization": f"Bearer {KEY}"})
    assert (stranger.status, ada.status) == (401, 200)


async def test_a_port_for_peers_that_is_in_use_is_one_sentence(migrated_database: str, tmp_path: Path) -> None:
    taken = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with taken:
        port = taken.sockets[0].getsockname()[1]
        flags = ("--scripted", "--port", "0", "--data", str(tmp_path), "--set", f"database={migrated_database}")
        status, output, errors = await run("serve", *flags, "--set", f"server.peer_port={port}")
    assert (status, output) == (1, "")
    assert errors == (
        f"antwort: Cannot listen on http://127.0.0.1:{port} for the other processes: Address already in use; "
        "see server.peer_host and server.peer_port.\n"
    )
