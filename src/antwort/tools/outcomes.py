"""What came of a call becomes its one result, whatever it was."""

from __future__ import annotations

import logging
from typing import TypeGuard

import msgspec

from antwort.api.items import ResultPart
from antwort.tools.base import ToolCall, ToolContext, ToolResult
from antwort.tools.function import ClientsTurn

_log = logging.getLogger("antwort.tools")

_MOST_CAUSES = 3


class Raised(msgspec.Struct, frozen=True):
    error: BaseException


def caught_here(error: BaseException) -> Raised:
    """For whoever catches it and keeps it: without their own frame, as that and the error would hold on to each other,
    and to the whole run.
    """
    trace = error.__traceback__
    return Raised(error.with_traceback(None if trace is None else trace.tb_next))


class Late(msgspec.Struct, frozen=True):
    seconds: float


def is_plain(outcome: object, call_id: str, most: int) -> TypeGuard[ToolResult]:
    """Whether it is the result of the call as it stands, with nothing to be cut or told: as nearly all are."""
    return (
        type(outcome) is ToolResult
        and outcome.call_id == call_id
        and not outcome.is_error
        and type(outcome.output) is str
        and outcome.output.isascii()
        and len(outcome.output) <= most
    )


def conclude(outcome: object, call: ToolCall, context: ToolContext) -> ToolResult:
    """The one result of a call, whatever came of it."""
    match outcome:
        case ToolResult(call_id=call.id) if _is_output(outcome.output):
            if outcome.is_error:
                _report(call, context, "it answered with an error")
            return outcome
        case Raised(error=ClientsTurn() as turn):
            raise turn  # not a failure: it says whose the call is
        case Raised(error=error):
            _report(call, context, "it raised", error)
            problem = _message(error)
        case Late(seconds=seconds):
            context.failed("timeout")
            _report(call, context, f"no answer within {seconds:g} s")
            problem = f"The tool {call.name!r} did not answer within {seconds:g} s."
        case _:
            _report(call, context, f"it answered with a {type(outcome).__name__} that is no result of this call")
            problem = f"The tool {call.name!r} did not answer with a result of this call."
    return ToolResult(call.id, problem, is_error=True)


def _is_output(output: object) -> bool:
    """Executors come from anywhere; what is no output would fail much later, and take the response with it."""
    if isinstance(output, tuple):
        return all(isinstance(part, ResultPart) for part in output)
    return isinstance(output, str)


def _report(call: ToolCall, context: ToolContext, what: str, error: BaseException | None = None) -> None:
    """Neither arguments nor output: they are the client's."""
    where = (call.id, context.response_id)
    _log.warning("The tool %r failed: %s (call %s of %s)", call.name, what, *where, exc_info=error)


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = ""
    if isinstance(error, BaseExceptionGroup):
        text = f"{text}: {'; '.join(_message(cause) for cause in error.exceptions[:_MOST_CAUSES])}"
    return text or type(error).__name__
