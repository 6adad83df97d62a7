"""Make the events of a response that has ended from the response itself. Pure.

They are those of a run that wrote every text in one delta and one item after the other; their fold is the response.
"""

from __future__ import annotations

from collections.abc import Iterator

from antwort.api.events import (
    AnnotationAdded,
    ArgumentsDelta,
    ArgumentsDone,
    ContentPartAdded,
    ContentPartDone,
    CustomInputDelta,
    CustomInputDone,
    McpArgumentsDelta,
    McpArgumentsDone,
    McpCallCompleted,
    McpCallFailed,
    McpCallInProgress,
    McpListToolsCompleted,
    McpListToolsFailed,
    McpListToolsInProgress,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    RefusalDelta,
    RefusalDone,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    ResponseRequiresAction,
    StreamEvent,
    SummaryPartAdded,
    SummaryPartDone,
    SummaryTextDelta,
    SummaryTextDone,
    Terminal,
)
from antwort.api.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    McpCall,
    McpListTools,
    Message,
    OutputItem,
    OutputText,
    Reasoning,
    ReasoningText,
    Refusal,
    SummaryText,
)
from antwort.api.responses import Response
from antwort.api.wire import UNSET, replace
from antwort.engine.settings import LoopSettings


def replay_events(response: Response, settings: LoopSettings = LoopSettings()) -> list[StreamEvent]:  # noqa: B008 - a frozen value
    """Return the events from `response.created` to the terminal one. The settings say how a paused response ends."""
    fresh = replace(
        response,
        status="in_progress",
        output=(),
        usage=None,
        error=None,
        incomplete_details=None,
        completed_at=None,
    )
    events: list[StreamEvent] = [ResponseCreated(response=fresh), ResponseInProgress(response=fresh)]
    for at, item in enumerate(response.output):
        events += _shown(item, at)
        events.append(OutputItemDone(output_index=at, item=item))
    events.append(_ending(response, settings))
    return events


def _ending(response: Response, settings: LoopSettings) -> Terminal:
    match response.status:
        case "failed":
            return ResponseFailed(response=response)
        case "incomplete" | "cancelled":
            return ResponseIncomplete(response=response)
        case "requires_action" if settings.requires_action == "event":
            return ResponseRequiresAction(response=response)
        case _:
            return ResponseCompleted(response=response)


# ---- an item: how it was added, and what happened inside it ----


def _shown(item: OutputItem, at: int) -> Iterator[StreamEvent]:
    match item:
        case Message():
            return _message(item, at)
        case Reasoning():
            return _reasoning(item, at)
        case FunctionCall():
            return _function_call(item, at)
        case CustomToolCall():
            return _custom_call(item, at)
        case McpCall():
            return _mcp_call(item, at)
        case McpListTools():
            return _list_tools(item, at)
        case FunctionCallOutput():
            return _added(replace(item, status="in_progress", output="", is_error=UNSET), at)
        case CustomToolCallOutput():
            return _added(replace(item, status="in_progress", output=""), at)
        case _:
            return _added(item, at)  # nothing grows inside it: it comes whole


def _added(item: OutputItem, at: int) -> Iterator[StreamEvent]:
    yield OutputItemAdded(output_index=at, item=item)


def _message(item: Message, at: int) -> Iterator[StreamEvent]:
    yield from _added(replace(item, status="in_progress", content=()), at)
    for index, part in enumerate(item.content):
        if isinstance(part, Refusal):
            yield from _refusal(part, item.id, at, index)
        elif isinstance(part, OutputText):
            yield from _text(part, item.id, at, index)


def _text(part: OutputText, item_id: str, at: int, index: int) -> Iterator[StreamEvent]:
    text, logprobs = part.text, part.logprobs
    yield ContentPartAdded(item_id=item_id, output_index=at, content_index=index, part=OutputText(text=""))
    if text or logprobs:
        yield OutputTextDelta(item_id=item_id, output_index=at, content_index=index, delta=text, logprobs=logprobs)
    for number, annotation in enumerate(part.annotations):
        yield AnnotationAdded(
            item_id=item_id, output_index=at, content_index=index, annotation_index=number, annotation=annotation
        )
    yield OutputTextDone(item_id=item_id, output_index=at, content_index=index, text=text, logprobs=logprobs)
    yield ContentPartDone(item_id=item_id, output_index=at, content_index=index, part=part)


def _refusal(part: Refusal, item_id: str, at: int, index: int) -> Iterator[StreamEvent]:
    text = part.refusal
    yield ContentPartAdded(item_id=item_id, output_index=at, content_index=index, part=Refusal(refusal=""))
    if text:
        yield RefusalDelta(item_id=item_id, output_index=at, content_index=index, delta=text)
    yield RefusalDone(item_id=item_id, output_index=at, content_index=index, refusal=text)
    yield ContentPartDone(item_id=item_id, output_index=at, content_index=index, part=part)


def _reasoning(item: Reasoning, at: int) -> Iterator[StreamEvent]:
    """What is sealed comes when the item is done."""
    content = UNSET if item.content is UNSET else ()
    yield from _added(replace(item, status="in_progress", summary=(), content=content, encrypted_content=UNSET), at)
    for index, part in enumerate(item.content or ()):
        yield from _thought(part, item.id, at, index)
    for index, summary in enumerate(item.summary):
        yield from _summary(summary, item.id, at, index)


def _thought(part: ReasoningText, item_id: str, at: int, index: int) -> Iterator[StreamEvent]:
    yield ContentPartAdded(item_id=item_id, output_index=at, content_index=index, part=ReasoningText(text=""))
    if part.text:
        yield ReasoningTextDelta(item_id=item_id, output_index=at, content_index=index, delta=part.text)
    yield ReasoningTextDone(item_id=item_id, output_index=at, content_index=index, text=part.text)
    yield ContentPartDone(item_id=item_id, output_index=at, content_index=index, part=part)


def _summary(part: SummaryText, item_id: str, at: int, index: int) -> Iterator[StreamEvent]:
    yield SummaryPartAdded(item_id=item_id, output_index=at, summary_index=index, part=SummaryText(text=""))
    if part.text:
        yield SummaryTextDelta(item_id=item_id, output_index=at, summary_index=index, delta=part.text)
    yield SummaryTextDone(item_id=item_id, output_index=at, summary_index=index, text=part.text)
    yield SummaryPartDone(item_id=item_id, output_index=at, summary_index=index, part=part)


def _function_call(item: FunctionCall, at: int) -> Iterator[StreamEvent]:
    yield from _added(replace(item, status="in_progress", arguments=""), at)
    if item.arguments:
        yield ArgumentsDelta(item_id=item.id, output_index=at, delta=item.arguments)
    yield ArgumentsDone(item_id=item.id, output_index=at, name=item.name, arguments=item.arguments)


def _custom_call(item: CustomToolCall, at: int) -> Iterator[StreamEvent]:
    yield from _added(replace(item, status="in_progress", input=""), at)
    if item.input:
        yield CustomInputDelta(item_id=item.id, output_index=at, delta=item.input)
    yield CustomInputDone(item_id=item.id, output_index=at, input=item.input)


def _mcp_call(item: McpCall, at: int) -> Iterator[StreamEvent]:
    """A call that was not run has no outcome."""
    yield from _added(replace(item, status="in_progress", arguments="", output=None, error=None), at)
    yield McpCallInProgress(item_id=item.id, output_index=at)
    if item.arguments:
        yield McpArgumentsDelta(item_id=item.id, output_index=at, delta=item.arguments)
    yield McpArgumentsDone(item_id=item.id, output_index=at, arguments=item.arguments)
    if item.status == "failed":
        yield McpCallFailed(item_id=item.id, output_index=at)
    elif item.output is not None:
        yield McpCallCompleted(item_id=item.id, output_index=at)


def _list_tools(item: McpListTools, at: int) -> Iterator[StreamEvent]:
    yield from _added(replace(item, status="in_progress", tools=(), error=UNSET), at)
    yield McpListToolsInProgress(item_id=item.id, output_index=at)
    if item.error is not UNSET:
        yield McpListToolsFailed(item_id=item.id, output_index=at)
    elif item.status == "completed":
        yield McpListToolsCompleted(item_id=item.id, output_index=at)
