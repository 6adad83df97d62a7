"""`antwort doctor`: examine backends, print the findings, and record them in the settings."""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

import msgspec

from antwort.api.wire import encode, replace
from antwort.backends import make_local
from antwort.cli.output import SafeOutput, UsageError, note, print_result, report_lost, with_progress
from antwort.config.checks import LOCAL, address_problem
from antwort.config.files import expanded
from antwort.config.flags import KEY_VARIABLE
from antwort.config.loading import Loaded, read
from antwort.config.problems import CannotStart
from antwort.config.secrets import Secret, can_be_sent, read_secret_file
from antwort.config.settings import BackendSettings, CapabilitySettings, Settings

if TYPE_CHECKING:
    from antwort.doctor.examiner import Examiner, Subject
    from antwort.doctor.findings import Examination

STATUS_UNREACHABLE = 3
"""A backend could not be examined: it was out of reach, not ready, or asked for a key."""
_MAX_TIMEOUT_SECONDS = 3600.0


async def run(given: Mapping[str, object]) -> int:
    return await _Doctor(given).run()


class _Doctor:
    """One run of the command."""

    def __init__(self, given: Mapping[str, object]) -> None:
        from antwort.doctor.table import FindingsTable

        self._given = given
        self._is_json = bool(given.get("json"))
        self._output = SafeOutput()
        self._table = FindingsTable(sys.stderr if self._is_json else cast("TextIO", self._output))
        self._timeout_seconds = _timeout_seconds(given.get("timeout"))
        self._loaded = _load(given)
        self._settings = Settings() if self._loaded is None else self._loaded.settings
        self._has_failed_to_write = False

    async def run(self) -> int:
        """Return the exit status."""
        from antwort.doctor.findings import Report

        async with aclosing(self._subjects()) as subjects:
            examined = [await self._examine(subject) async for subject in subjects]
        if self._is_json:
            findings = msgspec.json.format(encode(Report(backends=tuple(examined))), indent=2)
            status = print_result(findings.decode())
        else:
            status = report_lost(self._output.problem)
        outcomes = {each.outcome for each in examined}
        if status or self._has_failed_to_write or "broken" in outcomes:
            return 1
        return STATUS_UNREACHABLE if "unreachable" in outcomes else 0

    async def _subjects(self) -> AsyncGenerator[Subject, None]:
        url = self._given.get("url")
        if isinstance(url, str):
            yield _subject_at(url, self._given, self._settings)
        elif self._settings.backends:
            for backend in self._settings.backends:
                yield _subject_of(backend, self._given)
        else:
            async with _local_subject(self._settings, self._given) as subject:
                yield subject

    async def _examine(self, subject: Subject) -> Examination:
        from antwort.doctor.examiner import Examiner, OutOfReach, in_force
        from antwort.doctor.findings import outcome

        try:
            examiner = Examiner(subject, timeout=self._timeout_seconds, begin=self._table.progress)
        except ValueError as exc:
            raise UsageError(f"The backend cannot be asked: {exc}.") from exc
        try:
            await self._show_findings(examiner)
        except OutOfReach as exc:
            self._table.end_progress()
            examined = replace(examiner.examination(), outcome="unreachable", problem=str(exc), settings={})
            print(f"antwort: The backend at {examined.url} {exc}.", file=sys.stderr)
            return examined
        finally:
            self._table.end_progress()
        examined, is_to_write = examiner.examination(), bool(self._given.get("write"))
        if is_to_write and self._write(examiner, subject):
            settings = in_force(subject.settings) | dict(examined.settings)
            examined = replace(examined, outcome=outcome(examined.findings, settings))
        elif is_to_write:
            self._has_failed_to_write = True
        if not self._is_json:
            self._table.foot(examined, has_tried=is_to_write)
        return examined

    async def _show_findings(self, examiner: Examiner) -> None:
        async with aclosing(examiner.findings()) as findings:
            is_first = not self._is_json
            async for finding in findings:
                if is_first:
                    self._table.head(examiner.examination())
                    is_first = False
                if not self._is_json:
                    self._table.row(finding)

    def _write(self, examiner: Examiner, subject: Subject) -> bool:
        """Record the findings, and return whether they are in the file now."""
        from antwort.doctor.record import CannotRecord, new_name, record

        output = sys.stderr if self._is_json else self._output
        if subject.is_local:
            print("\nNothing is recorded: antwort knows the model that it runs by itself.", file=output)
            return False
        loaded, examined = self._loaded, examiner.examination()
        file = (loaded.file if loaded else None) or Path("antwort.yaml")
        if subject.settings is None:
            names = {backend.name for backend in self._settings.backends}
            examined = replace(examined, name=new_name(examined.engine.name, names))
        key_file = self._given.get("backend_key_file")
        # What sets the backends, if that is not the file.
        origin = loaded.origin("backends") if loaded and loaded.settings.backends else ""
        above = "" if origin.startswith(f"{file}:") else origin
        try:
            recorded = record(
                file,
                examined,
                examiner.base,
                settings=subject.settings,
                key_file=key_file if isinstance(key_file, str) else None,
                above=above,
            )
        except CannotRecord as exc:
            print(f"antwort: {file} is left as it is: {exc}. Put this there yourself:\n\n{exc.paste}", file=sys.stderr)
            return False
        lines = recorded.diff or ("There is nothing to record." if above else f"{file} says so already.",)
        print("", *lines, sep="\n", file=output)
        return True


# ---- the command line ----


def _timeout_seconds(given: object) -> float:
    from antwort.doctor.examiner import TIMEOUT_SECONDS

    if given is None:
        return TIMEOUT_SECONDS
    try:
        seconds = float(str(given))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _MAX_TIMEOUT_SECONDS:
        raise UsageError(f"--timeout must be a number of seconds, more than 0 and at most {_MAX_TIMEOUT_SECONDS:g}.")
    return seconds


def _load(given: Mapping[str, object]) -> Loaded | None:
    """Read the settings. If a URL is given, and they are not asked for, they may be unusable."""
    has_url = isinstance(given.get("url"), str)
    wanted = ("config",) if has_url else ("config", "backend_key_file")
    try:
        return read({name: given[name] for name in wanted if name in given})
    except CannotStart as exc:
        if not has_url or "config" in given or "write" in given:
            raise
        note(f"antwort: {exc} That does not matter here.")
        return None


# ---- backends to examine ----


def _subject_at(url: str, given: Mapping[str, object], settings: Settings) -> Subject:
    """Return the configured backend with this address, or else one that is not configured."""
    from antwort.doctor.client import Access, candidates, without_slash
    from antwort.doctor.examiner import Subject

    try:
        addresses = candidates(url)
    except ValueError:
        raise UsageError("The backend's address is not a URL like http://localhost:8000/v1.") from None
    if problem := address_problem(addresses[0]):
        raise UsageError(f"The backend's address {problem}.")
    key_file = given.get("backend_key_file")
    for backend in settings.backends:
        if without_slash(backend.url) in addresses:
            return _subject_of(backend, given, _read_key(key_file))
    key_file = key_file or os.environ.get(f"{KEY_VARIABLE}_FILE")
    key = _read_key(key_file, os.environ.get(KEY_VARIABLE, "").strip())
    return Subject(name="", url=url, access=Access(key=key), model=_model(given))


def _subject_of(backend: BackendSettings, given: Mapping[str, object], key: Secret | None = None) -> Subject:
    """`key` takes precedence over the configured one."""
    from antwort.doctor.client import Access
    from antwort.doctor.examiner import Subject

    tls: ssl.SSLContext | None = None
    if backend.ca_file is not None:
        try:
            tls = ssl.create_default_context(cafile=backend.ca_file)
        except OSError as exc:
            problem = f"the certificates in {backend.ca_file!r} cannot be read"
            raise CannotStart(f"The backend {backend.name!r} cannot be used: {problem}.") from exc
    access = Access(key=key or backend.api_key, headers=backend.headers, tls=tls)
    model = _model(given) or (backend.models[0] if backend.models else None)
    return Subject(name=backend.name, url=backend.url, access=access, model=model, settings=backend)


@asynccontextmanager
async def _local_subject(settings: Settings, given: Mapping[str, object]) -> AsyncIterator[Subject]:
    """Start the model that antwort runs by itself. Raises `CannotStart`."""
    from antwort.doctor.client import Access
    from antwort.doctor.examiner import Subject
    from antwort.local.server_options import CannotRun

    local = make_local(settings)
    if local is None:
        raise CannotStart("There is no backend to examine: a scripted stand-in answers, not a model.")
    try:
        await (local.ready() if given.get("json") else with_progress(local.ready(), f"loading {local.name}"))
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


def _model(given: Mapping[str, object]) -> str | None:
    model = given.get("model")
    return model if isinstance(model, str) and model else None


def _read_key(file: object, default: str = "") -> Secret | None:
    try:
        text = read_secret_file(Path(expanded(str(file)))) if file else default
    except ValueError as exc:
        raise CannotStart(f"The backend's key {exc}.") from exc
    if not can_be_sent(text):
        raise CannotStart("The backend's key cannot be sent: it must be one line of printable ASCII.")
    return Secret(text) if text else None
