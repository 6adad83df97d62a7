"""`antwort codex`: what makes Codex CLI use a server, shown or added to its configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from antwort.cli.say import complain, tell
from antwort.config.problems import CannotStart

if TYPE_CHECKING:
    from antwort.cli.codex_config import Block

USUAL_URL = "http://127.0.0.1:8080"
URL_VARIABLE = "ANTWORT_URL"
KEY_VARIABLE = "ANTWORT_API_KEY"
_MOST_NAMED = 8
_UNAUTHORIZED = 401
_PATIENCE = 5.0
_LARGEST = 8 * 2**20
_IDLE_MS = 600_000
"""Codex's own patience is five minutes, and ours with a backend as well: the server is to be the one who says so."""


def run(given: Mapping[str, object]) -> int:
    try:
        base = base_of(str(given.get("url") or os.environ.get(URL_VARIABLE) or USUAL_URL))
        block = _block(base, str(given.get("model") or ""))
        return _write(block) if given.get("write") else _show(block)
    except CannotStart as fault:
        return complain(fault)


def base_of(url: str) -> str:
    """What Codex is told. Raises `CannotStart` for what is no address."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    is_plain = parts.username is None and parts.password is None and not parts.query and not parts.fragment
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain or port == 0:
        raise CannotStart(f"--url must be the address of a server, such as {USUAL_URL}.")
    path = parts.path.rstrip("/").removesuffix("/responses")
    return f"{parts.scheme}://{parts.netloc}{path if path.endswith('/v1') else f'{path}/v1'}"


# ---- what Codex is to be told ----


class Server(NamedTuple):
    """What a look at the server tells."""

    models: tuple[str, ...] | None
    """None where the list cannot be had."""
    needs_key: bool | None
    """None where that is not known."""
    status: int
    """Of its answer; 0: there is none."""

    @property
    def trouble(self) -> str:
        """Why there is no list, as a clause that goes on with `at ...`."""
        return (
            f"a server answers with HTTP {self.status} where the models should be"
            if self.status
            else "no server answers"
        )


def _block(base: str, model: str) -> Block:
    from antwort.cli.codex_config import PROVIDER, Block

    server = look(base, _key())
    chosen = model or _only_model(server, base)
    _warn(server, base, chosen)
    needs_key = bool(_key()) if server.needs_key is None else server.needs_key
    key = {"env_key": KEY_VARIABLE}
    return Block(
        top={"model": chosen, "model_provider": PROVIDER},
        provider={"base_url": base, "wire_api": "responses", **(key if needs_key else {})},
        usual={"request_max_retries": 2, "stream_max_retries": 1, "stream_idle_timeout_ms": _IDLE_MS},
        unwanted={} if needs_key else key,
    )


def _key() -> str:
    return os.environ.get(KEY_VARIABLE, "").strip()


def _only_model(server: Server, base: str) -> str:
    if server.models is None and server.needs_key:
        how = f"does not take the key in {KEY_VARIABLE}" if _key() else f"wants a key: set {KEY_VARIABLE}"
        raise CannotStart(f"The server at {base} {how}, or say --model MODEL.")
    if server.models is None:
        raise CannotStart(
            f"{server.trouble.capitalize()} at {base}: start one (`antwort serve`), "
            "say where it is (--url URL), or say --model MODEL."
        )
    if len(server.models) != 1:
        listed = f"several models: {_named(server.models)}" if server.models else "no models"
        raise CannotStart(f"The server at {base} lists {listed}; say which one Codex is to use (--model MODEL).")
    return server.models[0]


def _warn(server: Server, base: str, chosen: str) -> None:
    if server.models is None and not server.needs_key:
        _note(f"What is said here is not checked: {server.trouble} at {base}.")
    elif server.models is not None and chosen not in server.models:
        _note(f"The server does not list {chosen!r}; it lists {_named(server.models) or 'no models'}.")


def _named(models: tuple[str, ...]) -> str:
    more = len(models) - _MOST_NAMED
    return ", ".join(models[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def look(base: str, key: str) -> Server:
    """Ask for the models without a key, and with one where it is wanted."""
    status, models = _models(base, "")
    if status != _UNAUTHORIZED:
        return Server(models, False if models is not None else None, status)
    status, models = _models(base, key) if key else (status, None)
    return Server(models, needs_key=True, status=status)


def _models(base: str, key: str) -> tuple[int, tuple[str, ...] | None]:
    """The status, 0 where nothing answers, and the list. No proxy is asked and no redirect followed with the key."""
    import http.client

    parts = urlsplit(base)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_PATIENCE)
    try:
        connection.request("GET", f"{parts.path}/models", headers={"Authorization": f"Bearer {key}"} if key else {})
        reply = connection.getresponse()
        return reply.status, _listed(reply.read(_LARGEST)) if reply.status == http.client.OK else None
    except (OSError, http.client.HTTPException, ValueError):
        return 0, None
    finally:
        connection.close()


def _listed(body: bytes) -> tuple[str, ...] | None:
    import json

    try:
        return tuple(str(model["id"]) for model in json.loads(body)["data"])
    except (ValueError, KeyError, TypeError):
        return None


# ---- telling it ----


def config_file() -> Path:
    """Where Codex looks. Raises `CannotStart` for a user without a home."""
    if folder := os.environ.get("CODEX_HOME"):
        return Path(folder) / "config.toml"
    try:
        return Path.home() / ".codex" / "config.toml"
    except RuntimeError as exc:
        raise CannotStart("There is no home folder to look for Codex's in: set CODEX_HOME.") from exc


def _show(block: Block) -> int:
    _note(f"For {config_file()}; `antwort codex --write` adds it there.")
    return tell(str(block))


def _write(block: Block) -> int:
    from antwort.cli.codex_config import Unsure, changed

    file = config_file().resolve()
    try:
        before = file.read_bytes().decode() if file.exists() else None
        after = changed(before or "", block)
        if after == before:
            return tell(f"{file} says so already.")
        kept = _replace(file, before, after)
    except Unsure as exc:
        raise CannotStart(f"{file} {exc}; it is left as it is. Without --write, what belongs in it is shown.") from exc
    except UnicodeDecodeError as exc:
        raise CannotStart(f"{file} is not a text in UTF-8; it is left as it is.") from exc
    except OSError as exc:
        raise CannotStart(f"{file} cannot be written: {exc.strerror}.") from exc
    was = f" What was there is in {kept.name}." if kept else ""
    more = f"Codex takes the server's key from {KEY_VARIABLE}." if "env_key" in block.provider else ""
    return tell(f"Written to {file}.{was}", *filter(None, [more]))


def _replace(file: Path, before: str | None, after: str) -> Path | None:
    """In one step, so that nobody finds half a file. Returns where what was there is kept."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    kept = None
    mode = 0o600
    if before is not None:
        mode = file.stat().st_mode & 0o777
        kept = _free(file)
        _create(kept, before, mode)
    new = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        _create(new, after, mode)
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)
    return kept


def _free(file: Path) -> Path:
    """A name beside the file that nothing has."""
    number = 0
    while (path := file.with_name(f"{file.name}.bak{number or ''}")).exists():
        number += 1
    return path


def _create(path: Path, text: str, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as out:
        out.write(text.encode())


def _note(line: str) -> None:
    """Beside what is printed, which is to be the block alone."""
    print(line, file=sys.stderr, flush=True)
