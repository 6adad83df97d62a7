"""`antwort codex`: a profile of its own for Codex CLI, with an entry in Codex's model catalogue."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from antwort.cli.say import complain, tell
from antwort.cli.subjects import Misused
from antwort.config.problems import CannotStart, printable

if TYPE_CHECKING:
    from tomlkit import TOMLDocument
    from tomlkit.container import Container

    from antwort.api.responses import Model
    from antwort.doctor.answers import BackendAnswer

PROFILE = "antwort"
PROFILE_FILE = f"{PROFILE}.config.toml"
CATALOGUE_FILE = f"{PROFILE}.models.json"
USUAL_URL = "http://127.0.0.1:8080"
URL_VARIABLE = "ANTWORT_URL"
KEY_VARIABLE = "ANTWORT_API_KEY"
TIMEOUT_SECONDS = 5.0
"""For the whole list of models, however slowly it arrives."""
MIN_CONTEXT_TOKENS, GOOD_CONTEXT_TOKENS = 16_000, 64_000
_MAX_NAMED_MODELS = 8
_MAX_CATALOGUE_MODELS = 100
_OK = 200
_UNAUTHORIZED = 401
_IDLE_MS = 600_000
"""Codex and antwort both wait five minutes for a backend; Codex waits longer, so that antwort reports the error."""
_PROVIDER_DEFAULTS = {"request_max_retries": 2, "stream_max_retries": 1, "stream_idle_timeout_ms": _IDLE_MS}
"""Written for a new provider only: in an existing profile they are the user's."""
_KNOWN_MODEL = re.compile(r"gpt-\d")
"""Names for which Codex has metadata of its own, tools such as a free-form `apply_patch` included."""
_TOP_KEYS = ("model", "model_provider", "model_context_window")
"""What earlier versions wrote at the top of Codex's config.toml."""
_HEADER = f"Written by `antwort codex`. Use it with: codex --profile {PROFILE}"
_INSTRUCTIONS = """\
You are a coding agent. You work in the user's terminal, in the folder that the environment context names, and you have
tools to run commands and to edit files there.

- Keep going until the task is done. Use a tool whenever you need to know or change something; never guess what a file
  holds.
- Before you change code, read it and what calls it. Follow the style of the project and the instructions of any
  AGENTS.md that applies to the file. Make the smallest change that solves the problem at its cause.
- Search with `rg` where it exists. To edit a file, use `apply_patch`: as a tool if you have it, else as a command in
  `exec_command`. Do not print whole large files.
- There may be changes in the folder that are not yours. Never revert them, and never run commands that destroy work,
  such as `git reset --hard`, unless the user asks for it.
- Do not commit or create branches unless the user asks for it.
- After a change, run the tests or the program where you can, and say so if you could not.
- If a command fails, read its error and try another way. Do not repeat the same call.
- Answer briefly, in plain sentences. Name files with their paths. At the end, say what you changed and how it was
  checked.
"""
"""The catalogue needs a system prompt for each model. Codex's own takes 3,500 tokens more, which local models lack."""


def run(given: Mapping[str, object]) -> int:
    try:
        if given.get("restore"):
            return _restore()
        if given.get("write"):
            _note("--write is not needed any more: `antwort codex` writes a profile, and leaves config.toml alone.")
        base = _base(given)
        server = look(base, _key())
        model = _chosen(str(given.get("model") or ""), server, base)
        _check_context(model, server)
        needs_key = bool(_key()) if server.needs_key is None else server.needs_key
        return _show(base, model, needs_key) if given.get("print") else _write(base, model, needs_key, server)
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


def base_of(url: str, what: str) -> str:
    """Return the base URL for Codex. Raises `CannotStart` for an invalid address; `what` names where it came from."""
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


def _key() -> str:
    return os.environ.get(KEY_VARIABLE, "").strip()


# ---- the server ----


class Server(NamedTuple):
    """What the server's list of models says."""

    models: tuple[str, ...] | None
    """None if there is no list."""
    needs_key: bool | None
    """None if that is not known."""
    status: int
    """Status of the answer; 0 if there was none."""
    context_lengths: Mapping[str, int] = MappingProxyType({})
    """Context lengths of the models for which the server reports one."""

    @property
    def problem(self) -> str:
        """Why there is no list, as a clause that continues with `at ...`."""
        return f"a server answers with HTTP {self.status} instead of models" if self.status else "no server answers"


def look(base: str, key: str, timeout_seconds: float = TIMEOUT_SECONDS) -> Server:
    """List the models, first without a key, then with it if the server requires one."""
    answer = _get_models(base, "", timeout_seconds)
    if answer.status != _UNAUTHORIZED:
        models = _parsed(answer)
        return _server(models, False if models is not None else None, answer.status)
    answer = _get_models(base, key, timeout_seconds) if key else answer
    return _server(_parsed(answer), needs_key=True, status=answer.status)


def _server(models: Sequence[Model] | None, needs_key: bool | None, status: int) -> Server:
    lengths = {model.id: model.context_length for model in models or () if isinstance(model.context_length, int)}
    return Server(None if models is None else tuple(model.id for model in models), needs_key, status, lengths)


def _get_models(base: str, key: str, timeout_seconds: float) -> BackendAnswer:
    """Request the list of models. No proxy is used, and no redirect is followed with the key."""
    import asyncio

    from antwort.config.secrets import Secret
    from antwort.doctor.answers import BackendAnswer
    from antwort.doctor.client import Access, ProbeClient, below

    async def get() -> BackendAnswer:
        try:
            client = ProbeClient(base, Access(key=Secret(key) if key else None), timeout_seconds)
        except ValueError:  # no host has such a name, or no header can hold such a key
            return BackendAnswer()
        try:
            return await client.get(below(base, "/models"))
        finally:
            await client.close()

    return asyncio.run(get())


def _parsed(answer: BackendAnswer) -> Sequence[Model] | None:
    """Return the models with printable names, or None if the answer is not a list of models."""
    from antwort.errors import AntwortError
    from antwort.providers.models import parse_models

    try:
        return parse_models(answer.body) if answer.status == _OK else None
    except AntwortError:
        return None


# ---- the model ----


def _chosen(model: str, server: Server, base: str) -> str:
    """Return the model to use: the one that was asked for, or the only one. Raises `CannotStart` if there is none."""
    if not model.isprintable():
        raise Misused("--model must be a printable name.")
    if not model:
        return _only_model(server, base)
    if server.models is None and not server.needs_key:
        _note(f"The model is not checked: {server.problem} at {base}.")
    elif server.models is not None and model not in server.models:
        _note(f"The server does not list {model!r}; it lists {_named(server.models) or 'no models'}.")
    return model


def _only_model(server: Server, base: str) -> str:
    if server.models is None and server.needs_key:
        how = f"does not accept the key in {KEY_VARIABLE}" if _key() else f"requires a key: set {KEY_VARIABLE}"
        raise CannotStart(f"The server at {base} {how}, or name a model with --model MODEL.")
    if server.models is None:
        raise CannotStart(
            f"{server.problem[0].upper()}{server.problem[1:]} at {base}: start one (`antwort serve`), "
            "give its address (--url URL), or name a model (--model MODEL)."
        )
    if len(server.models) != 1:
        listed = f"several models: {_named(server.models)}" if server.models else "no models"
        raise CannotStart(f"The server at {base} lists {listed}; name the one for Codex (--model MODEL).")
    return server.models[0]


def _named(models: tuple[str, ...]) -> str:
    more = len(models) - _MAX_NAMED_MODELS
    return ", ".join(models[:_MAX_NAMED_MODELS]) + (f" and {more} more" if more > 0 else "")


def _check_context(model: str, server: Server) -> None:
    """Refuse a model whose context is too short for Codex, and warn of one that is short or unknown."""
    length = server.context_lengths.get(model)
    wanted = f"Codex works well from {GOOD_CONTEXT_TOKENS:,} on"
    if length is None:
        _note(f"The server does not report the context length of {model!r}; {wanted}.")
    elif length < MIN_CONTEXT_TOKENS:
        raise CannotStart(
            f"The context of {model!r} has {length:,} tokens, too few for Codex, whose prompt and tools fill several "
            f"thousand: at least {MIN_CONTEXT_TOKENS:,} are needed. Choose another model (--model MODEL), or serve "
            "this one with a longer context."
        )
    elif length < GOOD_CONTEXT_TOKENS:
        _note(f"The context of {model!r} has {length:,} tokens; {wanted}.")


# ---- the files ----


def codex_folder() -> Path:
    """Return Codex's folder. Raises `CannotStart` for a user without a home folder."""
    if folder := os.environ.get("CODEX_HOME"):
        return Path(folder).absolute()
    try:
        return Path.home() / ".codex"
    except RuntimeError as exc:
        raise CannotStart("There is no home folder with Codex's files: set CODEX_HOME.") from exc


def _show(base: str, model: str, needs_key: bool) -> int:
    folder = codex_folder()
    _note(f"For {folder / PROFILE_FILE}; without --print, `antwort codex` writes it.")
    return tell(_profile("", base, model, needs_key, folder / CATALOGUE_FILE).rstrip("\n"))


def _write(base: str, model: str, needs_key: bool, server: Server) -> int:
    folder = codex_folder()
    file, catalogue = folder / PROFILE_FILE, folder / CATALOGUE_FILE
    changed = [_replaced(file, _profile(_read(file), base, model, needs_key, catalogue))]
    if not _KNOWN_MODEL.match(model):
        others = [name for name in server.models or () if name != model]
        models = [model, *others][:_MAX_CATALOGUE_MODELS]
        changed.append(_replaced(catalogue, catalogue_text(models, server.context_lengths)))
    key = [f"Codex takes the server's key from {KEY_VARIABLE}."] if needs_key else []
    done = f"Wrote {file}." if any(changed) else f"{file} is up to date."
    return tell(done, *key, f"Start Codex with: codex --profile {PROFILE}")


def _profile(text: str, base: str, model: str, needs_key: bool, catalogue: Path) -> str:
    """Return the profile's text, with what the user has added to it."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        profile = tomlkit.parse(text)
        if not text:
            profile.add(tomlkit.comment(_HEADER))
        profile.update({"model": model, "model_provider": PROFILE, "model_catalog_json": str(catalogue)})
        if _KNOWN_MODEL.match(model):  # a catalogue would take the place of Codex's own
            del profile["model_catalog_json"]
        providers = profile.setdefault("model_providers", tomlkit.table(is_super_table=True))
        provider = providers.setdefault(PROFILE, tomlkit.table())
        if not provider:
            provider.update({"name": PROFILE, "base_url": base, "wire_api": "responses", **_PROVIDER_DEFAULTS})
        provider.update({"base_url": base, "wire_api": "responses"})
        if needs_key:
            provider["env_key"] = KEY_VARIABLE
        elif provider.get("env_key") == KEY_VARIABLE:
            del provider["env_key"]
    except (TOMLKitError, AttributeError, TypeError) as exc:
        raise CannotStart(f"{PROFILE_FILE} cannot be changed: {exc}. Correct it, or delete it.") from exc
    return tomlkit.dumps(profile)


def catalogue_text(models: Sequence[str], context_lengths: Mapping[str, int]) -> str:
    """Return a model catalogue: what Codex otherwise guesses of models that it does not know, with a warning."""
    return json.dumps({"models": [_entry(at, model, context_lengths) for at, model in enumerate(models)]}, indent=2)


def _entry(priority: int, model: str, context_lengths: Mapping[str, int]) -> dict[str, Any]:
    length = context_lengths.get(model)
    return {
        "slug": model,
        "display_name": model,
        "description": f"{model}, served by antwort",
        "supported_reasoning_levels": [],
        "shell_type": "unified_exec",
        "visibility": "list",
        "supported_in_api": True,
        "priority": priority,
        "support_verbosity": False,
        "truncation_policy": {"mode": "bytes", "limit": 10_000},
        "experimental_supported_tools": [],
        "input_modalities": ["text", "image"],
        "base_instructions": _INSTRUCTIONS,
        **({} if length is None else {"context_window": length}),
    }


def _read(file: Path) -> str:
    try:
        return file.read_bytes().decode() if file.exists() else ""
    except UnicodeDecodeError as exc:
        raise CannotStart(f"{file} is not UTF-8 text; it is left unchanged.") from exc
    except OSError as exc:
        raise CannotStart(f"{file} cannot be read: {exc.strerror}.") from exc


def _replaced(file: Path, text: str) -> bool:
    """Write a file, and return whether it changed."""
    from antwort.config.files import replace_file

    if file.exists() and _read(file) == text:
        return False
    try:
        replace_file(file, text, mode=0o600)
    except OSError as exc:
        raise CannotStart(f"{file} cannot be written: {exc.strerror}.") from exc
    return True


# ---- going back ----


def _restore() -> int:
    """Remove the profile and its catalogue, and from config.toml what earlier versions wrote into it."""
    folder = codex_folder()
    config = folder / "config.toml"
    text = _read(config)
    restored = _without_provider(text, folder / "config.toml.bak")
    done: list[str] = []
    try:
        for file in (folder / PROFILE_FILE, folder / CATALOGUE_FILE):
            if file.exists():
                file.unlink()
                done.append(f"Removed {file}.")
    except OSError as exc:
        raise CannotStart(f"{file} cannot be removed: {exc.strerror}.") from exc
    if restored != text:
        _replaced(config, restored)
        done.append(f"Removed the provider {PROFILE!r} from {config}.")
    return tell(*(done or [f"There is nothing of antwort in {folder}."]))


def _without_provider(text: str, backup: Path) -> str:
    """Return config.toml without our provider. The default model becomes that of the backup, if our provider set it."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        config: TOMLDocument = tomlkit.parse(text)
        providers: Container | dict[str, Any] = config.get("model_providers", {})
        if PROFILE not in providers:
            return text
        earlier: Mapping[str, Any] = tomlkit.parse(_read(backup)).unwrap()
    except TOMLKitError as exc:
        raise CannotStart(f"config.toml or its backup is not valid TOML: {exc}. Nothing was removed.") from exc
    if config.get("model_provider") == PROFILE:
        has_earlier = earlier.get("model_provider") != PROFILE
        for name in _TOP_KEYS:
            if has_earlier and name in earlier:
                config[name] = earlier[name]
            else:
                config.pop(name, None)
    del providers[PROFILE]
    if not providers:
        del config["model_providers"]
    return tomlkit.dumps(config)


def _note(line: str) -> None:
    """Print a line to standard error, beside the output."""
    print(printable(line), file=sys.stderr, flush=True)
