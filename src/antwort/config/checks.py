"""What the types of the settings cannot say: rules between settings, and what a server needs before it may start."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from antwort.api.decoding import convert
from antwort.config.addresses import address_problem, checked_backend, is_loopback
from antwort.config.databases import about_database
from antwort.config.hosted import about_hosted
from antwort.config.mcp_checks import about_servers, about_strangers
from antwort.config.names import is_token
from antwort.config.paths import expanded
from antwort.config.problems import BadSettings, CannotStart, Problem
from antwort.config.repeating import slip
from antwort.config.secrets import Secret
from antwort.config.settings import (
    AuthSettings,
    BackendSettings,
    CorsSettings,
    EncryptionSettings,
    KeySettings,
    MetricsSettings,
    RoutingSettings,
    Settings,
)
from antwort.config.sharing import about_sharing, only_near, peers_host
from antwort.errors import InvalidField
from antwort.vault import SHORTEST_SECRET

SHORTEST_KEY = 16
_HOST = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_ORIGIN = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://([A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>0|[1-9][0-9]{0,4}))?"
)
_DEFAULT_PORTS = {"http": 80, "https": 443}
_MAKE_ONE = "make one with `antwort key`"
_MAKE_RANDOM = "make one with `openssl rand -hex 32`"
_ONE_OF_THEM = "leave the keys out, or leave auth.required out"
_LOCAL_FILES = ("model", "template", "adapter")
_OURS = ("connection", "content-length", "content-type", "host", "transfer-encoding")
LOCAL = "local"
"""What the model that antwort runs by itself is called among the backends."""


def check(settings: Settings) -> Settings:
    """The settings, each of the type and form it should have: a list for a tuple will do, and a path for its text.

    Raises `BadSettings`. Settings that were read from a file have been checked already.
    """
    try:
        typed: Settings = convert(_plain(settings), Settings, "")
    except InvalidField as fault:
        said = fault.message.removeprefix(f"Invalid '{fault.param}': ").rstrip(".")
        raise BadSettings([Problem(fault.param or "settings", f"is not right: {said}")]) from fault
    if problems := [*_unmade(settings, typed, "")] or [*find_problems(typed)]:
        raise BadSettings(problems)
    return tidied(typed)


def _unmade(given: object, typed: object, path: str) -> Iterator[Problem]:
    """A dict in the place of a struct: what is misspelt in it would be ignored."""
    if isinstance(typed, tuple) and isinstance(given, list | tuple):
        for at, (one, other) in enumerate(zip(given, typed, strict=True)):
            yield from _unmade(one, other, f"{path}[{at}]")
    elif isinstance(typed, msgspec.Struct) and not isinstance(given, type(typed)):
        yield Problem(path, f"must be {type(typed).__name__}, not {type(given).__name__}")
    elif isinstance(typed, msgspec.Struct):
        for name in typed.__struct_fields__:
            yield from _unmade(getattr(given, name), getattr(typed, name), f"{path}.{name}".removeprefix("."))


def _plain(value: object) -> object:
    match value:
        case msgspec.Struct():
            fields = ((name, getattr(value, name)) for name in value.__struct_fields__)
            return {name: _plain(each) for name, each in fields if each is not msgspec.UNSET}
        case list() | tuple():
            return [_plain(each) for each in value]
        case Mapping():
            return {key: _plain(each) for key, each in value.items()}
        case os.PathLike():
            return os.fspath(value)
        case _:
            return value


def check_ready(settings: Settings) -> None:
    """Raises `CannotStart` where anybody could come in, or data has no place to be kept in. Whether somebody is there
    to answer shows when the backends are made.
    """
    if keys_required(settings) and not settings.auth.keys:
        raise CannotStart(_no_keys(settings))
    if not settings.memory and not (settings.database is not None and settings.encryption.keys):
        settings.data_folder()


def runs_a_model(settings: Settings) -> bool:
    """Whether antwort runs a model by itself: the one that is named, or the demo model where nobody else answers."""
    return settings.local.model is not None or not (settings.backends or settings.scripted)


def keys_required(settings: Settings) -> bool:
    """Whether a request must bring an API key."""
    match settings.auth.required:
        case "auto":
            return bool(settings.auth.keys) or not only_near(settings)
        case required:
            return required == "always"


def _no_keys(settings: Settings) -> str:
    if settings.auth.required == "always":
        return "API keys are required and there are none: make one with `antwort key` and put it under auth.keys."
    host = settings.server.host if not is_loopback(settings.server.host) else peers_host(settings)
    return (
        f"Listening on {host}, which other machines may reach, needs API keys: make one with "
        "`antwort key` and put it under auth.keys, or allow everybody with --set auth.required=never."
    )


def find_problems(settings: Settings) -> Iterator[Problem]:
    """All that is wrong, with no word of a secret in it."""
    yield from _about_server(settings)
    yield from about_database(settings.database)
    yield from about_sharing(settings, runs_a_model=runs_a_model(settings))
    yield from _about_paths(settings)
    yield from _about_local(settings)
    for at, backend in enumerate(settings.backends):
        yield from _about_backend(backend, f"backends[{at}]")
    yield from _repeated((backend.name for backend in settings.backends), "backends[{}].name", "another backend")
    yield from _about_routing(settings.routing, _names(settings))
    yield from _about_auth(settings.auth)
    yield from _about_encryption(settings.encryption)
    yield from _about_value(settings.metrics.key, "metrics.key")
    yield from _about_cors(settings.cors)
    yield from about_hosted(settings.tools.hosted)
    yield from about_servers(settings.mcp_servers)
    yield from about_strangers(settings.mcp)
    if settings.loop.strict and settings.loop.requires_action == "event":
        yield Problem(
            "loop.requires_action",
            "cannot be `event` where loop.strict is on: the standard has no such event",
            "write `status` or `completed`",
        )


def _names(settings: Settings) -> set[str]:
    own = {LOCAL} if runs_a_model(settings) else set()
    return own | {backend.name for backend in settings.backends}


def _about_local(settings: Settings) -> Iterator[Problem]:
    for at, backend in enumerate(settings.backends):
        if backend.name == LOCAL and runs_a_model(settings):
            yield Problem(f"backends[{at}].name", "is that of the model that antwort runs by itself", "choose another")
    if settings.local.name is not None and not settings.local.name.strip():
        yield Problem("local.name", "must not be empty", "leave it out to have it named after the file")


def _about_server(settings: Settings) -> Iterator[Problem]:
    for path, host in (
        ("server.host", settings.server.host),
        ("server.peer_host", settings.server.peer_host),
        ("metrics.host", settings.metrics.host),
    ):
        if host and ("/" in host or "[" in host or host.count(":") == 1):
            yield Problem(path, f"must be an address alone, such as 0.0.0.0 or ::1, not {host!r}")
    if settings.metrics.host != MetricsSettings().host and settings.metrics.port is None:
        yield Problem("metrics.host", "means nothing without metrics.port")
    for at, name in enumerate(settings.server.hosts):
        if name != "*" and not _HOST.fullmatch(name):
            yield Problem(f"server.hosts[{at}]", f"must be a name alone, such as ai.example.com, or `*`, not {name!r}")


def _about_paths(settings: Settings) -> Iterator[Problem]:
    for path, name in (
        ("data", settings.data),
        *((f"tools.modules[{at}]", name) for at, name in enumerate(settings.tools.modules)),
        *((f"backends[{at}].ca_file", backend.ca_file) for at, backend in enumerate(settings.backends)),
        *((f"local.{field}", getattr(settings.local, field)) for field in _LOCAL_FILES),
        *((f"mcp_servers[{at}].folder", server.folder) for at, server in enumerate(settings.mcp_servers)),
    ):
        try:
            expanded(name or "")
        except ValueError as exc:
            yield Problem(path, str(exc))


def tidied(settings: Settings) -> Settings:
    """Settings without a problem, as they are used: addresses and paths in their plain form."""
    return replace(
        settings,
        backends=tuple(
            replace(backend, url=checked_backend(backend.url), ca_file=_expanded(backend.ca_file))
            for backend in settings.backends
        ),
        local=replace(settings.local, **{field: _expanded(getattr(settings.local, field)) for field in _LOCAL_FILES}),
        data=_expanded(settings.data),
        tools=replace(settings.tools, modules=tuple(expanded(name) for name in settings.tools.modules)),
        mcp_servers=tuple(
            replace(server, url=server.url and server.url.strip(), folder=_expanded(server.folder))
            for server in settings.mcp_servers
        ),
    )


def _expanded(path: str | None) -> str | None:
    return None if path is None else expanded(path)


def _repeated(values: Iterable[str], path: str, other: str) -> Iterator[Problem]:
    seen: set[str] = set()
    for at, value in enumerate(values):
        if value in seen:
            yield Problem(path.format(at), f"is the same as that of {other}: {value!r}")
        seen.add(value)


# ---- backends ----


def _about_backend(backend: BackendSettings, path: str) -> Iterator[Problem]:
    if problem := address_problem(backend.url):
        yield Problem(f"{path}.url", problem)
    if backend.kind == "responses" and backend.tool_calling == "constrained":
        yield Problem(
            f"{path}.tool_calling",
            "is for backends of kind chat: one of kind responses calls by itself",
            "leave it out",
        )
    if backend.capabilities.grammar == "pattern" and backend.kind == "chat" and backend.tool_calling != "native":
        yield Problem(
            f"{path}.capabilities.grammar",
            f"cannot be `pattern` where tool_calling is `{backend.tool_calling}`: schemas are written anew then",
            "write `tool_calling: native`, or `plain_pattern`",
        )
    for name in backend.headers:
        where = f"{path}.headers"
        if not is_token(name):
            yield Problem(where, "has a name that cannot be that of a header", slip(name))
        elif name.lower() in _OURS:
            yield Problem(where, f"has {name!r}, which is not to be changed")
        elif name.lower() == "authorization" and backend.api_key is not None:
            yield Problem(where, "has 'Authorization' beside an api_key", "leave one of them out")


def _about_routing(routing: RoutingSettings, backends: set[str]) -> Iterator[Problem]:
    for at, route in enumerate(routing.routes):
        path = f"routing.routes[{at}].to"
        if not route.to:
            yield Problem(path, "names nobody who could answer")
        for place, target in enumerate(route.to):
            if target.backend not in backends:
                known = f"there are {', '.join(sorted(backends))}" if backends else "there are none"
                yield Problem(f"{path}[{place}].backend", f"names {target.backend!r}, which is no backend", known)
    yield from _repeated((route.model for route in routing.routes), "routing.routes[{}].model", "another route")
    for alias in routing.aliases:
        if (circle := _circle(alias, routing)) and alias == min(circle):  # each circle once
            yield Problem("routing.aliases", f"go round in a circle: {' → '.join((*circle, circle[0]))}")


def _circle(alias: str, routing: RoutingSettings) -> list[str]:
    """The aliases that lead from this one back to it."""
    way = [alias]
    while (name := routing.aliases.get(way[-1])) is not None and name not in way:
        way.append(name)
    return way if name == alias else []


# ---- keys and browsers ----


def _about_auth(auth: AuthSettings) -> Iterator[Problem]:
    if auth.required == "never" and auth.keys:
        yield Problem("auth.keys", "mean nothing where auth.required is `never`: nobody is asked for one", _ONE_OF_THEM)
    yield from _about_keys(auth.keys)


def _about_keys(keys: tuple[KeySettings, ...]) -> Iterator[Problem]:
    yield from _repeated((key.name for key in keys), "auth.keys[{}].name", "another key")
    seen: dict[str, str] = {}
    for at, key in enumerate(keys):
        path = f"auth.keys[{at}]"
        if (key.key is None) == (key.sha256 is None):
            yield Problem(path, "needs either key or sha256", "`antwort key` makes a key and its sha256")
            continue
        yield from _about_value(key.key, f"{path}.key")
        value = key.sha256.lower() if key.key is None and key.sha256 else _hash(key.key)
        if value in seen:
            yield Problem(path, f"is the same key as {seen[value]!r}")
        seen.setdefault(value, key.name)


def _hash(key: Secret | None) -> str:
    return hashlib.sha256(key.reveal().encode()).hexdigest() if key else ""


def _about_value(key: Secret | None, path: str) -> Iterator[Problem]:
    """A client has to send it as one word of a header."""
    if key is None:
        return
    if len(key.reveal()) < SHORTEST_KEY:
        yield Problem(path, f"is shorter than {SHORTEST_KEY} characters", _MAKE_ONE)
    elif not re.fullmatch("[!-~]+", key.reveal()):
        yield Problem(path, "cannot be sent: it must be printable ASCII without spaces", _MAKE_ONE)


def _about_encryption(encryption: EncryptionSettings) -> Iterator[Problem]:
    for at, key in enumerate(encryption.keys):
        if len(key.reveal()) < SHORTEST_SECRET:
            yield Problem(f"encryption.keys[{at}]", f"is shorter than {SHORTEST_SECRET} characters", _MAKE_RANDOM)


def _about_cors(cors: CorsSettings) -> Iterator[Problem]:
    if cors.credentials and "*" in (*cors.origins, *cors.headers):
        yield Problem(
            "cors.credentials", "cannot be on where cors.origins or cors.headers is `*`", "name them one by one"
        )
    for at, origin in enumerate(cors.origins):
        if origin not in ("*", "null") and (problem := _origin_problem(origin)):
            yield Problem(f"cors.origins[{at}]", *problem)
    for at, name in enumerate(cors.headers):
        if not is_token(name):
            yield Problem(f"cors.headers[{at}]", "cannot be the name of a header")


def _origin_problem(origin: str) -> tuple[str, str] | None:
    """Why no browser would ever send this origin, and what to write instead."""
    if "*" in origin:
        return (
            f"has a `*` within a name, which stands for nothing: {origin!r}",
            "name each origin, or write `*` for all",
        )
    if not origin.isascii():
        return f"is not ASCII, as browsers send it: {origin!r}", "write the name in its xn-- form"
    found = _ORIGIN.fullmatch(origin)
    if found is None:
        return f"must be like https://app.example.com, not {origin!r}", "write a scheme, a name and at most a port"
    if found["port"] and int(found["port"]) in (0, _DEFAULT_PORTS.get(found["scheme"].lower())):
        return f"has a port that browsers do not send: {origin!r}", "leave the port out"
    return None
