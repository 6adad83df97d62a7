"""What the tests of a turn share: deltas played with ids that can be written down, and events in the fewest words."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from antwort.api.events import (
    ArgumentsDelta,
    ArgumentsDone,
    Batch,
    ContentPartAdded,
    ContentPartDone,
    CustomInputDelta,
    CustomInputDone,
    McpArgumentsDelta,
    McpArgumentsDone,
    McpCallInProgress,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    RefusalDelta,
    RefusalDone,
)
from antwort.api.items import (
    ContentPart,
    CustomToolCall,
    FunctionCall,
    McpCall,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
    Refusal,
)
from antwort.api.status import ItemStatus
from antwort.api.wire import UNSET, UnsetType, replace
from antwort.engine.loop.call_display import Shown
from antwort.engine.loop.turn import Turn
from antwort.errors import BackendError
from antwort.providers.base import Delta

Style: TypeAlias = Literal["text", "summary"]


# ---- playing ----


def shown(name: str) -> Shown:
    """`stock` is a server's tool, known there as `stock_level`. `patch` is a free-form tool, and so is `editor__sum`,
    whose input must be digits; `editor__open` is a function of the same namespace. All else is a function; `weather` is
    run here.
    """
    return _SHOWN.get(name) or Shown(name, is_clients=name != "weather")


_SHOWN = {
    "stock": Shown("stock_level", "depot"),
    "patch": Shown("patch", is_custom=True, is_clients=True),
    "editor__sum": Shown("sum", namespace="editor", is_custom=True, is_clients=True, fits=str.isdecimal),
    "editor__open": Shown("open", namespace="editor", is_clients=True),
}


def play(*deltas: Delta, **how: Any) -> Batch:
    """All events of the deltas, with ids that are a prefix and a count. How it is played: see `play_in`."""
    return [event for batch in play_in([deltas], **how) for event in batch]


def play_in(
    reads: Iterable[Sequence[Delta]],
    *,
    first: int = 0,
    style: Style = "text",
    aborted: bool = False,
    may_be_resumed: bool = False,
    may_be_malformed: bool = False,
) -> list[Batch]:
    """The batches: one for each read, and one for the end. An answer that is malformed breaks off where it is."""
    turn = Turn(first, shown, style, may_be_resumed=may_be_resumed)
    batches: list[Batch] = []
    try:
        for deltas in reads:
            batches.append([])
            for delta in deltas:
                turn.feed(delta)
            batches[-1] = turn.take()
    except BackendError:
        if not may_be_malformed:
            raise
        batches[-1], aborted = turn.take(), True
    if aborted:
        turn.abort()
    else:
        turn.finish()
    numbered: list[Batch] = _numbered([*batches, turn.take()], defaultdict(dict))
    return numbered


_ID = re.compile("([a-z]+)_([0-9a-f]{32})")


def _numbered(value: Any, known: dict[str, dict[str, int]]) -> Any:
    """The same with each id as its prefix and a count, by the order in which they come. A server's call and its item
    have the same count.
    """
    match value:
        case str() if found := _ID.fullmatch(value):
            prefix, random_part = found.groups()
            numbers = known["call" if prefix == "mcp" else prefix]
            return f"{prefix}_{numbers.setdefault(random_part, len(numbers) + 1)}"
        case msgspec.Struct():
            fields = {name: getattr(value, name) for name in value.__struct_fields__}
            return replace(value, **{name: _numbered(each, known) for name, each in fields.items()})
        case list() | tuple():
            return type(value)([_numbered(each, known) for each in value])
    return value


# ---- messages ----


def in_content(item_id: str, at: int, part: int = 0) -> dict[str, Any]:
    return {"item_id": item_id, "output_index": at, "content_index": part}


def text_part(item_id: str, at: int, *deltas: str, part: int = 0) -> Batch:
    where, text = in_content(item_id, at, part), "".join(deltas)
    return [
        ContentPartAdded(**where, part=OutputText(text="")),
        *(OutputTextDelta(**where, delta=delta) for delta in deltas),
        OutputTextDone(**where, text=text),
        ContentPartDone(**where, part=OutputText(text=text)),
    ]


def refusal_part(item_id: str, at: int, *deltas: str, part: int = 0) -> Batch:
    where, text = in_content(item_id, at, part), "".join(deltas)
    return [
        ContentPartAdded(**where, part=Refusal(refusal="")),
        *(RefusalDelta(**where, delta=delta) for delta in deltas),
        RefusalDone(**where, refusal=text),
        ContentPartDone(**where, part=Refusal(refusal=text)),
    ]


def message_opened(at: int, item_id: str) -> Batch:
    item = Message(id=item_id, role="assistant", status="in_progress", content=())
    return [OutputItemAdded(output_index=at, item=item)]


def message_closed(at: int, item_id: str, *content: ContentPart, status: ItemStatus = "completed") -> Batch:
    item = Message(id=item_id, role="assistant", status=status, content=content)
    return [OutputItemDone(output_index=at, item=item)]


def message(at: int, item_id: str, *deltas: str, status: ItemStatus = "completed") -> Batch:
    """A message of one text, from its opening to its end."""
    return [
        *message_opened(at, item_id),
        *text_part(item_id, at, *deltas),
        *message_closed(at, item_id, OutputText(text="".join(deltas)), status=status),
    ]


# ---- reasoning ----


def reasoning(at: int, item_id: str, *deltas: str, status: ItemStatus = "completed") -> Batch:
    where, text = in_content(item_id, at), "".join(deltas)
    part = ReasoningText(text=text)
    return [
        OutputItemAdded(output_index=at, item=Reasoning(id=item_id, content=(), status="in_progress")),
        ContentPartAdded(**where, part=ReasoningText(text="")),
        *(ReasoningTextDelta(**where, delta=delta) for delta in deltas),
        ReasoningTextDone(**where, text=text),
        ContentPartDone(**where, part=part),
        OutputItemDone(output_index=at, item=Reasoning(id=item_id, content=(part,), status=status)),
    ]


# ---- calls: the n-th one, at its place in the output ----


def call_opened(at: int, n: int, name: str) -> Batch:
    item = FunctionCall(id=f"fc_{n}", call_id=f"call_{n}", name=name, arguments="", status="in_progress")
    return [OutputItemAdded(output_index=at, item=item)]


def call_fed(at: int, n: int, delta: str) -> Batch:
    return [ArgumentsDelta(item_id=f"fc_{n}", output_index=at, delta=delta)]


def call_closed(at: int, n: int, name: str, arguments: str, status: ItemStatus = "completed") -> Batch:
    item = FunctionCall(id=f"fc_{n}", call_id=f"call_{n}", name=name, arguments=arguments, status=status)
    return [
        ArgumentsDone(item_id=f"fc_{n}", output_index=at, name=name, arguments=arguments),
        OutputItemDone(output_index=at, item=item),
    ]


def a_call(at: int, n: int, name: str, *deltas: str, status: ItemStatus = "completed") -> Batch:
    """A function's call, from its opening to its end."""
    fed = [event for delta in deltas for event in call_fed(at, n, delta)]
    return [*call_opened(at, n, name), *fed, *call_closed(at, n, name, "".join(deltas), status)]


def custom_call(
    at: int, n: int, name: str, *deltas: str, namespace: str | UnsetType = UNSET, status: ItemStatus = "completed"
) -> Batch:
    """A call of a free-form tool, the n-th of those, from its opening to its end."""
    here: dict[str, Any] = {"item_id": f"ctc_{n}", "output_index": at}
    item = CustomToolCall(
        id=f"ctc_{n}", call_id=f"call_{n}", name=name, input="", status="in_progress", namespace=namespace
    )
    whole = "".join(deltas)
    return [
        OutputItemAdded(output_index=at, item=item),
        *(CustomInputDelta(**here, delta=delta) for delta in deltas),
        CustomInputDone(**here, input=whole),
        OutputItemDone(output_index=at, item=replace(item, input=whole, status=status)),
    ]


def server_call_written(at: int, *deltas: str) -> Batch:
    """A call to `stock`, the first call of all, as far as the model goes."""
    return [
        OutputItemAdded(output_index=at, item=server_call("", "in_progress")),
        McpCallInProgress(item_id="mcp_1", output_index=at),
        *(McpArgumentsDelta(item_id="mcp_1", output_index=at, delta=delta) for delta in deltas),
        McpArgumentsDone(item_id="mcp_1", output_index=at, arguments="".join(deltas)),
    ]


def server_call(arguments: str, status: ItemStatus) -> McpCall:
    return McpCall(
        id="mcp_1", server_label="depot", name="stock_level", arguments=arguments, status=status, call_id="call_1"
    )
