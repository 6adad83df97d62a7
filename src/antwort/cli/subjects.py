"""Whom `antwort doctor` is to examine, by what the command line and the settings say."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from antwort.config.checks import LOCAL
from antwort.config.problems import CannotStart

if TYPE_CHECKING:
    import ssl

    from antwort.config.secrets import Secret
    from antwort.config.settings import BackendSettings, Settings
    from antwort.doctor.examiner import Subject


class Misused(CannotStart):
    """The command line is to blame."""


def subject_at(url: str, given: Mapping[str, object], settings: Settings) -> Subject:
    """The backend at an address: a configured one, if its address may be meant, or else one of its own."""
    from antwort.config.checks import address_problem
    from antwort.doctor.client import Access, candidates, without_slash
    from antwort.doctor.examiner import Subject

    try:
        places = candidates(url)
    except ValueError:
        raise Misused("The backend's address is not a URL like http://localhost:8000/v1.") from None
    if problem := address_problem(places[0]):
        raise Misused(f"The backend's address {problem}.")
    for backend in settings.backends:
        if without_slash(backend.url) in places:
            return subject_of(backend, given, _key(given.get("backend_key_file")))
    return Subject(name="", url=url, access=Access(key=_own_key(given)), model=_model(given))


def subject_of(backend: BackendSettings, given: Mapping[str, object], key: Secret | None = None) -> Subject:
    """`key` goes before the one that is set; that of the environment is among the settings already, where it counts."""
    from antwort.doctor.client import Access
    from antwort.doctor.examiner import Subject

    access = Access(key=key or backend.api_key, headers=backend.headers, tls=_tls(backend))
    model = _model(given) or (backend.models[0] if backend.models else None)
    return Subject(name=backend.name, url=backend.url, access=access, model=model, settings=backend)


def _model(given: Mapping[str, object]) -> str | None:
    model = given.get("model")
    return model if isinstance(model, str) and model else None


def _own_key(given: Mapping[str, object]) -> Secret | None:
    """Of a backend that is not configured: from the file that is named, or else from the environment."""
    from antwort.config.flags import KEY_VARIABLE

    file = given.get("backend_key_file") or os.environ.get(f"{KEY_VARIABLE}_FILE")
    return _key(file, os.environ.get(KEY_VARIABLE, "").strip())


def _key(file: object, otherwise: str = "") -> Secret | None:
    from antwort.config.files import expanded
    from antwort.config.secrets import Secret, can_be_sent, read_secret_file

    try:
        text = read_secret_file(Path(expanded(str(file)))) if file else otherwise
    except ValueError as exc:
        raise CannotStart(f"The backend's key {exc}.") from exc
    if not can_be_sent(text):
        raise CannotStart("The backend's key cannot be sent: it must be one line of printable ASCII.")
    return Secret(text) if text else None


def _tls(backend: BackendSettings) -> ssl.SSLContext | None:
    if backend.ca_file is None:
        return None
    import ssl

    try:
        return ssl.create_default_context(cafile=backend.ca_file)
    except OSError as exc:
        problem = f"the certificates in {backend.ca_file!r} cannot be read"
        raise CannotStart(f"The backend {backend.name!r} cannot be used: {problem}.") from exc


# ---- the model of our own ----


@asynccontextmanager
async def local_subject(settings: Settings, given: Mapping[str, object]) -> AsyncIterator[Subject]:
    """The model that antwort runs by itself, started for the occasion. Raises `CannotStart`."""
    from antwort.backends import make_local
    from antwort.cli.waiting import shown
    from antwort.config.secrets import Secret
    from antwort.config.settings import BackendSettings, CapabilitySettings
    from antwort.doctor.client import Access
    from antwort.doctor.examiner import Subject
    from antwort.local.server_options import CannotRun

    local = make_local(settings)
    if local is None:
        raise CannotStart("There is no backend to examine: a scripted stand-in answers, not a model.")
    try:
        await (local.ready() if given.get("json") else shown(local.ready(), f"loading {local.name}"))
        address, key = await local.door()
        mode = settings.local.tool_calling
        backend = BackendSettings(
            name=LOCAL,
            url=f"{address}/v1",
            tool_calling="constrained" if mode == "auto" and local.is_constrained else mode,
            capabilities=CapabilitySettings(vision=False),
        )
        yield Subject(
            name=LOCAL,
            url=backend.url,
            access=Access(key=Secret(key)),
            model=_model(given) or local.name,
            settings=backend,
            is_local=True,
        )
    except CannotRun as exc:
        raise CannotStart(f"The model {local.name} cannot be loaded: {exc}.") from exc
    finally:
        await local.close()
