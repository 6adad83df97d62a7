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
)
from antwort.api.items import (
    ContentPart,
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
        events += _item_events(item, at)
        events.append(OutputItemDone(output_index=at, item=item))
    match response.status:
        case "failed":
            events.append(ResponseFailed(response=response))
        case "incomplete" | "cancelled":
            events.append(ResponseIncomplete(response=response))
        case "requires_action" if settings.requires_action == "event":
            events.append(ResponseRequiresAction(response=response))
        case _:
            events.append(ResponseCompleted(response=response))
    return events


def _item_events(item: OutputItem, at: int) -> Iterator[StreamEvent]:
    """Yield how an item was added, and what happened inside it."""
    match item:
        case Message():
            yield OutputItemAdded(output_index=at, item=replace(item, status="in_progress", content=()))
            for index, part in enumerate(item.content):
                yield from _part_events(part, item.id, at, index)
        case Reasoning():  # what is sealed comes when the item is done
            bare = replace(item, status="in_progress", summary=(), encrypted_content=UNSET)
            if item.content is not UNSET:
                bare = replace(bare, content=())
            yield OutputItemAdded(output_index=at, item=bare)
            for index, thought in enumerate(item.content or ()):
                yield from _part_events(thought, item.id, at, index)
            for index, summary in enumerate(item.summary):
                empty = SummaryText(text="")
                yield SummaryPartAdded(item_id=item.id, output_index=at, summary_index=index, part=empty)
                if summary.text:
                    yield SummaryTextDelta(item_id=item.id, output_index=at, summary_index=index, delta=summary.text)
                yield SummaryTextDone(item_id=item.id, output_index=at, summary_index=index, text=summary.text)
                yield SummaryPartDone(item_id=item.id, output_index=at, summary_index=index, part=summary)
        case FunctionCall():
            yield OutputItemAdded(output_index=at, item=replace(item, status="in_progress", arguments=""))
            if item.arguments:
                yield ArgumentsDelta(item_id=item.id, output_index=at, delta=item.arguments)
            yield ArgumentsDone(item_id=item.id, output_index=at, name=item.name, arguments=item.arguments)
        case CustomToolCall():
            yield OutputItemAdded(output_index=at, item=replace(item, status="in_progress", input=""))
            if item.input:
                yield CustomInputDelta(item_id=item.id, output_index=at, delta=item.input)
            yield CustomInputDone(item_id=item.id, output_index=at, input=item.input)
        case McpCall():  # a call that was not run has no outcome
            bare_call = replace(item, status="in_progress", arguments="", output=None, error=None)
            yield OutputItemAdded(output_index=at, item=bare_call)
            yield McpCallInProgress(item_id=item.id, output_index=at)
            if item.arguments:
                yield McpArgumentsDelta(item_id=item.id, output_index=at, delta=item.arguments)
            yield McpArgumentsDone(item_id=item.id, output_index=at, arguments=item.arguments)
            if item.status == "failed":
                yield McpCallFailed(item_id=item.id, output_index=at)
            elif item.output is not None:
                yield McpCallCompleted(item_id=item.id, output_index=at)
        case McpListTools():
            yield OutputItemAdded(output_index=at, item=replace(item, status="in_progress", tools=(), error=UNSET))
            yield McpListToolsInProgress(item_id=item.id, output_index=at)
            if item.error is not UNSET:
                yield McpListToolsFailed(item_id=item.id, output_index=at)
            elif item.status == "completed":
                yield McpListToolsCompleted(item_id=item.id, output_index=at)
        case FunctionCallOutput():
            bare_output = replace(item, status="in_progress", output="", is_error=UNSET)
            yield OutputItemAdded(output_index=at, item=bare_output)
        case CustomToolCallOutput():
            yield OutputItemAdded(output_index=at, item=replace(item, status="in_progress", output=""))
        case _:
            yield OutputItemAdded(output_index=at, item=item)  # nothing grows inside it: it comes whole


def _part_events(part: ContentPart | ReasoningText, item_id: str, at: int, index: int) -> Iterator[StreamEvent]:
    """Yield what happened in a part of a message, or of the reasoning."""
    match part:
        case OutputText():
            text, logprobs = part.text, part.logprobs
            empty = OutputText(text="")
            yield ContentPartAdded(item_id=item_id, output_index=at, content_index=index, part=empty)
            if text or logprobs:
                yield OutputTextDelta(
                    item_id=item_id, output_index=at, content_index=index, delta=text, logprobs=logprobs
                )
            for number, annotation in enumerate(part.annotations):
                yield AnnotationAdded(
                    item_id=item_id,
                    output_index=at,
                    content_index=index,
                    annotation_index=number,
                    annotation=annotation,
                )
            yield OutputTextDone(item_id=item_id, output_index=at, content_index=index, text=text, logprobs=logprobs)
        case Refusal():
            yield ContentPartAdded(item_id=item_id, output_index=at, content_index=index, part=Refusal(refusal=""))
            if part.refusal:
                yield RefusalDelta(item_id=item_id, output_index=at, content_index=index, delta=part.refusal)
            yield RefusalDone(item_id=item_id, output_index=at, content_index=index, refusal=part.refusal)
        case ReasoningText():
            yield ContentPartAdded(item_id=item_id, output_index=at, content_index=index, part=ReasoningText(text=""))
            if part.text:
                yield ReasoningTextDelta(item_id=item_id, output_index=at, content_index=index, delta=part.text)
            yield ReasoningTextDone(item_id=item_id, output_index=at, content_index=index, text=part.text)
        case _:
            return
    yield ContentPartDone(item_id=item_id, output_index=at, content_index=index, part=part)
