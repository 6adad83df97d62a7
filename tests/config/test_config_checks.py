"""What holds between settings, and what a server needs before it may start."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal, cast

import pytest

from antwort.config import BadSettings, CannotStart, Secret, Settings, check, check_ready, keys_required
from antwort.config.checks import find_problems, runs_a_model
from antwort.config.settings import (
    AuthSettings,
    BackendSettings,
    KeySettings,
    LocalSettings,
    LoopSettings,
    MetricsSettings,
    RouteSettings,
    RouteTarget,
    RoutingSettings,
    ServerSettings,
    ToolSettings,
)
from config_kit import Operator

KEY = "sk-0123456789abcdef"
HASH = hashlib.sha256(KEY.encode()).hexdigest()
BACKENDS = "backends: [{name: a, url: http://a/v1}, {name: b, url: http://b/v1}]\n"
NO_STAR = "cannot be on where cors.origins or cors.headers is `*` (antwort.yaml:1); name them one by one."
NO_KEY = "needs either key or sha256 (antwort.yaml:1); `antwort key` makes a key and its sha256."


def not_like(origin: str) -> str:
    return (
        f"must be like https://app.example.com, not {origin!r} (antwort.yaml:1); "
        "write a scheme, a name and at most a port."
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "backends: [{name: a, url: http://a}, {name: a, url: http://b}]",
            "backends[1].name is the same as that of another backend: 'a' (antwort.yaml:1).",
        ),
        (
            f"{BACKENDS}routing:\n  routes: [{{model: m, to: [{{backend: c}}]}}]",
            "routing.routes[0].to[0].backend names 'c', which is no backend (antwort.yaml:3); there are a, b.",
        ),
        (
            "routing:\n  routes:\n    - {model: m, to: []}",
            "routing.routes[0].to names nobody who could answer (antwort.yaml:3).",
        ),
        (
            f"{BACKENDS}routing: {{routes: [{{model: m, to: [{{backend: a}}]}}, {{model: m, to: [{{backend: b}}]}}]}}",
            "routing.routes[1].model is the same as that of another route: 'm' (antwort.yaml:2).",
        ),
        (
            "routing:\n  aliases: {z: b, a: b, b: c, c: a}",
            "routing.aliases go round in a circle: a → b → c → a (antwort.yaml:2).",
        ),
        ("routing: {aliases: {a: a}}", "routing.aliases go round in a circle: a → a (antwort.yaml:1)."),
        (
            f"auth: {{keys: [{{name: a, key: {KEY}}}, {{name: a, key: {KEY}x}}]}}",
            "auth.keys[1].name is the same as that of another key: 'a' (antwort.yaml:1).",
        ),
        (
            f"auth: {{keys: [{{name: a, key: {KEY}}}, {{name: b, sha256: {HASH.upper()}}}]}}",
            "auth.keys[1] is the same key as 'a' (antwort.yaml:1).",
        ),
        ("auth: {keys: [{name: a}]}", f"auth.keys[0] {NO_KEY}"),
        (
            f"auth:\n  keys:\n    - {{name: b, key: {KEY}}}\n    - {{name: a}}",
            f"auth.keys[1] {NO_KEY.replace(':1', ':4')}",
        ),
        (f"auth: {{keys: [{{name: a, key: {KEY}, sha256: {HASH}}}]}}", f"auth.keys[0] {NO_KEY}"),
        (
            "auth: {keys: [{name: a, key: hush}]}",
            "auth.keys[0].key is shorter than 16 characters (antwort.yaml:1); make one with `antwort key`.",
        ),
        (
            "metrics: {key: hush}",
            "metrics.key is shorter than 16 characters (antwort.yaml:1); make one with `antwort key`.",
        ),
        (
            "loop: {strict: true, requires_action: event}",
            (
                "loop.requires_action cannot be `event` where loop.strict is on: the standard has no such event "
                "(antwort.yaml:1); write `status` or `completed`."
            ),
        ),
        (
            "cors: {origins: ['*'], credentials: true}",
            f"cors.credentials {NO_STAR}",
        ),
        (
            "auth: {required: never, keys: [{name: a, key: KEY}]}".replace("KEY", KEY),
            (
                "auth.keys mean nothing where auth.required is `never`: nobody is asked for one (antwort.yaml:1); "
                "leave the keys out, or leave auth.required out."
            ),
        ),
        (
            "auth: {keys: [{name: a, key: 'a hushed key with spaces'}]}",
            (
                "auth.keys[0].key cannot be sent: it must be printable ASCII without spaces (antwort.yaml:1); "
                "make one with `antwort key`."
            ),
        ),
        (
            "metrics: {key: 'a hushed key with spaces'}",
            (
                "metrics.key cannot be sent: it must be printable ASCII without spaces (antwort.yaml:1); "
                "make one with `antwort key`."
            ),
        ),
        (
            "server: {hosts: ['https://a.example']}",
            (
                "server.hosts[0] must be a name alone, such as ai.example.com, or `*`, not 'https://a.example' "
                "(antwort.yaml:1)."
            ),
        ),
        ("cors: {origins: ['https://a.example/']}", f"cors.origins[0] {not_like('https://a.example/')}"),
        ("cors: {origins: ['https://a.example/x']}", f"cors.origins[0] {not_like('https://a.example/x')}"),
        ("cors: {origins: ['https://a.example?']}", f"cors.origins[0] {not_like('https://a.example?')}"),
        ("cors: {origins: ['https://a .example']}", f"cors.origins[0] {not_like('https://a .example')}"),
        ("cors: {origins: ['https://a@b.example']}", f"cors.origins[0] {not_like('https://a@b.example')}"),
        ("cors: {origins: ['https://a.example:']}", f"cors.origins[0] {not_like('https://a.example:')}"),
        ("cors: {origins: ['https://a.example:08']}", f"cors.origins[0] {not_like('https://a.example:08')}"),
        ("cors: {origins: ['app.example.com']}", f"cors.origins[0] {not_like('app.example.com')}"),
        (
            "cors: {origins: ['https://*.example.com']}",
            (
                "cors.origins[0] has a `*` within a name, which stands for nothing: 'https://*.example.com' "
                "(antwort.yaml:1); name each origin, or write `*` for all."
            ),
        ),
        (
            "cors: {origins: ['https://a.example:443']}",
            (
                "cors.origins[0] has a port that browsers do not send: 'https://a.example:443' (antwort.yaml:1); "
                "leave the port out."
            ),
        ),
        (
            "cors: {origins: ['HTTP://a.example:80']}",
            (
                "cors.origins[0] has a port that browsers do not send: 'HTTP://a.example:80' (antwort.yaml:1); "
                "leave the port out."
            ),
        ),
        (
            "cors: {origins: ['https://b\u00fccher.example']}",
            (
                "cors.origins[0] is not ASCII, as browsers send it: 'https://b\u00fccher.example' (antwort.yaml:1); "
                "write the name in its xn-- form."
            ),
        ),
        (
            "metrics: {port: 8080}",
            "metrics.port is the server's own (antwort.yaml:1); choose another, or leave it out to share it.",
        ),
        (
            "backends: [{name: a, url: http://a/v1/chat/completions}]",
            "backends[0].url must be the base address: leave out /chat/completions at its end (antwort.yaml:1).",
        ),
        (
            "backends: [{name: a, url: 'http://a/ v1'}]",
            "backends[0].url must not have white space in it (antwort.yaml:1).",
        ),
        ("cors: {headers: ['x y']}", "cors.headers[0] cannot be the name of a header (antwort.yaml:1)."),
        (
            "backends: [{name: a, url: http://a, kind: responses, tool_calling: constrained}]",
            (
                "backends[0].tool_calling is for backends of kind chat: one of kind responses calls by itself"
                " (antwort.yaml:1); leave it out."
            ),
        ),
        (
            "backends: [{name: a, url: http://a, capabilities: {grammar: pattern}}]",
            (
                "backends[0].capabilities.grammar cannot be `pattern` where tool_calling is `auto`: schemas are written"
                " anew then (antwort.yaml:1); write `tool_calling: native`, or `plain_pattern`."
            ),
        ),
        (
            "backends: [{name: a, url: http://a, headers: {'x y': hush}}]",
            "backends[0].headers has a name that cannot be that of a header (antwort.yaml:1).",
        ),
        (
            "backends: [{name: a, url: http://a, headers: {Content-Length: '5'}}]",
            "backends[0].headers has 'Content-Length', which is not to be changed (antwort.yaml:1).",
        ),
        (
            "backends: [{name: a, url: http://a, api_key: hush, headers: {authorization: hush}}]",
            "backends[0].headers has 'Authorization' beside an api_key (antwort.yaml:1); leave one of them out.",
        ),
        ("metrics: {host: '::1'}", "metrics.host means nothing without metrics.port (antwort.yaml:1)."),
        (
            "server: {host: '127.0.0.1:80'}",
            "server.host must be an address alone, such as 0.0.0.0 or ::1, not '127.0.0.1:80' (antwort.yaml:1).",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_one_sentence(text: str, said: str, operator: Operator) -> None:
    assert operator.is_told(text) == [said]
    assert "hush" not in said


@pytest.mark.parametrize(
    "address",
    ["localhost:8000", "ftp://host/v1", "http://", "http://host:99999/v1", "http://host:0/v1", "http://[::1", "x"],
)
def test_a_backend_that_is_no_http_address_is_refused(address: str, operator: Operator) -> None:
    [said] = operator.is_told(backend=[address])
    assert said.endswith("is not a URL like http://localhost:8000/v1.")


@pytest.mark.parametrize(
    "address",
    [
        "http://user:hush@host/v1",
        "http://user:hush@host:99999/v1",
        "http://user:hush@host:0/v1",
        "http://user:hush@[::1/v1",
        "http://user:hush@/v1",
        "http://hush@host/v1",
        "ftp://user:hush@host/v1",
        "user:hush@host",
        "//user:hush@host",
        "http://user:1/hush@host/v1",
        "http://user:1?hush@host/v1",
        "http://user:1#hush@host/v1",
        "http://user:hush%40host/v1",
        "http://user:hush\uff20host/v1",
        "ftp://host/v1?key=hush",
        "host/v1#hush",
    ],
)
def test_a_password_in_the_address_is_refused_without_repeating_it(address: str, operator: Operator) -> None:
    for said in (operator.is_told(backend=[address]), operator.is_told(f'backends: [{{name: a, url: "{address}"}}]')):
        assert len(said) == 1
        assert "hush" not in said[0]


def test_a_slash_at_the_end_of_a_query_stays(operator: Operator) -> None:
    assert operator.gets(backend=["http://host/v1?key=a/"]).backends[0].url == "http://host/v1?key=a/"


@pytest.mark.parametrize(
    "origin",
    [
        *(
            "https://a.example",
            "http://localhost:3000",
            "http://a.example:443",
            "http://[::1]:8000",
            "tauri://localhost",
        ),
        *("chrome-extension://abcdef", "https://xn--bcher-kva.example", "https://App.Example.com", "null", "*"),
    ],
)
def test_origins_that_a_browser_can_send_are_taken(origin: str, operator: Operator) -> None:
    assert operator.gets(f"cors: {{origins: ['{origin}']}}").cors.origins == (origin,)


def test_a_key_that_no_client_can_send_is_found_in_settings_that_a_program_makes() -> None:
    for value in ("sk-0123456789 abcdef", "sk-0123456789-\u00e4bcdef", "sk-0123456789abcdef\n"):
        with pytest.raises(
            BadSettings, match=r"^auth\.keys\[0\]\.key cannot be sent: .*; make one with `antwort key`\.$"
        ):
            check(Settings(auth=AuthSettings(keys=(KeySettings(name="a", key=Secret(value)),))))


def test_settings_that_a_program_makes_can_be_checked_too() -> None:
    check(Settings(memory=True, data="/here"))
    with pytest.raises(BadSettings, match=r"^server\.host must be an address alone"):
        check(Settings(server=ServerSettings(host="http://here")))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"backends": ({"name": "x", "url": "http://x"},)},
            r"backends\[0\] must be BackendSettings, not dict",
        ),
        ({"backends": ("http://x",)}, r"backends\[0\] is not right: expected `object`, got `str`"),
        ({"backends": ({"name": "x"},)}, r"backends\[0\]\.url is not right: missing required field"),
        ({"tools": ToolSettings(modules=cast("Any", "shop"))}, r"tools\.modules is not right: .*, got `str`"),
        ({"loop": LoopSettings(max_turns=0)}, r"loop\.max_turns is not right: expected `int` >= 1"),
        ({"loop": {"max_turns": 3}}, r"loop must be LoopSettings, not dict"),
        ({"metrics": MetricsSettings(key=cast("Any", "a-secret"))}, r"metrics\.key is not right: .*, got `str`"),
        ({"server": None}, r"server is not right: expected `object`, got `null`"),
    ],
    ids=str,
)
def test_settings_of_a_wrong_type_are_one_sentence_that_names_them(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadSettings, match=f"^{said}\\.$"):
        check(Settings(**wrong))


def test_a_program_may_write_a_list_for_a_tuple_and_a_path_for_its_text(tmp_path: Path) -> None:
    one = BackendSettings(name="x", url="http://x", api_key=Secret("sk-0123456789abcdef"))
    given: dict[str, Any] = {"backends": [one], "data": tmp_path}
    assert check(Settings(**given)) == Settings(backends=(one,), data=str(tmp_path))


# ---- before it starts ----


def settings(
    host: str = "127.0.0.1", required: Literal["auto", "always", "never"] = "auto", *, keys: bool = False
) -> Settings:
    given = (KeySettings(name="a", key=Secret(KEY)),) if keys else ()
    auth = AuthSettings(required=required, keys=given)
    return Settings(scripted=True, server=ServerSettings(host=host), auth=auth)


@pytest.mark.proves("MISTAKE-27")
@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost", "LOCALHOST"])
def test_on_loopback_keys_are_required_only_when_there_are_some(host: str) -> None:
    assert not keys_required(settings(host))
    assert keys_required(settings(host, keys=True))
    check_ready(settings(host))


@pytest.mark.proves("MISTAKE-27")
@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "", "10.0.0.1", "192.168.1.1", "example.com", "fe80::1", "128.0.0.1"]
)
def test_on_any_other_address_keys_are_required(host: str) -> None:
    assert keys_required(settings(host))
    check_ready(settings(host, keys=True))
    with pytest.raises(CannotStart, match=r"needs API keys: make one with `antwort key`.*auth\.required=never\.$"):
        check_ready(settings(host))


def test_keys_can_be_required_always_or_never() -> None:
    assert keys_required(settings(required="always"))
    assert not keys_required(settings("0.0.0.0", "never", keys=True))
    check_ready(settings("0.0.0.0", "never"))
    with pytest.raises(CannotStart, match=r"^API keys are required and there are none: "):
        check_ready(settings(required="always"))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, True),
        ({"scripted": True}, False),
        ({"backends": (BackendSettings(name="a", url="http://a"),)}, False),
        ({"local": LocalSettings(model="m.gguf")}, True),
        ({"local": LocalSettings(model="m.gguf"), "scripted": True}, True),
        ({"local": LocalSettings(model="m.gguf"), "backends": (BackendSettings(name="a", url="http://a"),)}, True),
        ({"local": LocalSettings(slots=1), "backends": (BackendSettings(name="a", url="http://a"),)}, False),
    ],
)
def test_a_model_runs_here_where_it_is_named_or_where_nobody_else_answers(
    fields: dict[str, Any], expected: bool
) -> None:
    assert runs_a_model(Settings(**fields)) is expected


def test_the_model_that_runs_here_can_be_routed_to_and_keeps_its_name_among_the_backends() -> None:
    route = RoutingSettings(routes=(RouteSettings(model="best", to=(RouteTarget(backend="local"),)),))
    backend = BackendSettings(name="local", url="http://a")
    assert not [*find_problems(Settings(routing=route))]
    assert [each.path for each in find_problems(Settings(routing=route, scripted=True))] == [
        "routing.routes[0].to[0].backend"
    ]
    assert not [*find_problems(Settings(backends=(backend,)))]
    both = Settings(backends=(backend,), local=LocalSettings(model="m.gguf"))
    assert [each.path for each in find_problems(both)] == ["backends[0].name"]


def test_a_model_has_a_name() -> None:
    assert [each.path for each in find_problems(Settings(local=LocalSettings(name=" ")))] == ["local.name"]


@pytest.mark.parametrize("more", ["tool_calling: native", "kind: responses"])
def test_a_backend_that_is_asked_as_it_is_may_decode_by_any_pattern(operator: Operator, more: str) -> None:
    settings = operator.gets(f"backends: [{{name: a, url: 'http://a', {more}, capabilities: {{grammar: pattern}}}}]")
    assert settings.backends[0].capabilities.grammar == "pattern"
