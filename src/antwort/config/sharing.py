"""Rules between settings of processes that work side by side: workers, and how they reach each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from msgspec.structs import replace

from antwort.config.addresses import is_loopback
from antwort.config.problems import Problem
from antwort.config.settings import ServerSettings, Settings

EVERYWHERE = frozenset({"0.0.0.0", "::"})  # noqa: S104 - where it listens is the operator's word
_HIGHEST_PORT = 65535
_ALONE = "set `database` to one of PostgreSQL, such as postgresql://antwort@localhost/antwort"
_OWN_MODEL = "run it as a server of its own, such as llama-server, and name that as a backend"


def peers_host(settings: Settings) -> str | None:
    """Where other processes reach this one; None where there are none."""
    return settings.server.peer_host if settings.database is not None else None


def only_near(settings: Settings) -> bool:
    """Whether only this machine can reach the server, by the front or by the way of its peers."""
    peers = peers_host(settings)
    return is_loopback(settings.server.host) and (peers is None or is_loopback(peers))


def of_worker(settings: Settings, index: int, workers: int) -> Settings:
    """The settings of one of several workers, whose ports are its own."""
    server, metrics = settings.server, settings.metrics
    url = server.peer_url and _next_place(server.peer_url, index)
    own = replace(server, workers=workers, peer_port=server.peer_port and server.peer_port + index, peer_url=url)
    return replace(settings, server=own, metrics=replace(metrics, port=metrics.port and metrics.port + index))


def _next_place(url: str, index: int) -> str:
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{(parts.port or 0) + index}"


def about_sharing(settings: Settings, *, runs_a_model: bool) -> Iterator[Problem]:
    if settings.server.workers > 1:
        yield from _about_workers(settings, runs_a_model=runs_a_model)
    yield from _about_peers(settings)
    yield from _about_ports(settings)
    if settings.memory and settings.database is not None:
        yield Problem("memory", "and `database` exclude each other: responses are kept in one place", "remove one")
    background = settings.background
    if background.on_disconnect == "continue" and not background.enabled:
        yield Problem(
            "background.on_disconnect",
            "is `continue`, and background.enabled false: what goes on without its client is made in the background",
            "change one of them",
        )
    if background.enabled and not background.at_once and settings.database is None:
        yield Problem(
            "background.at_once",
            "is 0: without a `database` there is no other process to make background responses",
            "refuse them with background.enabled: false",
        )


def _about_workers(settings: Settings, *, runs_a_model: bool) -> Iterator[Problem]:
    if settings.database is None:
        yield Problem(
            "server.workers",
            "above 1 needs a database that they share: the data folder, and memory, are for one process",
            _ALONE,
        )
    elif runs_a_model:
        yield Problem("server.workers", "above 1 would load the model once for each of them", _OWN_MODEL)


# ---- peers ----


def _about_peers(settings: Settings) -> Iterator[Problem]:
    server = settings.server
    if settings.database is None:
        for name in peers_given(server):
            yield Problem(f"server.{name}", "means nothing without `database`: there are no other processes")
        return
    if server.peer_url is not None:
        yield from _about_peer_url(server, server.peer_url)
    elif server.peer_host in EVERYWHERE:
        yield Problem(
            "server.peer_host",
            f"is every address, and {server.peer_host} is none that others could be told",
            "name one, or set server.peer_url",
        )


def peers_given(server: ServerSettings) -> list[str]:
    """Which of the settings about peers are not left alone."""
    alone = ServerSettings()
    return [name for name in ("peer_host", "peer_port", "peer_url") if getattr(server, name) != getattr(alone, name)]


def _about_peer_url(server: ServerSettings, url: str) -> Iterator[Problem]:
    if not _is_place(url):
        yield Problem("server.peer_url", "must be like http://10.0.0.7:9000, with a port and nothing behind it")
    elif not server.peer_port:
        yield Problem("server.peer_url", "needs server.peer_port: a free port is another one each time")


def _is_place(url: str) -> bool:
    """Whether it is an address that a request's path can be written behind."""
    try:
        parts = urlsplit(url)
        has_port = bool(parts.port)
    except ValueError:
        return False
    is_bare = parts.path in ("", "/") and not (parts.query or parts.fragment or "@" in parts.netloc)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and has_port and is_bare and url.isprintable()


# ---- ports ----


class _Ports(NamedTuple):
    """Those that one setting takes."""

    path: str
    host: str
    ports: range


def _about_ports(settings: Settings) -> Iterator[Problem]:
    taken: list[_Ports] = []
    for one in _ports(settings):
        if one.ports[-1] > _HIGHEST_PORT:
            yield Problem(one.path, f"leaves no {len(one.ports)} ports, one for each worker", "choose a lower one")
        for other in taken:
            if _overlap(one, other):
                yield Problem(one.path, *_TAKEN.get((one.path, other.path), (f"is taken by {other.path}", _OTHER)))
        taken.append(one)


def _ports(settings: Settings) -> Iterator[_Ports]:
    """The front is shared; for its metrics and for its peers, each of several workers takes the next port."""
    metrics, server = settings.metrics, settings.server
    if server.port:
        yield _Ports("server.port", server.host, range(server.port, server.port + 1))
    if metrics.enabled and metrics.port:
        yield _Ports("metrics.port", metrics.host, range(metrics.port, metrics.port + server.workers))
    if settings.database is not None and server.peer_port:
        yield _Ports("server.peer_port", server.peer_host, range(server.peer_port, server.peer_port + server.workers))


_OTHER = "choose another"
_TAKEN = {("metrics.port", "server.port"): ("is the server's own", f"{_OTHER}, or leave it out to share it")}


def _overlap(one: _Ports, other: _Ports) -> bool:
    is_same_place = one.host == other.host or bool({one.host, other.host} & EVERYWHERE)
    return is_same_place and bool(set(one.ports) & set(other.ports))
