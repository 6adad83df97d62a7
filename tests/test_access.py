"""Who may come in, as the settings say."""

from __future__ import annotations

import asyncio
import gc
import sys
from hashlib import sha256
from secrets import token_hex
from types import FrameType, ModuleType
from typing import Any

import pytest

from antwort.app import build, hashed, make_cors, make_door
from antwort.asgi import create_app
from antwort.config.problems import CannotStart
from antwort.config.secrets import Secret
from antwort.config.settings import AuthSettings, CorsSettings, KeyLimits, KeySettings, ServerSettings, Settings
from antwort.errors import NotAuthenticated, NotPermitted, RateLimited
from antwort.identity import Identity
from antwort.server.auth import HostCheck, Keyring
from antwort.server.errors import Headers
from antwort.server.exchange import Scope

SECRET = "sk-very-secret-0123"


def ann(**fields: Any) -> KeySettings:
    return KeySettings(**{"name": "ann", "key": Secret(SECRET), **fields})


def settings(*keys: KeySettings, host: str = "127.0.0.1", **fields: Any) -> Settings:
    return Settings(
        scripted=True, memory=True, server=ServerSettings(host=host), auth=AuthSettings(keys=keys, **fields)
    )


def brings(secret: str) -> Scope:
    return {"headers": [(b"authorization", f"Bearer {secret}".encode())]}


# ---- when keys are asked for ----


@pytest.mark.proves("MISTAKE-27")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.5", "example.com", "127.0.0.1.evil.com"])
async def test_a_server_that_others_can_reach_does_not_start_without_keys(host: str) -> None:
    with pytest.raises(CannotStart, match="API keys"):
        await build(settings(host=host))
    ring = make_door(settings(host=host))
    assert isinstance(ring, Keyring)
    nothing: Scope = {"headers": []}
    for scope in (brings(SECRET), brings(""), nothing):
        with pytest.raises(NotAuthenticated):
            ring.identify(scope)


async def test_peers_come_in_under_the_name_that_they_were_told_where_no_keys_are_asked_for() -> None:
    server = ServerSettings(peer_port=9000, peer_url="http://Antwort-0.antwort.example:9000")
    door = make_door(Settings(scripted=True, database=Secret("postgresql://db/antwort"), server=server))
    assert isinstance(door, HostCheck)
    door.identify({"headers": [(b"host", b"antwort-0.antwort.example:9000")]})
    with pytest.raises(NotPermitted):
        door.identify({"headers": [(b"host", b"antwort-1.antwort.example:9000")]})


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "::1", "localhost"])
def test_keys_that_are_there_are_asked_for_unless_that_is_switched_off(host: str) -> None:
    assert make_door(settings(ann(), host=host)).__class__ is Keyring
    assert make_door(settings(host=host, required="never")).__class__ is HostCheck


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost", "LocalHost"])
def test_on_this_machine_alone_no_keys_are_needed(host: str) -> None:
    assert isinstance(make_door(settings(host=host)), HostCheck)
    assert isinstance(make_door(settings(host=host, required="always")), Keyring)


# ---- what a key stands for ----


def test_a_key_stands_for_its_subject_within_its_tenant() -> None:
    ring = make_door(
        settings(
            ann(subject="ann@acme", tenant="acme", models=("small", "org/*")),
            KeySettings(name="bob", sha256=sha256(b"sk-bob").hexdigest().upper(), metrics=True),
        )
    )
    assert isinstance(ring, Keyring)
    assert ring.identify(brings(SECRET)) == Identity("acme", "ann@acme", ("small", "org/*"), "ann")
    assert ring.identify(brings("sk-bob")) == Identity("default", "bob", None, "bob")
    with pytest.raises(NotAuthenticated):
        ring.identify(brings("sk-other"))
    assert [ring.may_read_metrics(brings(key)) for key in (SECRET, "sk-bob", "sk-other")] == [False, True, False]


@pytest.mark.proves("MISTAKE-29")
def test_no_key_stands_for_nobody() -> None:
    ring = make_door(settings(ann(subject="")))
    assert isinstance(ring, Keyring)
    assert ring.identify(brings(SECRET)).owner == "ann"


def test_a_key_has_its_limits() -> None:
    ring = make_door(settings(ann(limits=KeyLimits(requests_per_minute=1, concurrent=2, tokens_per_minute=3))))
    assert isinstance(ring, Keyring)
    quota = ring.quotas.of("ann")
    told: Headers = []
    with quota.slot(told):
        pass
    assert [value for name, value in told if b"-limit-" in name] == [b"1", b"3"]
    with pytest.raises(RateLimited), quota.slot([]):
        pass


def test_a_key_and_its_hash_open_the_same_doors() -> None:
    plain = settings(ann(tenant="acme"), KeySettings(name="bob", sha256=sha256(b"sk-bob").hexdigest().upper()))
    kept = hashed(plain)
    assert [key.key for key in kept.auth.keys] == [None, None]
    assert hashed(kept) == kept
    for ring in (make_door(plain), make_door(kept)):
        assert [ring.identify(brings(key)).owner for key in (SECRET, "sk-bob")] == ["ann", "bob"]


async def test_nothing_that_an_application_holds_has_a_key_in_it() -> None:
    secret = f"sk-{token_hex()}"  # no constant, which the code of this test would hold
    ai = create_app(settings(ann(key=Secret(secret))))
    assert holders(Holding(Secret(secret)), secret) == ["Secret"]
    async with ai.lifespan():
        assert holders(ai, secret) == []
    assert holders(ai, secret) == []


class Holding:
    def __init__(self, held: object) -> None:
        self.held = [held]


def holders(root: object, secret: str) -> list[str]:
    """The kinds of the objects that hold the text, of all that can be reached, this test itself left out, and what
    other modules have of their own.
    """
    task = asyncio.current_task()
    assert task is not None
    strangers = [id(vars(module)) for name, module in [*sys.modules.items()] if not name.startswith("antwort")]
    seen, waiting, found = {id(root), id(task), id(task.get_coro()), *strangers}, [root], []
    while waiting:
        each = waiting.pop()
        for referent in gc.get_referents(each):
            if secret in str(referent) if isinstance(referent, str | bytes) else False:
                found.append(type(each).__name__)
            elif id(referent) not in seen and not isinstance(referent, ModuleType | FrameType | type):
                seen.add(id(referent))
                waiting.append(referent)
    return found


def test_a_key_without_a_value_opens_nothing() -> None:
    ring = make_door(settings(ann(key=None)))
    assert isinstance(ring, Keyring)
    with pytest.raises(NotAuthenticated):
        ring.identify(brings(""))


# ---- pages ----


def cors(*origins: str, credentials: bool = False) -> Settings:
    return Settings(cors=CorsSettings(origins=origins, credentials=credentials, max_age=5, headers=("x-mine",)))


def test_no_page_may_use_the_api_unless_it_is_named() -> None:
    assert make_cors(Settings()) is None


def test_pages_are_told_what_the_settings_say() -> None:
    made = make_cors(cors("https://app.example.com", "tauri://localhost", credentials=True))
    assert made is not None
    told = dict(made.preflight(b"tauri://localhost", b"POST", b"x-mine") or ())
    assert told[b"access-control-allow-origin"] == b"tauri://localhost"
    assert told[b"access-control-allow-headers"] == b"x-mine"
    assert (told[b"access-control-max-age"], told[b"access-control-allow-credentials"]) == (b"5", b"true")
