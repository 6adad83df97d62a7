"""`antwort doctor`: what a backend can do, and what to do about the rest."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

from antwort.cli.outlet import Outlet
from antwort.cli.say import complain, lost, tell
from antwort.cli.subjects import Misused, local_subject, subject_at, subject_of
from antwort.config.problems import CannotStart

if TYPE_CHECKING:
    from antwort.config.loading import Loaded
    from antwort.config.settings import Settings
    from antwort.doctor.examiner import Examiner, Subject
    from antwort.doctor.findings import Examination

UNREACHABLE = 3
"""The exit status where a backend cannot be examined: out of reach, not ready, or closed to us."""
_LONGEST = 3600.0


def run(given: Mapping[str, object]) -> int:
    try:
        return asyncio.run(_Consultation(given).hold())
    except Misused as exc:
        print(f"antwort doctor: {exc}", file=sys.stderr)
        return 2
    except CannotStart as exc:
        return complain(exc)


class _Consultation:
    """One run of the command."""

    def __init__(self, given: Mapping[str, object]) -> None:
        from antwort.doctor.table import FindingsTable

        self._given = given
        self._is_json = bool(given.get("json"))
        self._out = Outlet()
        self._table = FindingsTable(sys.stderr if self._is_json else cast("TextIO", self._out))
        self._patience = _patience(given.get("timeout"))
        self._loaded = _read(given)
        self._has_failed_to_write = False

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
        elif lost(self._out.problem):
            return 1
        return 1 if self._has_failed_to_write else _status(examined)

    async def _subjects(self) -> AsyncGenerator[Subject, None]:
        """Those to examine, one after the other."""
        url, settings = self._given.get("url"), _settings(self._loaded)
        if isinstance(url, str):
            yield subject_at(url, self._given, settings)
        elif settings.backends:
            for backend in settings.backends:
                yield subject_of(backend, self._given)
        else:
            async with local_subject(settings, self._given) as subject:
                yield subject

    # ---- one backend ----

    async def _examine(self, subject: Subject) -> Examination:
        from antwort.api.wire import replace
        from antwort.doctor.examiner import Examiner, OutOfReach

        try:
            examiner = Examiner(subject, timeout=self._patience, begin=self._table.progress)
        except ValueError as exc:
            raise Misused(f"The backend cannot be asked: {exc}.") from exc
        try:
            await self._show(examiner)
        except OutOfReach as exc:
            self._table.end_progress()
            examined = replace(examiner.examination(), outcome="unreachable", problem=str(exc), settings={})
            print(f"antwort: The backend at {examined.url} {exc}.", file=sys.stderr)
            return examined
        finally:
            self._table.end_progress()
        return self._concluded(examiner, subject)

    async def _show(self, examiner: Examiner) -> None:
        async with aclosing(examiner.findings()) as findings:
            is_first = True
            async for finding in findings:
                if not self._is_json:
                    if is_first:
                        self._table.head(examiner.examination())
                    self._table.row(finding)
                is_first = False

    def _concluded(self, examiner: Examiner, subject: Subject) -> Examination:
        from antwort.api.wire import replace
        from antwort.doctor.examiner import in_force
        from antwort.doctor.findings import outcome

        examined = examiner.examination()
        has_tried = bool(self._given.get("write"))
        if has_tried and self._write(examiner, subject):
            set_now = in_force(subject.settings) | dict(examined.settings)
            examined = replace(examined, outcome=outcome(examined.findings, set_now))
        elif has_tried:
            self._has_failed_to_write = True
        if not self._is_json:
            self._table.foot(examined, has_tried=has_tried)
        return examined

    # ---- the file ----

    def _write(self, examiner: Examiner, subject: Subject) -> bool:
        """Whether the findings are in the file now."""
        from antwort.api.wire import replace
        from antwort.doctor.record import CannotRecord, new_name, record

        out = sys.stderr if self._is_json else self._out
        if subject.is_local:
            print("\nNothing is recorded: antwort knows the model that it runs by itself.", file=out)
            return False
        loaded = self._loaded
        file = (loaded.file if loaded else None) or Path("antwort.yaml")
        examined, settings = examiner.examination(), subject.settings
        if settings is None:
            name = new_name(examined.engine.name, {backend.name for backend in _settings(loaded).backends})
            examined = replace(examined, name=name)
        key_file, above = self._given.get("backend_key_file"), _above(loaded, file)
        try:
            kept = record(
                file,
                examined,
                examiner.base,
                settings=settings,
                key_file=key_file if isinstance(key_file, str) else None,
                above=above,
            )
        except CannotRecord as exc:
            print(f"antwort: {file} is left as it is: {exc}. Put this there yourself:\n\n{exc.paste}", file=sys.stderr)
            return False
        lines = kept.diff or ("There is nothing to record." if above else f"{file} says so already.",)
        print("", *lines, sep="\n", file=out)
        return True


def _status(examined: Sequence[Examination]) -> int:
    outcomes = {each.outcome for each in examined}
    return 1 if "broken" in outcomes else UNREACHABLE if "unreachable" in outcomes else 0


# ---- what is asked for ----


def _patience(given: object) -> float:
    from antwort.doctor.examiner import TIMEOUT_SECONDS

    if given is None:
        return TIMEOUT_SECONDS
    try:
        seconds = float(str(given))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST:
        raise Misused(f"--timeout must be a number of seconds, more than 0 and at most {_LONGEST:g}.")
    return seconds


def _read(given: Mapping[str, object]) -> Loaded | None:
    """The settings; whoever names an address can do without those that cannot be read."""
    from antwort.config.loading import read

    by_url = isinstance(given.get("url"), str)
    wanted = ("config",) if by_url else ("config", "backend_key_file")
    try:
        return read({name: given[name] for name in wanted if name in given})
    except CannotStart as exc:
        if not by_url or "config" in given or "write" in given:
            raise
        print(f"antwort: {exc} That does not matter here.", file=sys.stderr)
        return None


def _above(loaded: Loaded | None, file: Path) -> str:
    """What sets the backends in force, where that is not the file; empty where it is, or where there are none."""
    origin = loaded.origin("backends") if loaded and loaded.settings.backends else ""
    return "" if origin.startswith(f"{file}:") else origin


def _settings(loaded: Loaded | None) -> Settings:
    from antwort.config.settings import Settings

    return Settings() if loaded is None else loaded.settings
