"""Rules between settings that their types cannot express, and what a server needs before it can start."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec.structs import replace

from antwort.api.decoding import convert
from antwort.config.conversion import below
from antwort.config.files import expanded
from antwort.config.problems import BadSettings, CannotStart, Problem, missing_space
from antwort.config.secrets import Secret, is_token
from antwort.config.settings import HostedPolicy, McpServerSettings, MetricsSettings, ServerSettings, Settings
from antwort.crypto import SHORTEST_SECRET
from antwort.errors import InvalidField
from antwort.tools.base import HOUSE_LABEL, LABEL, LABEL_IN_WORDS

SHORTEST_KEY = 16
LOCAL = "local"
"""The name, among the backends, of the model that antwort runs by itself."""
EVERYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104 - where it listens is the operator's word
_MAX_PORT = 65535
_OUR_HEADERS = ("connection", "content-length", "content-type", "host", "transfer-encoding")
_LOCAL_FILES = ("model", "template", "adapter")


def check(settings: Settings) -> Settings:
    """Return the settings, each of its own type: a list becomes a tuple, and a path its text.

    Raises `BadSettings`. Settings that were read from a file have been checked already.
    """
    try:
        typed: Settings = convert(_plain(settings), Settings, "")
    except InvalidField as fault:
        text = fault.message.removeprefix(f"Invalid '{fault.param}': ").rstrip(".")
        raise BadSettings([Problem(fault.param or "settings", f"is not right: {text}")]) from fault
    if problems := [*_untyped(settings, typed, "")] or [*find_problems(typed)]:
        raise BadSettings(problems)
    return tidied(typed)


def _plain(value: object) -> object:
    match value:
        case msgspec.Struct():
            values = ((name, getattr(value, name)) for name in value.__struct_fields__)
            return {name: _plain(each) for name, each in values if each is not msgspec.UNSET}
        case list() | tuple():
            return [_plain(each) for each in value]
        case Mapping():
            return {key: _plain(each) for key, each in value.items()}
        case os.PathLike():
            return os.fspath(value)
        case _:
            return value


def _untyped(given: object, typed: object, path: str) -> Iterator[Problem]:
    """Yield dicts in place of structs: a misspelt key in one would be ignored."""
    if isinstance(typed, tuple) and isinstance(given, list | tuple):
        for at, (one, other) in enumerate(zip(given, typed, strict=True)):
            yield from _untyped(one, other, f"{path}[{at}]")
    elif isinstance(typed, msgspec.Struct) and not isinstance(given, type(typed)):
        yield Problem(path, f"must be {type(typed).__name__}, not {type(given).__name__}")
    elif isinstance(typed, msgspec.Struct):
        for name in typed.__struct_fields__:
            yield from _untyped(getattr(given, name), getattr(typed, name), f"{path}.{name}".removeprefix("."))


def tidied(settings: Settings) -> Settings:
    """Return settings without a problem with addresses and paths in the form in which they are used."""

    def path(given: str | None) -> str | None:
        return None if given is None else expanded(given)

    backends = [
        replace(backend, url=checked_backend(backend.url), ca_file=path(backend.ca_file))
        for backend in settings.backends
    ]
    servers = [
        replace(server, url=server.url and server.url.strip(), folder=path(server.folder))
        for server in settings.mcp_servers
    ]
    return replace(
        settings,
        backends=tuple(backends),
        local=replace(settings.local, **{field: path(getattr(settings.local, field)) for field in _LOCAL_FILES}),
        data=path(settings.data),
        tools=replace(settings.tools, modules=tuple(expanded(name) for name in settings.tools.modules)),
        mcp_servers=tuple(servers),
    )


def check_ready(settings: Settings) -> None:
    """Raise `CannotStart` if anybody could come in, or data has no place. Backends are checked when they are made."""
    if keys_required(settings) and not settings.auth.keys:
        if settings.auth.required == "always":
            raise CannotStart(
                "API keys are required and there are none: make one with `antwort key` and put it under auth.keys."
            )
        host = settings.server.host if not is_loopback(settings.server.host) else peers_host(settings)
        raise CannotStart(
            f"Listening on {host}, which other machines may reach, needs API keys: make one with "
            "`antwort key` and put it under auth.keys, or allow everybody with --set auth.required=never."
        )
    if not settings.memory and not (settings.database is not None and settings.encryption.keys):
        settings.data_folder()


# ---- what settings mean together ----


def runs_a_model(settings: Settings) -> bool:
    """Return whether antwort runs a model by itself: the named one, or the demo model where no backend is named."""
    return settings.local.model is not None or not (settings.backends or settings.scripted)


def keys_required(settings: Settings) -> bool:
    """Return whether a request must bring an API key."""
    if settings.auth.required == "auto":
        return bool(settings.auth.keys) or not only_near(settings)
    return settings.auth.required == "always"


def peers_host(settings: Settings) -> str | None:
    """Return where other processes reach this one; None if there are none."""
    return settings.server.peer_host if settings.database is not None else None


def only_near(settings: Settings) -> bool:
    """Return whether only this machine can reach the server, by its port for clients or by that for processes."""
    peers = peers_host(settings)
    return is_loopback(settings.server.host) and (peers is None or is_loopback(peers))


def of_worker(settings: Settings, index: int, workers: int) -> Settings:
    """Return the settings of one of several workers, whose ports are its own."""
    server, metrics, url = settings.server, settings.metrics, settings.server.peer_url
    if url:
        parts = urlsplit(url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        url = f"{parts.scheme}://{host}:{(parts.port or 0) + index}"
    own = replace(server, workers=workers, peer_port=server.peer_port and server.peer_port + index, peer_url=url)
    return replace(settings, server=own, metrics=replace(metrics, port=metrics.port and metrics.port + index))


def peers_given(server: ServerSettings) -> list[str]:
    """Return which settings about other processes differ from their defaults."""
    usual = ServerSettings()
    return [name for name in ("peer_host", "peer_port", "peer_url") if getattr(server, name) != getattr(usual, name)]


# ---- addresses ----


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server that listens there."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def checked_backend(address: str) -> str:
    """Return the address, if a backend can be there. Raises `CannotStart`, which repeats nothing that may be secret."""
    if problem := address_problem(address):
        raise CannotStart(f"The backend's address {problem}.")
    address = address.strip()
    return address if "?" in address else address.rstrip("/")


def address_problem(address: str) -> str | None:
    """Return why no backend can be at this address, in words that repeat nothing that may be secret."""
    address = address.strip()
    if "@" in address:  # anywhere: a password may hold the characters that end a host
        return "must not carry a name or password: give its key as the API key, and write an @ that means itself as %40"
    if any(character.isspace() or not character.isprintable() for character in address):
        return "must not have white space in it"
    parts = _http_url(address)
    if parts is not None and parts.path.rstrip("/").endswith("/chat/completions"):
        return "must be the base address: leave out /chat/completions at its end"
    if parts is not None:
        return None
    shown = f"{without_query(address)!r} " if address.isascii() and "%40" not in address else ""
    return f"{shown}is not a URL like http://localhost:8000/v1"


def without_query(address: str) -> str:
    """Return what may be shown of an address: some backends take their key in the query."""
    return address.partition("#")[0].partition("?")[0]


def _http_url(text: str) -> SplitResult | None:
    try:
        parts = urlsplit(text)
        return parts if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 else None
    except ValueError:
        return None


# ---- problems ----


def find_problems(settings: Settings) -> Iterator[Problem]:
    """Yield everything that is wrong; no message holds a secret."""
    for find in _CHECKS:
        yield from find(settings)


def _repeated(values: Iterable[str], path: str, other: str) -> Iterator[Problem]:
    seen: set[str] = set()
    for at, value in enumerate(values):
        if value in seen:
            yield Problem(path.format(at), f"is the same as that of {other}: {value!r}")
        seen.add(value)


def _header_problems(
    names: Iterable[str], path: str, is_ours: Callable[[str], bool], other_login: tuple[str, str] | None
) -> Iterator[Problem]:
    """`other_login` excludes an `Authorization` header: what it is, and the hint."""
    for name in names:
        if not is_token(name):
            yield Problem(path, "has a name that cannot be that of a header", missing_space(name))
        elif name.lower() in _OUR_HEADERS or is_ours(name.lower()):
            yield Problem(path, f"has {name!r}, which is not to be changed")
        elif name.lower() == "authorization" and other_login is not None:
            yield Problem(path, f"has 'Authorization' beside {other_login[0]}", other_login[1])


def _server(settings: Settings) -> Iterator[Problem]:
    server, metrics = settings.server, settings.metrics
    hosts = {"server.host": server.host, "server.peer_host": server.peer_host, "metrics.host": metrics.host}
    for path, host in hosts.items():
        if host and ("/" in host or "[" in host or host.count(":") == 1):
            yield Problem(path, f"must be an address alone, such as 0.0.0.0 or ::1, not {host!r}")
    if metrics.host != MetricsSettings().host and metrics.port is None:
        yield Problem("metrics.host", "means nothing without metrics.port")
    for at, name in enumerate(server.hosts):
        if name != "*" and not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", name):
            yield Problem(f"server.hosts[{at}]", f"must be a name alone, such as ai.example.com, or `*`, not {name!r}")


def _database(settings: Settings) -> Iterator[Problem]:
    """The address may hold a password, which the driver would take for a host's name if it is not escaped: nothing of
    it is repeated.
    """
    if settings.database is None:
        return
    address = settings.database.reveal()
    scheme, is_url, rest = address.partition("://")
    like = "write one such as postgresql://antwort:secret@db.example.com/antwort"
    escape = "what of user or password is no letter or digit is written as % and two hex digits, such as %40 for @"
    authority = re.split("[/?]", rest, maxsplit=1)[0]
    users, _, places = authority.rpartition("@")
    if not is_url:
        if not re.match(r"\s*\w+\s*=", scheme):  # the driver's other form: `host=… dbname=…`
            yield Problem("database", "is no address of a database", like)
    elif scheme not in ("postgresql", "postgres"):
        yield Problem("database", "must begin with postgresql://: antwort keeps responses in no other kind", like)
    elif not address.isprintable() or " " in rest:
        yield Problem("database", "has a space, or what cannot be seen, in it", escape)
    elif "@" in users or re.search("%(?![0-9A-Fa-f]{2})", authority):
        yield Problem("database", "cannot be read", escape)
    elif not all(re.fullmatch(r"(?:\[[^\]]*\]|[^:\[\]]*)(?::\d*)?", place) for place in places.split(",")):
        yield Problem("database", "has a port that is no number", escape)


def _processes(settings: Settings) -> Iterator[Problem]:
    server, background = settings.server, settings.background
    if server.workers > 1 and settings.database is None:
        yield Problem(
            "server.workers",
            "above 1 needs a database that they share: the data folder, and memory, are for one process",
            "set `database` to one of PostgreSQL, such as postgresql://antwort@localhost/antwort",
        )
    elif server.workers > 1 and runs_a_model(settings):
        fix = "run it as a server of its own, such as llama-server, and name that as a backend"
        yield Problem("server.workers", "above 1 would load the model once for each of them", fix)
    if settings.database is None:
        for name in peers_given(server):
            yield Problem(f"server.{name}", "means nothing without `database`: there are no other processes")
    elif server.peer_url is not None and not _is_base_url(server.peer_url):
        yield Problem("server.peer_url", "must be like http://10.0.0.7:9000, with a port and nothing behind it")
    elif server.peer_url is not None and not server.peer_port:
        yield Problem("server.peer_url", "needs server.peer_port: a free port is another one each time")
    elif server.peer_url is None and server.peer_host in EVERYWHERE:
        what = f"is every address, and {server.peer_host} is none that others could be told"
        yield Problem("server.peer_host", what, "name one, or set server.peer_url")
    yield from _ports(settings)
    if settings.memory and settings.database is not None:
        yield Problem("memory", "and `database` exclude each other: responses are kept in one place", "remove one")
    if background.on_disconnect == "continue" and not background.enabled:
        what = "is `continue`, and background.enabled false: what goes on without its client is made in the background"
        yield Problem("background.on_disconnect", what, "change one of them")
    if background.enabled and not background.at_once and settings.database is None:
        what = "is 0: without a `database` there is no other process to make background responses"
        yield Problem("background.at_once", what, "refuse them with background.enabled: false")


def _is_base_url(url: str) -> bool:
    """Return whether the path of a request can follow the address."""
    parts = _http_url(url)
    if parts is None or not parts.port or not url.isprintable():
        return False
    return parts.path in ("", "/") and not (parts.query or parts.fragment or "@" in parts.netloc)


def _ports(settings: Settings) -> Iterator[Problem]:
    """Clients share one port; for metrics and for other processes, each of several workers takes the next port."""
    metrics, server = settings.metrics, settings.server
    used: list[tuple[str, str, int, int]] = []
    if server.port:
        used.append(("server.port", server.host, server.port, 1))
    if metrics.enabled and metrics.port:
        used.append(("metrics.port", metrics.host, metrics.port, server.workers))
    if settings.database is not None and server.peer_port:
        used.append(("server.peer_port", server.peer_host, server.peer_port, server.workers))
    for at, (path, host, port, count) in enumerate(used):
        if port + count - 1 > _MAX_PORT:
            yield Problem(path, f"leaves no {count} ports, one for each worker", "choose a lower one")
        for other, other_host, other_port, other_count in used[:at]:
            is_same_place = host == other_host or not EVERYWHERE.isdisjoint((host, other_host))
            if is_same_place and port < other_port + other_count and other_port < port + count:
                is_own = (path, other) == ("metrics.port", "server.port")
                what = "is the server's own" if is_own else f"is taken by {other}"
                yield Problem(path, what, "choose another, or leave it out to share it" if is_own else "choose another")


def _paths(settings: Settings) -> Iterator[Problem]:
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


def _local(settings: Settings) -> Iterator[Problem]:
    for at, backend in enumerate(settings.backends):
        if backend.name == LOCAL and runs_a_model(settings):
            yield Problem(f"backends[{at}].name", "is that of the model that antwort runs by itself", "choose another")
    if settings.local.name is not None and not settings.local.name.strip():
        yield Problem("local.name", "must not be empty", "leave it out to have it named after the file")


def _backends(settings: Settings) -> Iterator[Problem]:
    for at, backend in enumerate(settings.backends):
        path, calling = f"backends[{at}]", backend.tool_calling
        if problem := address_problem(backend.url):
            yield Problem(f"{path}.url", problem)
        if backend.kind == "responses" and calling == "constrained":
            what = "is for backends of kind chat: one of kind responses calls by itself"
            yield Problem(f"{path}.tool_calling", what, "leave it out")
        if backend.capabilities.grammar == "pattern" and backend.kind == "chat" and calling != "native":
            what = f"cannot be `pattern` where tool_calling is `{calling}`: schemas are written anew then"
            yield Problem(f"{path}.capabilities.grammar", what, "write `tool_calling: native`, or `plain_pattern`")
        other_login = None if backend.api_key is None else ("an api_key", "leave one of them out")
        yield from _header_problems(backend.headers, f"{path}.headers", lambda _: False, other_login)
    yield from _repeated((backend.name for backend in settings.backends), "backends[{}].name", "another backend")


def _routing(settings: Settings) -> Iterator[Problem]:
    routing = settings.routing
    backends = {backend.name for backend in settings.backends} | ({LOCAL} if runs_a_model(settings) else set())
    known = f"there are {', '.join(sorted(backends))}" if backends else "there are none"
    for at, route in enumerate(routing.routes):
        if not route.to:
            yield Problem(f"routing.routes[{at}].to", "names nobody who could answer")
        for place, target in enumerate(route.to):
            if target.backend not in backends:
                path = f"routing.routes[{at}].to[{place}].backend"
                yield Problem(path, f"names {target.backend!r}, which is no backend", known)
    yield from _repeated((route.model for route in routing.routes), "routing.routes[{}].model", "another route")
    for alias in routing.aliases:
        chain = [alias]
        while (name := routing.aliases.get(chain[-1])) is not None and name not in chain:
            chain.append(name)
        if name == alias == min(chain):  # each circle once
            yield Problem("routing.aliases", f"go round in a circle: {' → '.join((*chain, alias))}")


def _auth(settings: Settings) -> Iterator[Problem]:
    auth, seen = settings.auth, dict[str, str]()
    if auth.required == "never" and auth.keys:
        what = "mean nothing where auth.required is `never`: nobody is asked for one"
        yield Problem("auth.keys", what, "leave the keys out, or leave auth.required out")
    yield from _repeated((key.name for key in auth.keys), "auth.keys[{}].name", "another key")
    for at, key in enumerate(auth.keys):
        path = f"auth.keys[{at}]"
        if (key.key is None) == (key.sha256 is None):
            yield Problem(path, "needs either key or sha256", "`antwort key` makes a key and its sha256")
            continue
        yield from _key_problems(key.key, f"{path}.key")
        digest = hashlib.sha256(key.key.reveal().encode()).hexdigest() if key.key else (key.sha256 or "").lower()
        if digest in seen:
            yield Problem(path, f"is the same key as {seen[digest]!r}")
        seen.setdefault(digest, key.name)
    yield from _key_problems(settings.metrics.key, "metrics.key")
    for at, secret in enumerate(settings.encryption.keys):
        if len(secret.reveal()) < SHORTEST_SECRET:
            what = f"is shorter than {SHORTEST_SECRET} characters"
            yield Problem(f"encryption.keys[{at}]", what, "make one with `openssl rand -hex 32`")


def _key_problems(key: Secret | None, path: str) -> Iterator[Problem]:
    """A client has to send the key as one word of a header."""
    fix = "make one with `antwort key`"
    if key is not None and len(key.reveal()) < SHORTEST_KEY:
        yield Problem(path, f"is shorter than {SHORTEST_KEY} characters", fix)
    elif key is not None and not re.fullmatch("[!-~]+", key.reveal()):
        yield Problem(path, "cannot be sent: it must be printable ASCII without spaces", fix)


_ORIGIN = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://([A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>0|[1-9][0-9]{0,4}))?"
)


def _cors(settings: Settings) -> Iterator[Problem]:
    cors = settings.cors
    if cors.credentials and "*" in (*cors.origins, *cors.headers):
        what = "cannot be on where cors.origins or cors.headers is `*`"
        yield Problem("cors.credentials", what, "name them one by one")
    for at, origin in enumerate(cors.origins):  # each must be as browsers send it
        path, found = f"cors.origins[{at}]", _ORIGIN.fullmatch(origin)
        default_port = {"http": 80, "https": 443}.get(found["scheme"].lower()) if found else None
        if origin in ("*", "null"):
            continue
        if "*" in origin:
            what = f"has a `*` within a name, which stands for nothing: {origin!r}"
            yield Problem(path, what, "name each origin, or write `*` for all")
        elif not origin.isascii():
            yield Problem(path, f"is not ASCII, as browsers send it: {origin!r}", "write the name in its xn-- form")
        elif found is None:
            fix = "write a scheme, a name and at most a port"
            yield Problem(path, f"must be like https://app.example.com, not {origin!r}", fix)
        elif found["port"] and int(found["port"]) in (0, default_port):
            yield Problem(path, f"has a port that browsers do not send: {origin!r}", "leave the port out")
    for at, name in enumerate(cors.headers):
        if not is_token(name):
            yield Problem(f"cors.headers[{at}]", "cannot be the name of a header")


_OUR_TOOLS = ("function", "custom", "namespace", "mcp")


def _hosted(settings: Settings) -> Iterator[Problem]:
    for kind, policy in settings.tools.hosted.items():
        path = below("tools.hosted", kind)
        if not kind:
            yield Problem(path, "is no type of tools", "name one, or write `*` for all")
        if kind in _OUR_TOOLS:
            yield Problem(path, "is a type of tools that every request may have", "leave it out")
        elif "*" in kind[:-1]:
            what = "has a `*` before its end, which stands for nothing"
            yield Problem(path, what, "write `*` at the end only")
        elif len(kind) > 1 and kind.endswith("*") and (ours := [t for t in _OUR_TOOLS if t.startswith(kind[:-1])]):
            what = f"means {ours[0]!r} too, a type of tools that every request may have"
            yield Problem(path, what, "write more of the type, or `*` for all that nobody runs")
        if policy.do == "run" and policy.toolset is None:
            yield Problem(f"{path}.toolset", "is missing: `do: run` needs the label of a toolset")
        if policy.do == "run" and policy.tools == ():
            yield Problem(f"{path}.tools", "names no tool", "leave it out for all of the toolset's")
        if policy.do != "run" and (policy.toolset is not None or policy.tools is not None):
            field = "tools" if policy.toolset is None else "toolset"
            yield Problem(f"{path}.{field}", "means nothing without `do: run`", "leave it out, or write `do: run`")


def check_toolsets(hosted: Mapping[str, HostedPolicy], toolsets: Mapping[str, Sequence[str] | None]) -> None:
    """Raise `CannotStart` if a policy names a toolset, or a tool of one, that is not there.

    `toolsets` are all labels, each with the names of its tools; None where they are not known yet.
    """
    for kind, policy in hosted.items():
        if policy.do != "run" or policy.toolset is None:
            continue
        path = below("tools.hosted", kind)
        if policy.toolset not in toolsets:
            known = f"there {'are' if len(toolsets) > 1 else 'is'} {', '.join(sorted(toolsets))}"
            hint = known if toolsets else "there is none at all: tools.modules names what toolsets are taken from"
            what = f"names {policy.toolset!r}, and there is no toolset of that name"
            raise CannotStart(str(Problem(f"{path}.toolset", what, hint)))
        tools = toolsets[policy.toolset]
        for name in policy.tools or ():
            if tools is not None and name not in tools:
                what = f"names {name!r}, and the toolset {policy.toolset!r} has no tool of that name"
                raise CannotStart(str(Problem(f"{path}.tools", what, f"it has {', '.join(tools)}")))


def mcp_server_problems(settings: Settings) -> Iterator[Problem]:
    labels: set[str] = set()
    for at, server in enumerate(settings.mcp_servers):
        path = f"mcp_servers[{at}]"
        if server.label in labels:
            yield Problem(f"{path}.label", f"is the same as that of another MCP server: {server.label!r}")
        if not re.fullmatch(LABEL, server.label):
            yield Problem(f"{path}.label", f"must be {LABEL_IN_WORDS}")
        if server.label == HOUSE_LABEL:
            yield Problem(f"{path}.label", "is our own: calls that are refused show under it", "choose another")
        labels.add(server.label)
        yield from _mcp_connection(server, path)
        yield from _mcp_login(server, path)


def _mcp_connection(server: McpServerSettings, path: str) -> Iterator[Problem]:
    if (server.url is None) == (not server.command):
        how = "has both a url and a command" if server.command else "needs either a url or a command"
        yield Problem(path, how, "write one of them")
        return
    if server.url is not None:
        yield from _mcp_address(server.url, f"{path}.url")
    elif not server.command[0].strip():
        yield Problem(f"{path}.command", "begins with no program")
    if server.command and server.transport != "http":
        yield Problem(f"{path}.transport", "is for servers with a url: a command speaks on its own input and output")
    meaningless, needed = (("headers", "token", "oauth"), "url") if server.command else (("env", "folder"), "command")
    for field in meaningless:
        if getattr(server, field):
            yield Problem(f"{path}.{field}", f"means nothing without a {needed}", "leave it out")
    if any(not name or "=" in name or "\0" in name for name in server.env):
        yield Problem(f"{path}.env", "has a name that cannot be that of a variable")


def _mcp_login(server: McpServerSettings, path: str) -> Iterator[Problem]:
    is_passed_on = server.authorization == "request"
    given = {
        "token": server.token is not None,
        "oauth": server.oauth is not None,
        "authorization: request": is_passed_on,
    }
    ways = [name for name, is_given in given.items() if is_given]
    if len(ways) > 1:
        yield Problem(path, f"has {' and '.join(ways)}: it can be logged in to in one way only", "leave one of them")
    if is_passed_on and server.command:
        yield Problem(f"{path}.authorization", "means nothing without a url", "leave it out")
    if is_passed_on and server.standing is not None:
        what = "cannot be where authorization is `request`: a request that does not name it brings nothing"
        yield Problem(f"{path}.standing", what, "leave one of them out")
    if server.oauth is not None and server.oauth.token_url is not None:
        yield from _mcp_address(server.oauth.token_url, f"{path}.oauth.token_url")
    other_login = ("another way to log in", "leave one of them") if ways else None
    yield from _header_problems(server.headers, f"{path}.headers", lambda name: name.startswith("mcp-"), other_login)


def _mcp_address(url: str, path: str) -> Iterator[Problem]:
    """No message repeats what may be a secret."""
    url = url.strip()
    if "@" in url.partition("?")[0]:
        yield Problem(path, "must not carry a name or password", "give them as a token or in headers")
    elif _http_url(url) is None or not url.isprintable() or " " in url:
        shown = f"{without_query(url)!r} " if url.isascii() and url.isprintable() else ""
        yield Problem(path, f"{shown}is not a URL like https://tools.example.com/mcp")


def _others(settings: Settings) -> Iterator[Problem]:
    if settings.mcp.force_approval and settings.mcp.require_approval == "never":
        what = "means nothing where mcp.require_approval is `never`"
        yield Problem("mcp.force_approval", what, "write `require_approval: always`, or leave it out")
    if settings.loop.strict and settings.loop.requires_action == "event":
        what = "cannot be `event` where loop.strict is on: the standard has no such event"
        yield Problem("loop.requires_action", what, "write `status` or `completed`")


_CHECKS = (
    *(_server, _database, _processes, _paths, _local, _backends, _routing, _auth),
    *(_cors, _hosted, mcp_server_problems, _others),
)
