"""`antwort codex`: what makes Codex CLI use a server, shown or added to its configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from antwort.cli.say import complain, tell
from antwort.cli.subjects import Misused
from antwort.config.problems import CannotStart
from antwort.config.repeating import printable

if TYPE_CHECKING:
    from antwort.api.responses import Model
    from antwort.cli.codex_config import Block
    from antwort.doctor.answers import Answer

USUAL_URL = "http://127.0.0.1:8080"
URL_VARIABLE = "ANTWORT_URL"
KEY_VARIABLE = "ANTWORT_API_KEY"
_MOST_NAMED = 8
_OK = 200
_UNAUTHORIZED = 401
TIMEOUT_SECONDS = 5.0
"""Seconds for the whole list of models, however slowly it comes."""
_IDLE_MS = 600_000
"""Codex's own patience is five minutes, and ours with a backend as well: the server is to be the one who says so."""


def run(given: Mapping[str, object]) -> int:
    try:
        block = _block(_base(given), _model(given))
        return _write(block) if given.get("write") else _show(block)
    except Misused as misuse:
        complain(misuse)
        return 2
    except CannotStart as fault:
        return complain(fault)


def _base(given: Mapping[str, object]) -> str:
    if url := given.get("url"):
        try:
            return base_of(str(url), "--url")
        except CannotStart as exc:
            raise Misused(str(exc)) from None
    return base_of(os.environ.get(URL_VARIABLE) or USUAL_URL, URL_VARIABLE)


def _model(given: Mapping[str, object]) -> str:
    model = str(given.get("model") or "")
    if not model.isprintable():
        raise Misused("--model must be a name that can be printed.")
    return model


def base_of(url: str, what: str) -> str:
    """What Codex is told. Raises `CannotStart` for what is no address; `what` is where it was said."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    is_plain = parts.username is None and parts.password is None and not parts.query and not parts.fragment
    is_one_word = all(character.isprintable() and not character.isspace() for character in url)
    is_usable = parts.scheme in ("http", "https") and parts.hostname and port != 0
    if not (is_usable and is_plain and is_one_word):
        raise CannotStart(f"{what} must be the address of a server, such as {USUAL_URL}.")
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
    lengths: Mapping[str, int] = MappingProxyType({})
    """Of the contexts of those models of which it tells."""

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
        top={"model": chosen, "model_provider": PROVIDER, **_window(server, chosen)},
        provider={"base_url": base, "wire_api": "responses", **(key if needs_key else {})},
        usual={"request_max_retries": 2, "stream_max_retries": 1, "stream_idle_timeout_ms": _IDLE_MS},
        unwanted={} if needs_key else key,
    )


def _window(server: Server, model: str) -> Mapping[str, int]:
    """Of a model that it does not know, Codex takes the context to be very long, and sums up too late."""
    length = server.lengths.get(model)
    return {} if length is None else {"model_context_window": length}


def _key() -> str:
    return os.environ.get(KEY_VARIABLE, "").strip()


def _only_model(server: Server, base: str) -> str:
    if server.models is None and server.needs_key:
        how = f"does not take the key in {KEY_VARIABLE}" if _key() else f"wants a key: set {KEY_VARIABLE}"
        raise CannotStart(f"The server at {base} {how}, or say --model MODEL.")
    if server.models is None:
        raise CannotStart(
            f"{server.trouble[0].upper()}{server.trouble[1:]} at {base}: start one (`antwort serve`), "
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


def look(base: str, key: str, timeout_seconds: float = TIMEOUT_SECONDS) -> Server:
    """Ask for the models without a key, and with one where it is wanted."""
    answer = _asked(base, "", timeout_seconds)
    if answer.status != _UNAUTHORIZED:
        models = _listed(answer)
        return _told(models, False if models is not None else None, answer.status)
    answer = _asked(base, key, timeout_seconds) if key else answer
    return _told(_listed(answer), needs_key=True, status=answer.status)


def _told(models: Sequence[Model] | None, needs_key: bool | None, status: int) -> Server:
    lengths = {model.id: model.context_length for model in models or () if isinstance(model.context_length, int)}
    return Server(None if models is None else tuple(model.id for model in models), needs_key, status, lengths)


def _asked(base: str, key: str, timeout_seconds: float) -> Answer:
    """For the models. No proxy is asked, and no redirect followed with the key."""
    import asyncio

    from antwort.config.secrets import Secret
    from antwort.doctor.answers import Answer
    from antwort.doctor.asking import Access, Line, below

    async def ask() -> Answer:
        try:
            line = Line(base, Access(key=Secret(key) if key else None), timeout_seconds)
        except ValueError:  # no host can have such a name, or no header such a key
            return Answer()
        try:
            return await line.get(below(base, "/models"))
        finally:
            await line.close()

    return asyncio.run(ask())


def _listed(answer: Answer) -> Sequence[Model] | None:
    """Those whose names can be shown; None where there is no list."""
    from antwort.errors import AntwortError
    from antwort.providers.models import parse_models

    try:
        return parse_models(answer.body) if answer.status == _OK else None
    except AntwortError:
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
    """Returns where what was there is kept."""
    from antwort.config.replacing import copy_of, replace_file

    kept = None if before is None else _free(file)
    replace_file(file, after, mode=0o600, check=lambda _: None if kept is None else copy_of(file, kept))
    return kept


def _free(file: Path) -> Path:
    """A name beside the file that nothing has."""
    number = 0
    while (path := file.with_name(f"{file.name}.bak{number or ''}")).exists():
        number += 1
    return path


def _note(line: str) -> None:
    """Beside what is printed, which is to be the block alone."""
    print(printable(line), file=sys.stderr, flush=True)
