"""The demo model for tests that ask a real one: fetched once as a user would fetch it, and kept in the project."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from antwort.local.demo import demo_path
from antwort.local.download import pull

KEPT = Path(__file__).resolve().parents[1] / ".models"
"""A data folder of the project's own; `make clean` removes it."""


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The file. All workers share it; the first that comes fetches it."""
    with _alone(KEPT):
        return pull(KEPT)


def keep_in(data_folder: Path, model: Path) -> Path:
    """The model in a data folder of a test's own, where `antwort serve --data` finds it, without a copy."""
    path = demo_path(data_folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(model)
    return path


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
