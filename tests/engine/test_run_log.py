"""What the log says of a run that failed."""

from __future__ import annotations

import pytest

from antwort.engine.engine import Engine
from antwort.errors import AntwortError, BackendError, BackendRefused, ContextTooLong
from antwort.testing import ScriptedProvider


@pytest.mark.parametrize("error", [BackendRefused("Bad prompt: PRIVATE"), ContextTooLong("Too long: PRIVATE")])
async def test_of_a_request_that_the_backend_refused_only_the_code_is_logged(
    error: AntwortError, caplog: pytest.LogCaptureFixture
) -> None:
    """What a backend says of a request may have the prompt in it; the client is told, and nobody else."""
    async with Engine(ScriptedProvider([error])) as engine:
        with pytest.raises(AntwortError, match="PRIVATE"):
            await engine.create(input="PRIVATE")
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("the run resp_")
    assert line.endswith(f" failed: {error.code}")


async def test_of_a_backend_that_failed_the_reason_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with Engine(ScriptedProvider([BackendError("The backend failed to answer.")])) as engine:
        with pytest.raises(BackendError):
            await engine.create(input="Hello")
    [line] = [record.getMessage() for record in caplog.records]
    assert line.endswith(" failed: backend_error: The backend failed to answer.")
