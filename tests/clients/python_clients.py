"""The real Python clients against a running server: each through every case, streamed and not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clients.ground import Ground, started
from clients.python import PYTHON_CLIENTS, plays_of, python_client
from clients.trying import NotApplicable, play

pytestmark = pytest.mark.xdist_group("clients")

TRIALS = [(client, case) for client in PYTHON_CLIENTS for case in plays_of(client)]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with started(tmp_path_factory.mktemp("ground")) as running:
        yield running
        assert not running.faults()


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("client", "case"), TRIALS, ids=[f"{client}-{case}" for client, case in TRIALS])
async def test_a_client_gets_through(ground: Ground, client: str, case: str, streamed: bool) -> None:
    try:
        await play(python_client(client), case, ground, streamed=streamed)
    except NotApplicable as why:
        pytest.skip(str(why))
