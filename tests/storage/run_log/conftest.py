"""The run logs that one suite of behaviours runs against."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from antwort.storage.base import ResponseStore
from antwort.storage.run_log import RunLog
from runs_cases import ONE, TWO
from runs_home import Home, memory_home, postgres_home, sqlite_home


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def home(request: pytest.FixtureRequest) -> AsyncGenerator[Home, None]:
    home: Home
    match request.param:
        case "memory":
            home = memory_home()
        case "sqlite":
            home = await sqlite_home(request.getfixturevalue("path"))
        case _:
            home = await postgres_home(request.getfixturevalue("migrated_database"))
    yield home
    await home.close()


@pytest.fixture
async def log(home: Home) -> RunLog:
    """Two workers have joined."""
    log = await home.open()
    await log.join(ONE)
    await log.join(TWO)
    return log


@pytest.fixture
def store(home: Home) -> ResponseStore:
    return home.store
