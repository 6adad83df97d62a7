"""`antwort codex`: a profile of its own for Codex CLI, with an entry in Codex's model catalogue."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import tomlkit
from tomlkit import TOMLDocument
from tomlkit.container import Container
from tomlkit.exceptions import TOMLKitError

from antwort.cli.output import UsageError, note, print_result, report
from antwort.config.files import replace_file
from antwort.config.problems import CannotStart
from antwort.config.secrets import Secret
from antwort.errors import AntwortError
from antwort.providers.models import parse_models

if TYPE_CHECKING:
    from antwort.doctor.answers import BackendAnswer

PROFILE = "antwort"
PROFILE_FILE = f"{PROFILE}.config.toml"
CATALOGUE_FILE = f"{PROFILE}.models.json"
DEFAULT_URL = "http://127.0.0.1:8080"
URL_VARIABLE = "ANTWORT_URL"
KEY_VARIABLE = "ANTWORT_API_KEY"
TIMEOUT_SECONDS = 5.0
"""For the whole list of models, however slowly it arrives."""
MIN_CONTEXT_TOKENS, GOOD_CONTEXT_TOKENS = 16_000, 64_000
_MAX_NAMED_MODELS = 8
_MAX_CATALOGUE_MODELS = 100
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
            note("--write is not needed any more: `antwort codex` writes a profile, and leaves config.toml alone.")
        key = os.environ.get(KEY_VARIABLE, "").strip()
        if url := given.get("url"):
            base = base_of(str(url), "--url", UsageError)
        else:
            base = base_of(os.environ.get(URL_VARIABLE) or DEFAULT_URL, URL_VARIABLE)
        found = look(base, key)
        model = choose_model(str(given.get("model") or ""), found, base, has_key=bool(key))
        _check_context(model, found)
        needs_key = bool(key) if found.needs_key is None else found.needs_key
        return _write(base, model, needs_key, found, is_printed=bool(given.get("print")))
    except CannotStart as exc:
        return report(exc)


def base_of(url: str, source: str, error: type[CannotStart] = CannotStart) -> str:
    """Return the base URL for Codex. Raises `error` for an invalid address; `source` names where it came from."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    is_plain = parts.username is None and parts.password is None and not parts.query and not parts.fragment
    is_one_word = all(character.isprintable() and not character.isspace() for character in url)
    is_usable = parts.scheme in ("http", "https") and parts.hostname and port != 0
    if not (is_usable and is_plain and is_one_word):
        raise error(f"{source} must be the address of a server, such as {DEFAULT_URL}.")
    path = parts.path.rstrip("/").removesuffix("/responses")
    return f"{parts.scheme}://{parts.netloc}{path if path.endswith('/v1') else f'{path}/v1'}"


# ---- the server's models ----


class ListedModels(NamedTuple):
    """What a server answers when it is asked for its models."""

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


def look(base: str, key: str, timeout_seconds: float = TIMEOUT_SECONDS) -> ListedModels:
    """List the models, first without a key, then with it if the server requires one."""
    answer = _get_models(base, "", timeout_seconds)
    is_refused = answer.status == HTTPStatus.UNAUTHORIZED
    if is_refused and key:
        answer = _get_models(base, key, timeout_seconds)
    try:
        models = parse_models(answer.body) if answer.status == HTTPStatus.OK else None
    except AntwortError:
        models = None
    needs_key = True if is_refused else False if models is not None else None
    lengths = {model.id: model.context_length for model in models or () if isinstance(model.context_length, int)}
    names = None if models is None else tuple(model.id for model in models)
    return ListedModels(names, needs_key, answer.status, lengths)


def _get_models(base: str, key: str, timeout_seconds: float) -> BackendAnswer:
    """Request the list of models. No proxy is used, and no redirect is followed with the key."""
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


def choose_model(model: str, found: ListedModels, base: str, *, has_key: bool) -> str:
    """Return the model that was asked for, or the server's only one. Raises `CannotStart` if there is none."""
    if not model.isprintable():
        raise UsageError("--model must be a printable name.")
    names = found.models or ()
    listed = ", ".join(names[:_MAX_NAMED_MODELS])
    listed += f" and {len(names) - _MAX_NAMED_MODELS} more" if len(names) > _MAX_NAMED_MODELS else ""
    if model:
        if found.models is None and not found.needs_key:
            note(f"The model is not checked: {found.problem} at {base}.")
        elif found.models is not None and model not in names:
            note(f"The server does not list {model!r}; it lists {listed or 'no models'}.")
        return model
    if found.models is None and found.needs_key:
        how = f"does not accept the key in {KEY_VARIABLE}" if has_key else f"requires a key: set {KEY_VARIABLE}"
        raise CannotStart(f"The server at {base} {how}, or name a model with --model MODEL.")
    if found.models is None:
        raise CannotStart(
            f"{found.problem[0].upper()}{found.problem[1:]} at {base}: start one (`antwort serve`), "
            "give its address (--url URL), or name a model (--model MODEL)."
        )
    if len(names) != 1:
        listed = f"several models: {listed}" if names else "no models"
        raise CannotStart(f"The server at {base} lists {listed}; name the one for Codex (--model MODEL).")
    return names[0]


def _check_context(model: str, found: ListedModels) -> None:
    """Refuse a model whose context is too short for Codex, and warn of one that is short or unknown."""
    length = found.context_lengths.get(model)
    wanted = f"Codex works well from {GOOD_CONTEXT_TOKENS:,} on"
    if length is None:
        note(f"The server does not report the context length of {model!r}; {wanted}.")
    elif length < MIN_CONTEXT_TOKENS:
        raise CannotStart(
            f"The context of {model!r} has {length:,} tokens, too few for Codex, whose prompt and tools fill several "
            f"thousand: at least {MIN_CONTEXT_TOKENS:,} are needed. Choose another model (--model MODEL), or serve "
            "this one with a longer context."
        )
    elif length < GOOD_CONTEXT_TOKENS:
        note(f"The context of {model!r} has {length:,} tokens; {wanted}.")


# ---- the files ----


def codex_folder() -> Path:
    """Return Codex's folder. Raises `CannotStart` for a user without a home folder."""
    if folder := os.environ.get("CODEX_HOME"):
        return Path(folder).absolute()
    try:
        return Path.home() / ".codex"
    except RuntimeError as exc:
        raise CannotStart("There is no home folder with Codex's files: set CODEX_HOME.") from exc


def _write(base: str, model: str, needs_key: bool, found: ListedModels, *, is_printed: bool) -> int:
    folder = codex_folder()
    file, catalogue = folder / PROFILE_FILE, folder / CATALOGUE_FILE
    profile = _profile("" if is_printed else _read(file), base, model, needs_key, catalogue)
    if is_printed:
        note(f"For {file}; without --print, `antwort codex` writes it.")
        return print_result(profile.rstrip("\n"))
    changed = [_replace(file, profile)]
    if not _KNOWN_MODEL.match(model):
        others = [name for name in found.models or () if name != model]
        entries = [_entry(at, name, found) for at, name in enumerate([model, *others][:_MAX_CATALOGUE_MODELS])]
        changed.append(_replace(catalogue, json.dumps({"models": entries}, indent=2)))
    key = [f"Codex takes the server's key from {KEY_VARIABLE}."] if needs_key else []
    done = f"Wrote {file}." if any(changed) else f"{file} is up to date."
    return print_result(done, *key, f"Start Codex with: codex --profile {PROFILE}")


def _profile(text: str, base: str, model: str, needs_key: bool, catalogue: Path) -> str:
    """Return the profile's text, with what the user has added to it."""
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


def _entry(priority: int, model: str, found: ListedModels) -> dict[str, Any]:
    """Return an entry of the model catalogue: what Codex otherwise guesses of unknown models, with a warning."""
    length = found.context_lengths.get(model)
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


def _replace(file: Path, text: str) -> bool:
    """Write a file, and return whether it changed."""
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
        _replace(config, restored)
        done.append(f"Removed the provider {PROFILE!r} from {config}.")
    return print_result(*(done or [f"There is nothing of antwort in {folder}."]))


def _without_provider(text: str, backup: Path) -> str:
    """Return config.toml without our provider. The default model becomes that of the backup, if our provider set it."""
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
