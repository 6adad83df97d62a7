"""Who may come in, as the settings say."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from antwort.access import make_cors, make_keyring
from antwort.app import build
from antwort.config.problems import CannotStart
from antwort.config.secrets import Secret
from antwort.config.settings import AuthSettings, CorsSettings, KeyLimits, KeySettings, ServerSettings, Settings
from antwort.errors import NotAuthenticated, RateLimited
from antwort.identity import Identity
from antwort.transport.errors import Headers
from antwort.transport.exchange import Scope

SECRET = "sk-very-secret"


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
    ring = make_keyring(settings(host=host))
    assert ring is not None
    nothing: Scope = {"headers": []}
    for scope in (brings(SECRET), brings(""), nothing):
        with pytest.raises(NotAuthenticated):
            ring.identify(scope)


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "::1", "localhost"])
def test_keys_that_are_there_are_asked_for_unless_that_is_switched_off(host: str) -> None:
    assert make_keyring(settings(ann(), host=host)) is not None
    assert make_keyring(settings(ann(), host=host, required="never")) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost", "LocalHost"])
def test_on_this_machine_alone_no_keys_are_needed(host: str) -> None:
    assert make_keyring(settings(host=host)) is None
    assert make_keyring(settings(host=host, required="always")) is not None


# ---- what a key stands for ----


def test_a_key_stands_for_its_subject_within_its_tenant() -> None:
    ring = make_keyring(
        settings(
            ann(subject="ann@acme", tenant="acme", models=("small", "org/*")),
            KeySettings(name="bob", sha256=sha256(b"sk-bob").hexdigest().upper(), metrics=True),
        )
    )
    assert ring is not None
    assert ring.identify(brings(SECRET)) == Identity("acme", "ann@acme", ("small", "org/*"), "ann")
    assert ring.identify(brings("sk-bob")) == Identity("default", "bob", None, "bob")
    with pytest.raises(NotAuthenticated):
        ring.identify(brings("sk-other"))
    assert [ring.may_read_metrics(brings(key)) for key in (SECRET, "sk-bob", "sk-other")] == [False, True, False]


@pytest.mark.proves("MISTAKE-29")
def test_no_key_stands_for_nobody() -> None:
    ring = make_keyring(settings(ann(subject="")))
    assert ring is not None
    assert ring.identify(brings(SECRET)).owner == "ann"


def test_a_key_has_its_limits() -> None:
    ring = make_keyring(settings(ann(limits=KeyLimits(requests_per_minute=1, concurrent=2, tokens_per_minute=3))))
    assert ring is not None
    quota = ring.quotas.of("ann")
    told: Headers = []
    with quota.place(told):
        pass
    assert [value for name, value in told if b"-limit-" in name] == [b"1", b"3"]
    with pytest.raises(RateLimited), quota.place([]):
        pass


@pytest.mark.parametrize("secret", ["", "sk very", "sk-\u00e4", "sk-\n"])
def test_a_key_that_no_client_can_send_keeps_the_server_from_starting(secret: str) -> None:
    with pytest.raises(CannotStart, match=r"^The API key 'ann' cannot be sent: it must be printable ASCII"):
        make_keyring(settings(ann(key=Secret(secret))))


def test_a_key_without_a_value_opens_nothing() -> None:
    ring = make_keyring(settings(ann(key=None)))
    assert ring is not None
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
