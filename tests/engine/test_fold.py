"""The response as the fold of its events, and the events that end it."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from antwort.api.events import (
    Batch,
    CallEnded,
    ContentPartAdded,
    McpArgumentsDone,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    ResponseQueued,
    ResponseRequiresAction,
    RunEvent,
    TurnEnded,
)
from antwort.api.items import McpCall, McpListTools, Message, OutputItem, OutputText
from antwort.api.responses import (
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    Response,
    ResponseError,
    Usage,
)
from antwort.api.status import IllegalTransition, ResponseStatus
from antwort.api.wire import replace, to_plain
from antwort.engine.loop.fold import Finish, Run, as_ours, ending, fold, interrupted, settled
from antwort.errors import (
    AntwortError,
    BackendCut,
    BackendUnavailable,
    Cancelled,
    ClientLeft,
    DeadlinePassed,
    RateLimited,
    ShuttingDown,
)
from antwort.testing import tokens
from plan_kit import called, result, said, server_called

RESPONSE = Response(id="resp_1", created_at=1, status="in_progress", model="m")
RUN = Run(RESPONSE)


def of(status: ResponseStatus) -> Response:
    return replace(RESPONSE, status=status)


def holding(*items: OutputItem) -> Run:
    return Run(replace(RESPONSE, output=items))


# ---- items ----


def test_an_item_is_added_at_the_end_and_replaced_in_its_place() -> None:
    opened = Message(id="msg_1", role="assistant", status="in_progress", content=())
    run = fold(RUN, [OutputItemAdded(output_index=0, item=opened), OutputItemAdded(output_index=1, item=called(1))])
    assert run.output == (opened, called(1))
    run = fold(run, [OutputItemDone(output_index=0, item=said("Hi"))])
    assert run.output == (said("Hi"), called(1))


def test_a_delta_changes_nothing_and_costs_nothing() -> None:
    run = holding(said("Hi"))
    delta = OutputTextDelta(item_id="msg_1", output_index=0, content_index=0, delta="x")
    part = ContentPartAdded(item_id="msg_1", output_index=0, content_index=0, part=OutputText(text=""))
    assert fold(run, [delta]) is run
    assert fold(run, [part]) is run


def test_an_open_server_call_keeps_its_arguments_for_whoever_runs_it() -> None:
    run = holding(said("Hm."), server_called(1, arguments=""), said("and"))
    run = fold(run, [McpArgumentsDone(item_id="mcp_1", output_index=1, arguments='{"n":1}')])
    assert run.output == (said("Hm."), server_called(1, arguments='{"n":1}'), said("and"))


def test_a_fold_is_its_events_one_after_the_other() -> None:
    events: Batch = [OutputItemAdded(output_index=0, item=said("a")), TurnEnded(finish="stop")]
    one_by_one = RUN
    for event in events:
        one_by_one = fold(one_by_one, [event])
    assert fold(RUN, events) == one_by_one != RUN
    assert fold(RUN, []) is RUN


# ---- turns and calls ----


def test_the_end_of_a_turn_is_counted_with_its_place() -> None:
    run = fold(
        RUN,
        [
            OutputItemAdded(output_index=0, item=called(1)),
            TurnEnded(finish="tool_calls"),
            OutputItemAdded(output_index=1, item=result(1)),
            CallEnded(call_id="call_1", outcome="ran"),
            OutputItemAdded(output_index=2, item=said("Hi")),
            TurnEnded(finish="stop"),
        ],
    )
    assert run.last_turn is not None
    assert (run.turns, run.last_turn.finish, run.calls_run, run.turn_ends) == (2, "stop", 1, (1, 3))
    assert run.marks == (
        (1, TurnEnded(finish="tool_calls")),
        (2, CallEnded(call_id="call_1", outcome="ran")),
        (3, TurnEnded(finish="stop")),
    )


@pytest.mark.proves("MISTAKE-19")
def test_only_calls_that_ran_count_and_a_turn_over_the_limit_is_noted_once() -> None:
    run = fold(
        RUN,
        [
            TurnEnded(finish="tool_calls"),
            CallEnded(call_id="call_1", outcome="ran"),
            CallEnded(call_id="call_2", outcome="refused"),
            CallEnded(call_id="call_3", outcome="over_limit"),
            CallEnded(call_id="call_4", outcome="over_limit"),
            TurnEnded(finish="tool_calls"),
            CallEnded(call_id="call_5", outcome="over_limit"),
        ],
    )
    assert (run.calls_run, run.over_limit_turns) == (1, (1, 2))


@pytest.mark.proves("FR-028")
def test_usage_is_summed_over_the_turns_details_included() -> None:
    def spent(n: int) -> Usage:
        return Usage(
            input_tokens=100 * n,
            output_tokens=10 * n,
            total_tokens=110 * n,
            input_tokens_details=InputTokensDetails(cached_tokens=5 * n, cache_write_tokens=3 * n),
            output_tokens_details=OutputTokensDetails(reasoning_tokens=7 * n),
        )

    run = fold(RUN, [TurnEnded(finish="tool_calls", usage=spent(1)), TurnEnded(finish="stop", usage=spent(2))])
    assert run.response.usage == spent(3)


@pytest.mark.proves("RULING-4")
def test_usage_is_null_when_no_turn_told_it_and_what_one_told_is_kept() -> None:
    assert fold(RUN, [TurnEnded(finish="stop"), TurnEnded(finish="stop")]).response.usage is None
    run = fold(RUN, [TurnEnded(finish="stop", usage=tokens(3, 4)), TurnEnded(finish="stop")])
    assert run.response.usage == tokens(3, 4)


# ---- statuses ----

ALL: tuple[ResponseStatus, ...] = (
    "queued",
    "in_progress",
    "completed",
    "incomplete",
    "failed",
    "cancelled",
    "requires_action",
)
ALLOWED = {
    "queued": {"queued", "in_progress", "cancelled"},
    "in_progress": {"in_progress", "completed", "incomplete", "failed", "cancelled", "requires_action"},
}
LIFECYCLE: dict[ResponseStatus, Any] = {
    "queued": ResponseQueued,
    "in_progress": ResponseInProgress,
    "completed": ResponseCompleted,
    "incomplete": ResponseIncomplete,
    "failed": ResponseFailed,
    "cancelled": ResponseIncomplete,
    "requires_action": ResponseRequiresAction,
}


@pytest.mark.proves("CP-024", "FR-020")
@pytest.mark.parametrize("new", ALL)
@pytest.mark.parametrize("old", ALL)
def test_a_status_goes_only_where_it_may(old: ResponseStatus, new: ResponseStatus) -> None:
    event = LIFECYCLE[new](response=of(new))
    if new in ALLOWED.get(old, {old}):
        assert fold(Run(of(old)), [event]).response.status == new
    else:
        with pytest.raises(IllegalTransition, match=f"from {old} to {new}"):
            fold(Run(of(old)), [event])


@pytest.mark.proves("CP-024")
@pytest.mark.parametrize("old", ["queued", "completed", "incomplete", "failed", "cancelled", "requires_action"])
def test_a_run_that_does_not_run_cannot_end(old: ResponseStatus) -> None:
    with pytest.raises(IllegalTransition):
        ending(Run(of(old)), Finish("completed" if old != "completed" else "requires_action"))
    with pytest.raises(IllegalTransition):
        interrupted(Run(of(old)), BackendCut("cut") if old != "failed" else DeadlinePassed())


def test_a_run_is_announced_when_its_response_is_created() -> None:
    assert not RUN.is_announced
    assert fold(RUN, [ResponseCreated(response=RESPONSE)]).is_announced


@pytest.mark.proves("RULING-10")
def test_a_keep_alive_takes_nothing_away() -> None:
    """It carries the response as it began."""
    run = fold(RUN, [OutputItemAdded(output_index=0, item=said("Hi")), TurnEnded(finish="stop", usage=tokens(1, 1))])
    assert fold(run, [ResponseInProgress(response=RESPONSE)]) == run


# ---- closing what is open ----


@pytest.mark.proves("RULING-11", "CP-005")
def test_what_is_still_open_is_closed_and_the_rest_left_alone() -> None:
    listing = McpListTools(id="mcpl_1", server_label="depot", tools=(), status="in_progress")
    run = holding(
        said("Hi"),
        server_called(1),
        server_called(2, status="completed", output="3"),
        server_called(3, status="calling"),
        server_called(4, status="failed", error="no"),
        called(5, status="incomplete"),
        listing,
    )
    assert settled(run, "incomplete") == [
        OutputItemDone(output_index=1, item=server_called(1, status="incomplete")),
        OutputItemDone(output_index=3, item=server_called(3, status="incomplete")),
        OutputItemDone(output_index=6, item=replace(listing, status="incomplete")),
    ]


@pytest.mark.proves("MIXED-1")
def test_a_servers_call_in_a_paused_turn_is_finished_without_an_output() -> None:
    (event,) = settled(holding(server_called(1, arguments='{"n":1}'), called(2)), "completed")
    assert event == OutputItemDone(output_index=0, item=server_called(1, arguments='{"n":1}', status="completed"))
    assert isinstance(event, OutputItemDone)
    assert isinstance(event.item, McpCall)
    assert (event.item.output, event.item.error) == (None, None)


def test_where_all_is_closed_nothing_is_settled() -> None:
    assert settled(holding(said("Hi"), called(1), result(1)), "incomplete") == []


# ---- the end ----


def test_a_completed_response_says_when() -> None:
    event = ending(RUN, Finish("completed"))
    assert isinstance(event, ResponseCompleted)
    assert event.response == replace(RESPONSE, status="completed", completed_at=event.response.completed_at)
    assert isinstance(event.response.completed_at, int)


@pytest.mark.parametrize("reason", ["max_output_tokens", "max_turns", "max_tool_calls", "content_filter"])
def test_an_incomplete_response_says_why(reason: str) -> None:
    event = ending(RUN, Finish("incomplete", reason))
    details = IncompleteDetails(reason=reason)
    assert event == ResponseIncomplete(response=replace(RESPONSE, status="incomplete", incomplete_details=details))


@pytest.mark.proves("FR-019", "FR-026")
@pytest.mark.parametrize(
    ("setting", "kind", "status"),
    [
        ("status", ResponseCompleted, "requires_action"),
        ("event", ResponseRequiresAction, "requires_action"),
        ("completed", ResponseCompleted, "completed"),
    ],
)
def test_how_a_response_says_that_the_client_must_act(
    setting: Literal["status", "event", "completed"], kind: type[RunEvent], status: str
) -> None:
    event = ending(holding(called(1)), Finish("requires_action"), setting)
    assert (type(event), event.response.status) == (kind, status)
    assert event.response.output == (called(1),)
    assert (event.response.completed_at is not None) == (status == "completed")


@pytest.mark.parametrize("setting", ["status", "event", "completed"])
def test_the_setting_for_the_clients_calls_touches_no_other_end(
    setting: Literal["status", "event", "completed"],
) -> None:
    assert type(ending(RUN, Finish("completed"), setting)) is ResponseCompleted
    assert type(ending(RUN, Finish("incomplete", "max_turns"), setting)) is ResponseIncomplete


@pytest.mark.proves("FR-014")
def test_a_passed_deadline_is_incomplete() -> None:
    details = IncompleteDetails(reason="deadline")
    expected = replace(RESPONSE, status="incomplete", incomplete_details=details)
    assert interrupted(RUN, DeadlinePassed()) == ResponseIncomplete(response=expected)


@pytest.mark.proves("RULING-9", "FR-014", "FR-030", "EN-040")
@pytest.mark.parametrize("reason", [Cancelled(), ClientLeft()])
def test_a_run_that_was_stopped_is_cancelled_in_the_event_that_clients_know(reason: Exception) -> None:
    assert interrupted(RUN, reason) == ResponseIncomplete(response=of("cancelled"))


@pytest.mark.proves("FR-030", "EN-036", "TR-016")
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (BackendCut("It broke off."), ResponseError(code="backend_stream_cut", message="It broke off.")),
        (BackendUnavailable("Not there."), ResponseError(code="backend_unavailable", message="Not there.")),
        (
            RateLimited("Too many."),
            ResponseError(code="rate_limit_exceeded", message="Too many.", type="rate_limit_error"),
        ),
        (ShuttingDown(), ResponseError(code="server_shutting_down", message="The server is shutting down.")),
        (
            ValueError("/etc/secret"),
            ResponseError(code="server_error", message="The server had an internal error."),
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_goes_wrong_is_a_failed_response_with_its_error(error: Exception, told: ResponseError) -> None:
    expected = ResponseFailed(response=replace(RESPONSE, status="failed", error=told))
    assert interrupted(RUN, error) == expected


def test_an_error_of_ours_stays_what_it_is() -> None:
    error = BackendCut("cut")
    assert as_ours(error) is error
    assert isinstance(as_ours(KeyError("x")), AntwortError)


def test_an_ending_keeps_what_the_run_came_to() -> None:
    run = fold(RUN, [OutputItemAdded(output_index=0, item=said("Hi")), TurnEnded(finish="stop", usage=tokens(2, 1))])
    for event in (ending(run, Finish("completed")), interrupted(run, Cancelled()), interrupted(run, ValueError())):
        assert (event.response.output, event.response.usage) == ((said("Hi"),), tokens(2, 1))


@pytest.mark.proves("CP-029")
def test_an_empty_end_has_empty_lists_and_all_keys() -> None:
    plain = to_plain(ending(RUN, Finish("completed")).response)
    assert (plain["output"], plain["tools"]) == ([], [])
    only_where_given = {"conversation", "user", "max_turns", "deadline", "token_budget"}
    assert set(Response.__struct_fields__) - only_where_given == set(plain)
