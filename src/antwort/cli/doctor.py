"""`antwort doctor`: what a backend can do, and what to do about the rest."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Self

from antwort.cli.say import complain, tell
from antwort.config.problems import CannotStart

if TYPE_CHECKING:
    import ssl

    from rich.console import Console

    from antwort.config.reading import Loaded
    from antwort.config.secrets import Secret
    from antwort.config.settings import BackendSettings, Settings
    from antwort.doctor.examine import Subject, Visit
    from antwort.doctor.findings import Examination

_LOCAL = "local"
UNREACHABLE = 3
"""The exit status where a backend cannot be examined: out of reach, not ready, or closed to us."""
_LONGEST = 3600.0


class _Misused(CannotStart):
    """The command line is to blame."""


def run(given: Mapping[str, object]) -> int:
    try:
        return asyncio.run(_Consultation(given).hold())
    except _Misused as exc:
        print(f"antwort doctor: {exc}", file=sys.stderr)
        return 2
    except CannotStart as exc:
        return complain(exc)


class _Consultation:
    """One run of the command."""

    def __init__(self, given: Mapping[str, object]) -> None:
        from antwort.doctor.table import Table, console

        self._given = given
        self._is_json = bool(given.get("json"))
        self._console = console(sys.stderr if self._is_json else sys.stdout)
        self._table = Table(self._console)
        self._patience = _patience(given.get("timeout"))
        self._loaded = _read(given)

    async def hold(self) -> int:
        """The exit status."""
        from antwort.api.wire import encode
        from antwort.doctor.findings import Report

        async with aclosing(self._subjects()) as subjects:
            examined = [await self._examine(subject) async for subject in subjects]
        if self._is_json:
            import msgspec

            report = msgspec.json.format(encode(Report(backends=tuple(examined))), indent=2)
            if tell(report.decode()):
                return 1
        return _status(examined)

    async def _subjects(self) -> AsyncGenerator[Subject, None]:
        """Those to examine, one after the other."""
        url, settings = self._given.get("url"), _settings(self._loaded)
        if isinstance(url, str):
            yield _subject_at(url, self._given, settings)
        elif settings.backends:
            for backend in settings.backends:
                yield _subject_of(backend, self._given)
        else:
            async with _local(settings, self._given) as subject:
                yield subject

    # ---- one backend ----

    async def _examine(self, subject: Subject) -> Examination:
        from antwort.config.addresses import without_query
        from antwort.doctor.addresses import candidates
        from antwort.doctor.examine import OutOfReach, Visit
        from antwort.doctor.findings import Examination

        with self._progress() as begin:
            visit = Visit(subject, patience=self._patience, begin=begin.say)
            try:
                await self._show(visit)
            except OutOfReach as exc:
                address = without_query(candidates(subject.url)[0])
                print(f"antwort: The backend at {address} {exc}.", file=sys.stderr)
                return Examination(name=subject.name, url=address, outcome="unreachable", problem=str(exc))
        return self._concluded(visit, subject)

    async def _show(self, visit: Visit) -> None:
        async with aclosing(visit.findings()) as findings:
            is_first = True
            async for finding in findings:
                if not self._is_json:
                    if is_first:
                        self._table.head(visit.examination())
                    self._table.row(finding)
                is_first = False

    def _concluded(self, visit: Visit, subject: Subject) -> Examination:
        from antwort.api.wire import replace
        from antwort.doctor.examine import in_force
        from antwort.doctor.findings import outcome

        examined = visit.examination()
        is_written = bool(self._given.get("write")) and self._write(visit, subject)
        if is_written:
            set_now = in_force(subject.settings) | dict(examined.settings)
            examined = replace(examined, outcome=outcome(examined.findings, set_now))
        if not self._is_json:
            self._table.foot(examined, is_written=is_written)
        return examined

    def _progress(self) -> AbstractContextManager[_Progress]:
        return _Progress(self._console) if self._console.is_terminal else nullcontext(_Progress(None))

    # ---- the file ----

    def _write(self, visit: Visit, subject: Subject) -> bool:
        """Whether the findings are in the file now."""
        from antwort.api.wire import replace
        from antwort.doctor.record import CannotRecord, new_name, record

        out = sys.stderr if self._is_json else sys.stdout
        if subject.is_ours:
            print("\nNothing is recorded: antwort knows the model that it runs by itself.", file=out)
            return False
        loaded = self._loaded
        file = (loaded.file if loaded else None) or Path("antwort.yaml")
        examined, settings = visit.examination(), subject.settings
        if settings is None:
            name = new_name(examined.engine.name, {backend.name for backend in _settings(loaded).backends})
            examined = replace(examined, name=name)
        key_file = self._given.get("backend_key_file")
        try:
            kept = record(
                file, examined, visit.base, settings=settings, key_file=key_file if isinstance(key_file, str) else None
            )
        except CannotRecord as exc:
            print(f"antwort: {file} is left as it is: {exc}. Put this there yourself:\n\n{exc.paste}", file=sys.stderr)
            return False
        lines = kept.diff or (f"{file} says so already.",)
        print("", *lines, sep="\n", file=out)
        return True


class _Progress:
    """What is looked at just now, on a line of a terminal that comes and goes."""

    def __init__(self, to: Console | None) -> None:
        self._status = None if to is None else to.status("", spinner="dots")

    def say(self, probe: str) -> None:
        from antwort.doctor.findings import PROBES

        if self._status is not None:
            self._status.update(f"{PROBES[probe]} …")

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()


def _status(examined: Sequence[Examination]) -> int:
    outcomes = {each.outcome for each in examined}
    return 1 if "broken" in outcomes else UNREACHABLE if "unreachable" in outcomes else 0


# ---- what is asked for ----


def _patience(given: object) -> float:
    from antwort.doctor.examine import PATIENCE

    if given is None:
        return PATIENCE
    try:
        seconds = float(str(given))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST:
        raise _Misused(f"--timeout must be a number of seconds, more than 0 and at most {_LONGEST:g}.")
    return seconds


def _read(given: Mapping[str, object]) -> Loaded | None:
    """The settings; whoever names an address can do without those that cannot be read."""
    from antwort.config.reading import read

    by_url = isinstance(given.get("url"), str)
    wanted = ("config",) if by_url else ("config", "backend_key_file")
    try:
        return read({name: given[name] for name in wanted if name in given})
    except CannotStart as exc:
        if not by_url or "config" in given or "write" in given:
            raise
        print(f"antwort: {exc} That does not matter here.", file=sys.stderr)
        return None


def _settings(loaded: Loaded | None) -> Settings:
    from antwort.config.settings import Settings

    return Settings() if loaded is None else loaded.settings


def _subject_at(url: str, given: Mapping[str, object], settings: Settings) -> Subject:
    """The backend at an address: a configured one, if its address may be meant, or else one of its own."""
    from antwort.config.addresses import address_problem
    from antwort.doctor.addresses import candidates
    from antwort.doctor.asking import Access
    from antwort.doctor.examine import Subject

    places = candidates(url)
    if problem := address_problem(places[0]):
        raise _Misused(f"The backend's address {problem}.")
    key = _key(given)
    for backend in settings.backends:
        if backend.url.rstrip("/") in places:
            return _subject_of(backend, given, key)
    return Subject(name="", url=url, access=Access(key=key), model=_model(given))


def _subject_of(backend: BackendSettings, given: Mapping[str, object], key: Secret | None = None) -> Subject:
    from antwort.doctor.asking import Access
    from antwort.doctor.examine import Subject

    access = Access(key=key or backend.api_key, headers=backend.headers, tls=_tls(backend))
    model = _model(given) or (backend.models[0] if backend.models else None)
    return Subject(name=backend.name, url=backend.url, access=access, model=model, settings=backend)


def _model(given: Mapping[str, object]) -> str | None:
    model = given.get("model")
    return model if isinstance(model, str) and model else None


def _key(given: Mapping[str, object]) -> Secret | None:
    """Of a backend that is named by its address: from the file that is named, or else from the environment."""
    from antwort.config.flags import KEY_VARIABLE
    from antwort.config.paths import expanded
    from antwort.config.secrets import Secret, can_be_sent, read_secret_file

    named = given.get("backend_key_file") or os.environ.get(f"{KEY_VARIABLE}_FILE")
    try:
        text = read_secret_file(Path(expanded(str(named)))) if named else os.environ.get(KEY_VARIABLE, "").strip()
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
async def _local(settings: Settings, given: Mapping[str, object]) -> AsyncIterator[Subject]:
    """The model that antwort runs by itself, started for the occasion. Raises `CannotStart`."""
    from antwort.backends import make_local
    from antwort.cli.waiting import shown
    from antwort.config.secrets import Secret
    from antwort.config.settings import BackendSettings, CapabilitySettings
    from antwort.doctor.asking import Access
    from antwort.doctor.examine import Subject
    from antwort.local.files import CannotRun

    local = make_local(settings)
    if local is None:
        raise CannotStart("There is no backend to examine: a scripted stand-in answers, not a model.")
    try:
        await (local.ready() if given.get("json") else shown(local.ready(), f"loading {local.name}"))
        address, key = await local.door()
        mode = settings.local.tool_calling
        backend = BackendSettings(
            name=_LOCAL,
            url=f"{address}/v1",
            tool_calling="constrained" if mode == "auto" and local.is_demo else mode,
            capabilities=CapabilitySettings(vision=False),
        )
        yield Subject(
            name=_LOCAL,
            url=backend.url,
            access=Access(key=Secret(key)),
            model=_model(given) or local.name,
            settings=backend,
            is_ours=True,
        )
    except CannotRun as exc:
        raise CannotStart(f"The model {local.name} cannot be loaded: {exc}.") from exc
    finally:
        await local.close()
