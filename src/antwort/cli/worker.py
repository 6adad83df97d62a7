"""`antwort worker`: a process that makes background responses, and answers nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from antwort.cli.memory import configure_malloc, release_memory
from antwort.cli.process import fill_gaps, run_to_end, spare_the_collector
from antwort.cli.say import complain, say
from antwort.config.problems import CannotStart

if TYPE_CHECKING:
    from antwort.config.settings import Settings

_NO_DATABASE = (
    "A worker needs a database that it shares with the servers whose responses it makes: set `database` to one of "
    "PostgreSQL, such as postgresql://antwort@localhost/antwort."
)
_NO_WORK = "A worker with background.at_once: 0, or background.enabled: false, would have nothing to do."


def run(given: Mapping[str, object]) -> int:
    from antwort.cli.serve import read_settings

    fill_gaps()
    try:
        settings, file = read_settings(given)
        _check(settings)
    except CannotStart as exc:
        return complain(exc)
    return run_to_end(work(settings, file))


def _check(settings: Settings) -> None:
    if settings.database is None:
        raise CannotStart(_NO_DATABASE)
    if not (settings.background.at_once and settings.background.enabled):
        raise CannotStart(_NO_WORK)


async def work(settings: Settings, file: Path | None = None) -> int:
    """Until a signal says to stop; the exit status. Raises `CannotStart`."""
    from antwort.app import build
    from antwort.cli.greeting import worker_headline, worker_rows, written
    from antwort.cli.signals import Told, unless

    configure_malloc()
    releasing = asyncio.create_task(release_memory())
    app = await build(settings)
    try:
        with Told() as told:
            await app.start()
            spare_the_collector()
            rows = await unless(told.stop, worker_rows(app, settings, file))
            say(worker_headline(settings), *written(rows or ()))
            await told.stop.wait()
            app.leave()
            await unless(told.hurry, app.engine.drain(settings.server.drain))
            return 1 if told.hurry.is_set() else 0
    finally:
        releasing.cancel()
        await app.close()
