"""What the fold keeps of calls is held against what the items say, before each step of every run that is made here."""

from __future__ import annotations

import pytest

from antwort.api.items import CustomToolCall, FunctionCall, McpCall
from antwort.engine import loop
from antwort.engine.draft import Run
from antwort.engine.plan import Plan
from antwort.engine.steps import Step, next_step, open_calls, waiting_calls


@pytest.fixture(autouse=True)
def kept_as_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "next_step", _checked_step)


def _checked_step(run: Run, plan: Plan) -> Step:
    if run.turns:
        assert waiting_calls(run, plan.toolbox) == open_calls(run, plan.toolbox)
        last = run.output[(0, *run.turn_ends)[-2] : run.turn_ends[-1]]
        assert run.has_called == any(isinstance(item, FunctionCall | CustomToolCall | McpCall) for item in last)
    else:
        assert not run.waiting
        assert not run.has_called
    return next_step(run, plan)
