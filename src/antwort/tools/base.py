"""The contracts of tools: definitions, calls, results and executors."""

from __future__ import annotations

import asyncio
import enum
import hashlib
import math
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from antwort.api.decoding import repair_surrogates
from antwort.api.items import ResultPart
from antwort.api.tools import McpTool
from antwort.identity import ANONYMOUS, Identity
from antwort.schema.validate import decode_object

if TYPE_CHECKING:
    from antwort.tools.grammar import Grammar
    from antwort.tools.limits import ToolLimits

HOUSE_LABEL = "antwort"
"""The server label of calls without a server: refused ones, and those to unknown names."""
LABEL = "[A-Za-z0-9_-]{1,64}"
"""The form of a server's label: models see tools under names that begin with it."""
LABEL_IN_WORDS = "1 to 64 letters, digits, '_' or '-'"


class ToolKind(enum.StrEnum):
    """Of a definition: how it was declared. Of an executor: where it runs calls."""

    FUNCTION = "function"  # declared by the request; the client's to run unless an executor claims it
    CUSTOM = "custom"  # free-form, declared by the request; always the client's to run
    MCP = "mcp"  # a tool of a labelled server or toolset
    SANDBOX = "sandbox"  # untrusted code
    LOCAL = "local"  # functions of this process


class ToolDefinition(msgspec.Struct, frozen=True, kw_only=True, dict=True, weakref=True):
    """A tool the model may call. `name` is what the model sees; it is unique within a plan."""

    name: str
    kind: ToolKind
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    server_label: str | None = None
    """The server or toolset it belongs to; None for a function that the request declares."""
    server_tool: str | None = None
    """Its name at that server, where it differs; of a tool in a namespace, its name there."""
    namespace: str | None = None
    """The namespace that the request declares it in; clients see it apart from the name."""
    grammar: Grammar | None = None
    """What the input of a free-form tool must fit."""
    read_only: bool = False
    idempotent: bool = False
    annotations: dict[str, Any] | None = None
    """As its server lists them."""
    declared: McpTool | None = None
    """The declaration of its server in the request. It may hold credentials, and is never shown."""
    needs_approval: bool | None = False
    """Whether the client must approve each call before it is run. As its server offers it: true is what the operator
    demands, whatever a request says; false, only where a request asks for it; None, unless a request says otherwise.
    In a toolbox it is decided."""
    is_serial: bool = False
    """Whether its calls must not overlap."""
    is_deferred: bool = False
    """Whether the model must search for it before it sees it."""

    @cached_property
    def own_name(self) -> str:
        """The name of the tool at its server. The model may see another one, so that no two tools have the same."""
        return self.server_tool or self.name

    @cached_property
    def digest(self) -> str:
        """A fingerprint of the tool as its server describes it, to find out whether it has changed."""
        said = (self.own_name, self.description, self.parameters, self.annotations)
        try:
            text = msgspec.json.encode(said, order="sorted")
        except (TypeError, ValueError):  # an executor may describe its tools in anything
            text = repr(said).encode()
        return hashlib.sha256(text).hexdigest()[:32]

    @cached_property
    def is_search(self) -> bool:
        """Whether it is the search function, and not another tool of that name."""
        return self.kind is ToolKind.MCP and self.server_label == HOUSE_LABEL


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """The model asks for `name`. `arguments` is the JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str
    definition: ToolDefinition


Output: TypeAlias = str | tuple[ResultPart, ...]


class ToolResult(msgspec.Struct, frozen=True):
    """The end of a call. With `is_error`, `output` says what went wrong, in words that the model can use."""

    call_id: str
    output: Output
    is_error: bool = False


Failure: TypeAlias = Literal["arguments", "timeout"]
"""Why a call failed other than by its tool."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a call, in units of the tool's own."""

    message: str | None = None
    done: float | None = None
    total: float | None = None


def _no_op(*_: object) -> None: ...


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """The context of a running call."""

    response_id: str
    idempotency_key: str
    """The same for every attempt at the same call."""
    identity: Identity = ANONYMOUS
    deadline: float | None = None
    """On the event loop's clock: when the response, and so the call, must have ended."""
    cancelled: asyncio.Event
    """Set when the run is told to stop. An async tool is cancelled too; a thread can only look here."""
    progress: Callable[[str | Progress], None] = _no_op
    failed: Callable[[Failure], None] = _no_op
    """Called by the limits of a call: its result does not say how it failed."""
    began: Callable[[], None] = _no_op
    """Called when the call has its slot and its arguments fit: the tool begins now."""
    grace: float = math.inf
    """Seconds that the call may take to end when it is cancelled."""
    decoded: tuple[str, dict[str, Any]] | None = None
    """The text of the arguments, and the object that it is: the limits of a call decode it once. See `arguments_of`."""

    def arguments_of(self, call: ToolCall) -> dict[str, Any] | str:
        """Return the arguments of the call, or what is wrong with them. An executor that wraps another one may have
        changed them since they were decoded.
        """
        if self.decoded is not None and self.decoded[0] is call.arguments:
            return self.decoded[1]
        return decode_object(call.arguments.strip() or "{}")


class ClientsTurn(Exception):
    """Raised by an executor: the call is the client's. It stays open, and the turn goes to the client."""

    def __init__(self, call: ToolCall) -> None:
        super().__init__(f"The call to {call.name!r} is the client's to run.")
        self.call = call


class Unanswered(Exception):
    """Raised by a tool server that cannot be asked. The text is for the client and the model: it names the label, no
    address, and repeats nothing that the server sent. Whoever raises it has told the operator.
    """


@runtime_checkable
class ToolExecutor(Protocol):
    """Runs calls. It may raise: whoever dispatches makes every call end in exactly one result.

    Any class with these three members is one; it need not inherit. `BaseExecutor` has all that it may offer besides.
    Of whatever kind, it is asked about the functions that requests declare (definitions of kind `FUNCTION`), and runs
    those that it claims. One with `discover` offers tools of its own, and is asked about those only.

    `ClientsTurn` is the one exception that makes no result: it hands the call of a declared function to the client.
    """

    @property
    def kind(self) -> ToolKind: ...

    def can_execute(self, tool: ToolDefinition) -> bool:
        """Whether this executor runs `tool`; decided by the whole definition, never by a bare name alone."""
        ...

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult: ...


NoteWritingTools: TypeAlias = Callable[[str, str, Collection[str]], Awaitable[frozenset[str] | None]]
"""Records, for a tenant and a server, the tools that the server lists as writing. Returns all that were ever recorded,
or None for every tool of the server. Raises `StoreFault`."""


class BaseExecutor:
    """Defaults for all that an executor may offer beside the three members of `ToolExecutor`.

    An executor need not inherit it: the engine adapts each executor once, and uses the members that it has.

    One that has a `discover` of its own is a tool server: requests reach it by a label, `{"type": "mcp",
    "server_label": …}`. It knows its tools by `server_label` and `own_name`: the model may see other names.
    """

    kind: ToolKind
    labels: Sequence[str] = ()
    """The labels of its servers. An executor of one server may have a `label` instead."""
    ends_when_told = False
    """Whether its calls always end when they are cancelled, so that none is left behind."""
    is_steady = False
    """Whether it always gives the same answers about a tool, so that they may be cached. Of the class that says so
    itself: one that is derived from it may change its answers.
    """

    @cached_property
    def is_server(self) -> bool:
        """Whether it offers tools of its own."""
        return type(self).discover is not BaseExecutor.discover

    @cached_property
    def describes_functions(self) -> bool:
        """Whether it knows its functions by their names: then `describe` says which it runs."""
        return type(self).describe is not BaseExecutor.describe

    def can_execute(self, tool: ToolDefinition) -> bool:
        raise NotImplementedError

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        raise NotImplementedError

    def limits_of(self, tool: ToolDefinition) -> ToolLimits | None:  # noqa: ARG002
        """Return all that limits calls of this tool; None for the limits of all executors."""
        return None

    def timeout_of(self, tool: ToolDefinition) -> float | None:  # noqa: ARG002
        """Return the seconds that the tool asks for itself."""
        return None

    def describe(self, tool: ToolDefinition) -> ToolDefinition | None:  # noqa: ARG002
        """Return the function that it runs for `tool`, as it describes itself: a request need not repeat that."""
        return None

    async def discover(self, declared: McpTool, identity: Identity) -> Sequence[ToolDefinition] | None:  # noqa: ARG002
        """Return the tools behind `declared`, or None when that is not this server's label.

        Raises `InvalidField`, naming a field of `declared`, when the label is right and the rest is not. Whatever else
        is raised shows as a list of tools that is not available, and the response goes on.
        """
        return None

    async def instruct(self, declared: McpTool, identity: Identity) -> str | None:  # noqa: ARG002
        """Return what the model is told about the server in a request that uses it. Called after `discover`."""
        return None

    async def refresh(self, declared: McpTool, identity: Identity) -> None:
        """List the server's tools anew, so that `discover` finds them. Raises as `discover` does."""

    def standing(self, model: str, identity: Identity) -> Sequence[McpTool]:  # noqa: ARG002
        """Return the servers that the operator has added to each request of this identity for this model."""
        return ()

    def remember_with(self, note: NoteWritingTools) -> None:
        """Record which tools write, whatever their servers say later. Called once, before any `discover`."""

    async def open(self) -> None:
        """Begin what it does by itself, without waiting for it: nothing delays the start."""

    async def close(self) -> None:
        """Release what it holds. Called when the last run of the engine has ended."""


def is_tool_server(executor: object) -> bool:
    """Return whether an executor offers tools of its own, whether it inherits `BaseExecutor` or not."""
    return bool(getattr(executor, "is_server", hasattr(executor, "discover")))


def labels_of(executor: object) -> Sequence[str]:
    """Return the labels of an executor's tool servers: `labels`, or its only `label`."""
    labels, label = tuple(getattr(executor, "labels", None) or ()), getattr(executor, "label", None)
    return labels if labels or label is None else (label,)


def is_steady(executor: object) -> bool:
    """Return whether an executor always gives the same answers about a tool: whether its own class says so."""
    said = vars(type(executor))
    return said.get("is_steady", said.get("holds_to_its_word")) is True  # the name that the member once had


_NO_ARGUMENTS = frozenset({"", "null"})


def given_arguments(arguments: str) -> str:
    """Return the arguments that a call is run with: `{}` for nothing and for `null`, which some models write, and
    U+FFFD for each escaped lone surrogate.
    """
    if not arguments.startswith("{") and arguments.strip() in _NO_ARGUMENTS:
        return "{}"
    if "\\ud" in arguments or "\\uD" in arguments:
        return repair_surrogates(arguments.encode(errors="surrogatepass")).decode(errors="surrogatepass")
    return arguments
