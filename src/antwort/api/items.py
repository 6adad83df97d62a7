"""Items: the entries of input and output, and the content parts inside them.

One class serves both directions: fields that a client may leave out, such as `id` and `status`, are filled in when the
request is parsed.
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
    """`image_url` is an address or a data URL. It is passed on to the backend, not fetched."""

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
"""A part of the output of a tool."""
TEXTS = (InputText, OutputText, Text)
"""Result parts that are text. `isinstance` is faster with a tuple than with a union."""


def text_of(parts: Sequence[ResultPart]) -> str:
    """Return the text of a result, with `[type]` for each part that is not text."""
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
    """A call of a tool. `arguments` is the JSON text exactly as the model wrote it."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus = "completed"
    namespace: str | UnsetType = UNSET


class FunctionCallOutput(Wire, tag="function_call_output"):
    """The result of a call. `is_error` is an extension, and written only when true."""

    id: str
    call_id: str
    output: str | tuple[ResultPart, ...]
    status: ItemStatus = "completed"
    is_error: bool | UnsetType = UNSET


class CustomToolCall(Wire, tag="custom_tool_call"):
    """A call of a free-form tool, with the text that the model wrote."""

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
    """The error of a call, of the tool itself or of antwort in its place."""

    content: tuple[Text, ...]


class McpCall(Wire, tag="mcp_call"):
    """A call that antwort runs or refuses, and its result in one item.

    If it is completed without `output` and `error`, it has not run yet, because the turn is paused. `call_id` is an
    extension; the item that shows the later run has another id and no `call_id`.
    `content` is an extension, too: the parts of a result that is not text alone. `output` then has `[type]` for the
    others. `error` is an object, as SDKs expect; older records and clients have its text alone.
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
        """The message of the error, if there is one."""
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
    """A reference to an item of an earlier response, which takes its place."""

    id: str


class OpaqueItem:
    """An item of an unknown type, which is stored and returned as it came; and an `additional_tools` item.

    `brought` holds the credentials of the servers that an `additional_tools` item declares, by the index of the
    declaration. It is never written.
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
