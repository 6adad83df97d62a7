"""Items: the entries of input and output, and the content parts inside them.

One class serves both directions: what a client may leave out on the way in (`id`, `status`) is filled in when the
request is read, so that everything behind that point sees whole items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeGuard

from antwort.api.status import CallStatus, ItemStatus
from antwort.api.wire import UNSET, UnsetType, Wire
from antwort.ids import new_id

Role: TypeAlias = Literal["user", "assistant", "system", "developer"]
Phase: TypeAlias = Literal["commentary", "final_answer"]
Detail: TypeAlias = Literal["low", "high", "auto", "original"]


# ---- content parts ----


class InputText(Wire, tag="input_text"):
    text: str


class InputImage(Wire, tag="input_image"):
    """`image_url` is an address or a data URL; it is passed on, never fetched here."""

    image_url: str | None = None
    file_id: str | UnsetType = UNSET
    detail: Detail = "auto"


class InputFile(Wire, tag="input_file"):
    filename: str | None | UnsetType = UNSET
    file_url: str | None | UnsetType = UNSET
    file_data: str | None | UnsetType = UNSET
    file_id: str | None | UnsetType = UNSET


class InputVideo(Wire, tag="input_video"):
    video_url: str


class TopLogProb(Wire):
    token: str
    logprob: float
    bytes: tuple[int, ...] = ()


class LogProb(Wire):
    token: str
    logprob: float
    bytes: tuple[int, ...] = ()
    top_logprobs: tuple[TopLogProb, ...] = ()


class OutputText(Wire, tag="output_text"):
    text: str
    annotations: tuple[dict[str, Any], ...] = ()
    logprobs: tuple[LogProb, ...] = ()


class Text(Wire, tag="text"):
    text: str


class SummaryText(Wire, tag="summary_text"):
    text: str


class ReasoningText(Wire, tag="reasoning_text"):
    text: str


class Refusal(Wire, tag="refusal"):
    refusal: str


ContentPart: TypeAlias = (
    InputText | InputImage | InputFile | InputVideo | OutputText | Text | SummaryText | ReasoningText | Refusal
)
ResultPart: TypeAlias = InputText | InputImage | InputFile | InputVideo | OutputText | Text
TEXTS = (InputText, OutputText, Text)
"""Parts that are text. To hold something against a tuple is faster than against a union that is made for it."""
"""What the output of a tool may be made of."""


def text_of(parts: Sequence[ResultPart]) -> str:
    """The text of a result, with a name in the place of what is not text."""
    return "\n".join(
        part.text if isinstance(part, InputText | OutputText | Text) else f"[{part.__struct_config__.tag}]"
        for part in parts
    )


# ---- items ----


class Message(Wire, tag="message"):
    id: str
    role: Role
    content: tuple[ContentPart, ...]
    status: ItemStatus = "completed"
    phase: Phase | UnsetType = UNSET


class FunctionCall(Wire, tag="function_call"):
    """The model asks for a tool. `arguments` is the JSON text exactly as the model wrote it."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus = "completed"
    namespace: str | UnsetType = UNSET


class FunctionCallOutput(Wire, tag="function_call_output"):
    """What a tool answered. `is_error` is ours, and written only when true."""

    id: str
    call_id: str
    output: str | tuple[ResultPart, ...]
    status: ItemStatus = "completed"
    is_error: bool | UnsetType = UNSET


class CustomToolCall(Wire, tag="custom_tool_call"):
    """The model asks for a free-form tool. `input` is its text, whatever form the backend needed."""

    id: str
    call_id: str
    name: str
    input: str
    status: ItemStatus = "completed"
    namespace: str | UnsetType = UNSET


class CustomToolCallOutput(Wire, tag="custom_tool_call_output"):
    id: str
    call_id: str
    output: str | tuple[ResultPart, ...]
    status: ItemStatus = "completed"


class Reasoning(Wire, tag="reasoning"):
    id: str
    summary: tuple[SummaryText, ...] = ()
    content: tuple[ReasoningText, ...] | UnsetType = UNSET
    encrypted_content: str | UnsetType = UNSET
    status: ItemStatus = "completed"


class Compaction(Wire, tag="compaction"):
    id: str
    encrypted_content: str
    created_by: str | UnsetType = UNSET
    status: ItemStatus = "completed"


class McpToolInfo(Wire):
    name: str
    input_schema: dict[str, Any]
    description: str | UnsetType = UNSET
    annotations: dict[str, Any] | UnsetType = UNSET


class McpListTools(Wire, tag="mcp_list_tools"):
    id: str
    server_label: str
    tools: tuple[McpToolInfo, ...]
    error: str | UnsetType = UNSET
    status: ItemStatus = "completed"


class ToolError(Wire, tag="mcp_tool_execution_error"):
    """What a tool, or the house in its place, says instead of an output."""

    content: tuple[Text, ...]


class McpCall(Wire, tag="mcp_call"):
    """A call that is run here, or refused here, and its result in one item.

    Finished without `output` and without `error` it was asked for and not run yet: a paused turn. `call_id` is ours;
    the item that shows the run later has none, and is tied to the first by its id (engine/history/calls.py).
    `content` is ours, too: the result in parts, where it is not text alone; `output` then names what is not text.
    `error` is an object, as SDKs want it; older records, and what clients send, have its text alone.
    """

    id: str
    server_label: str
    name: str
    arguments: str
    status: CallStatus = "completed"
    output: str | None = None
    error: str | ToolError | None = None
    approval_request_id: str | UnsetType = UNSET
    call_id: str | UnsetType = UNSET
    content: tuple[ResultPart, ...] | UnsetType = UNSET

    @property
    def error_text(self) -> str | None:
        """What went wrong, in words; None where nothing did."""
        if isinstance(self.error, ToolError):
            return "\n".join(part.text for part in self.error.content)
        return self.error


class McpApprovalRequest(Wire, tag="mcp_approval_request"):
    id: str
    server_label: str
    name: str
    arguments: str
    status: ItemStatus = "completed"


class McpApprovalResponse(Wire, tag="mcp_approval_response"):
    id: str
    approval_request_id: str
    approve: bool
    reason: str | UnsetType = UNSET
    status: ItemStatus = "completed"


class ItemReference(Wire, tag="item_reference"):
    """Stands for an item of an earlier response; never stored, never seen behind `engine/history/history.py`."""

    id: str


class OpaqueItem:
    """An item of a type this version does not know: kept and given back as it came, never understood. So are
    `additional_tools` (api/additional.py), but for the tools that they declare: `brought` is what those bring to log in
    to their servers, by the places of the declarations. It is not written.
    """

    __slots__ = ("brought", "fields", "id", "type")

    def __init__(
        self,
        type: str,  # noqa: A002 - the protocol's names
        id: str,  # noqa: A002
        fields: Mapping[str, Any],
        brought: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> None:
        self.type, self.id = type, id
        self.fields: Mapping[str, Any] = {**fields, "id": id}
        self.brought: Mapping[int, Mapping[str, Any]] = brought or {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpaqueItem) and self.fields == other.fields

    def __hash__(self) -> int:
        return hash((self.type, self.id))

    def __repr__(self) -> str:
        return f"OpaqueItem({self.type!r}, {self.id!r})"


OutputItem: TypeAlias = (
    Message
    | FunctionCall
    | FunctionCallOutput
    | CustomToolCall
    | CustomToolCallOutput
    | Reasoning
    | Compaction
    | McpListTools
    | McpCall
    | McpApprovalRequest
    | McpApprovalResponse
)
KnownItem: TypeAlias = OutputItem | ItemReference
InputItem: TypeAlias = KnownItem | OpaqueItem

ADDITIONAL = "additional_tools"
"""The type of items that declare tools from their position on (`tool_parsing.py`)."""
MAX_ITEM_ID = 512
"""Characters of the id of an item: those of clients have about forty."""
_ID_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
    "compaction": "cmp",
    "mcp_list_tools": "mcpl",
    "mcp_call": "mcp",
    "mcp_approval_request": "mcpr",
    "mcp_approval_response": "mcpa",
    "item_reference": "ref",
    ADDITIONAL: "at",
}


def new_item_id(kind: str) -> str:
    """Make an id for an item of this type."""
    return new_id(_ID_PREFIXES.get(kind, "item"))


def is_additional(item: object) -> TypeGuard[OpaqueItem]:
    """Return whether an item declares tools."""
    return isinstance(item, OpaqueItem) and item.type == ADDITIONAL
