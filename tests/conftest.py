"""What holds in every test: signals are obeyed, and each stream that a run sends passes the grammar checker."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from antwort.testing import check_streams

pytest_plugins = ["local_model", "postgres"]


def pytest_configure() -> None:
    """What tests start obeys signals, whoever started the tests: a background job is told to ignore SIGINT, and a
    program under `nohup` SIGHUP. Programs inherit that; they do not inherit a handler.
    """
    for each in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(each) is signal.SIG_IGN:
            signal.signal(each, lambda *_: None)


@pytest.fixture(autouse=True)
def every_stream_is_grammatical() -> Iterator[None]:
    with check_streams():
        yield
