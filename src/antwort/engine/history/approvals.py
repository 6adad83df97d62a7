"""Approvals of tool calls: which calls need one, the ids of the requests, and the decisions that clients send. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from antwort.api.items import InputItem, McpApprovalRequest, McpApprovalResponse
from antwort.api.tools import ApprovalFilter, McpTool, McpToolFilter
from antwort.api.wire import UNSET, UnsetType, encode
from antwort.engine.history.calls import REQUEST_ID, is_heavy, request_id
from antwort.errors import Conflict, InvalidField
from antwort.identity import Identity
from antwort.ids import new_id
from antwort.tools.base import ToolDefinition, given_arguments
from antwort.vault import Vault

# ---- results of calls that were not run ----

NO_APPROVAL = "The call was not run: it needs the user's approval, and none was given."
LOST = "The call was begun before, and its outcome is not known. It is not run again."
NOT_RUN = "The call was approved, and it has not been run."
DENIED = "The user denied this call."
CHANGED = "The call was not run: the tool has changed since the user was asked about it. The user is asked again."


def denial(decision: McpApprovalResponse) -> str:
    """Return the result of a call that was denied, as the model reads it."""
    reason = "" if decision.reason is UNSET else decision.reason.strip()
    return f"{DENIED} The reason: {reason}" if reason else DENIED


def unrun_result(decision: McpApprovalResponse | None) -> str | None:
    """Return the result of a call that was not run, as the model reads it. None for an approved call: nothing is known
    about it.
    """
    if decision is None:
        return NO_APPROVAL
    return None if decision.approve else denial(decision)


# ---- which calls need an approval ----


def with_approvals(tool: McpTool, found: Sequence[ToolDefinition]) -> Sequence[ToolDefinition]:
    """Return the tools of a server with their policy settled. A request can ask for more approvals than the operator,
    never for fewer.
    """
    settled = ((definition, _needs_approval(tool, definition)) for definition in found)
    return [
        definition
        if definition.needs_approval is needs_approval
        else replace(definition, needs_approval=needs_approval)
        for definition, needs_approval in settled
    ]


def _needs_approval(tool: McpTool, definition: ToolDefinition) -> bool:
    if definition.needs_approval is True:
        return True
    asked = _asks(tool, definition)
    return definition.needs_approval is None if asked is None else asked


def _asks(tool: McpTool, definition: ToolDefinition) -> bool | None:
    """Return what the request demands for the tool; None if nothing."""
    wanted = tool.require_approval
    if not isinstance(wanted, ApprovalFilter):
        return None if wanted is UNSET else wanted == "always"
    if _fits(wanted.always, definition):
        return True
    if _fits(wanted.never, definition):
        return False
    return None if wanted.never is UNSET else True  # a list of tools that need none means that all others do


def _fits(meant: McpToolFilter | UnsetType, definition: ToolDefinition) -> bool:
    """Return whether a filter includes the tool. An empty filter includes nothing."""
    if meant is UNSET:
        return False
    names, read_only = meant.tool_names, meant.read_only
    if not isinstance(names, tuple) and not isinstance(read_only, bool):
        return False
    is_named = not isinstance(names, tuple) or definition.own_name in names
    return is_named and (not isinstance(read_only, bool) or definition.read_only is read_only)


def is_asked(left: int | None, arguments: str, before: int) -> bool:
    """Return whether the client is asked to approve a call. One that is refused in any case is not asked for: where the
    response may run `left` more calls, and so many stand `before` it, or where the arguments are invalid.
    """
    return (left is None or before < left) and unasked(arguments) is None


def unasked(arguments: str) -> str | None:
    """Return why a call with these arguments is refused without asking, in words for the model; None if it is not."""
    try:
        value = msgspec.json.decode(given_arguments(arguments))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return f"The arguments are not valid JSON: {error}"
    return None if isinstance(value, dict) else "The arguments must be a JSON object."


# ---- ids of approval requests ----

_PURPOSE = "approval"
_NONCE_BYTES = _MAC_BYTES = 8


class ApprovalIds:
    """Make and recognise the ids of one owner's approval requests. An invented id cannot be approved.

    An id is `mcpr_` with a nonce and a MAC over owner, nonce, server, tool and arguments, both in 16 hex digits.
    """

    def __init__(self, vault: Vault, identity: Identity) -> None:
        self._vault, self._tenant, self._owner = vault, identity.tenant, identity.owner

    def new(self, server_label: str, name: str, arguments: str) -> str:
        nonce = secrets.token_hex(_NONCE_BYTES)
        signature = self._vault.sign(_PURPOSE, self._tenant, self._signed(nonce, server_label, name, arguments))
        return f"mcpr_{nonce}{signature[:_MAC_BYTES].hex()}"

    def is_ours(self, request_id: str, server_label: str, name: str, arguments: str) -> bool:
        """Whether the id was made here for this call, however a client has formatted the arguments since."""
        if (found := REQUEST_ID.fullmatch(request_id)) is None:
            return False
        nonce, signature = found[1][: 2 * _NONCE_BYTES], bytes.fromhex(found[1][2 * _NONCE_BYTES :])
        data = self._signed(nonce, server_label, name, arguments)
        return self._vault.is_signed(_PURPOSE, self._tenant, data, signature)

    def _signed(self, nonce: str, server_label: str, name: str, arguments: str) -> bytes:
        return encode([self._owner, nonce, server_label, name, canonical_arguments(arguments)])


def new_request_id(ids: ApprovalIds | None, server_label: str, name: str, arguments: str) -> str:
    """Return the id of a new request; without `ids`, one that proves nothing."""
    return request_id(new_id("call")) if ids is None else ids.new(server_label, name, arguments)


def canonical_arguments(arguments: str) -> str:
    """Return the arguments in one form: keys sorted, the last of two with one name."""
    if is_heavy(arguments):
        return arguments
    try:
        return msgspec.json.encode(msgspec.json.decode(arguments or "{}"), order="sorted").decode()
    except (ValueError, RecursionError):
        return arguments


# ---- decisions ----

_LONGEST_ID = 100
"""Characters of a client's id that an error repeats."""


def decisions_in(items: Iterable[InputItem]) -> Mapping[str, McpApprovalResponse]:
    """Return the decisions among the items, by the ids of the requests. Of several the first counts."""
    found: dict[str, McpApprovalResponse] = {}
    for item in items:
        if isinstance(item, McpApprovalResponse):
            found.setdefault(item.approval_request_id, item)
    return found


def repeated_decisions(items: Sequence[InputItem], earlier: Iterable[InputItem], first: int = 0) -> frozenset[int]:
    """Return the places of the decisions, from the `first` item on, that stand in this input already.

    Raises `InvalidField` for a decision about a request that the conversation does not know, and for two of one input
    that differ; `Conflict` for one that contradicts an earlier one.
    """
    given = [(i, item) for i, item in enumerate(items) if i >= first and isinstance(item, McpApprovalResponse)]
    if not given:
        return frozenset()
    earlier = [*earlier]
    requests = {item.id for item in (*earlier, *items[first:]) if isinstance(item, McpApprovalRequest)}
    before = decisions_in(earlier)
    seen: dict[str, bool] = {}
    repeated: set[int] = set()
    for i, item in given:
        place, request_id = f"input[{i}].approval_request_id", item.approval_request_id
        if request_id not in requests:
            problem = f"no call waits for approval under the id {request_id[:_LONGEST_ID]!r} in this conversation."
            raise InvalidField(place, problem, code="unknown_approval")
        if request_id in seen:
            if seen[request_id] is not item.approve:
                raise InvalidField(place, "it is decided otherwise in this input.", code="duplicate_approval")
            repeated.add(i)
        if request_id in before and before[request_id].approve is not item.approve:
            raise contradiction(place, is_approved=before[request_id].approve)
        seen[request_id] = item.approve
    return frozenset(repeated)


def contradiction(place: str, *, is_approved: bool) -> Conflict:
    decision = "approved" if is_approved else "denied"
    problem = f"The call was {decision} before, and that cannot be taken back."
    return Conflict(problem, param=place, code="approval_decided")


def superseded(place: str, response_id: str | None) -> Conflict:
    """Return the error for an approval of a call that was asked about again."""
    where = "" if response_id is None else f" in the response {response_id!r}"
    problem = f"The tool has changed since this call was asked about. It was not run, and is asked about again{where}."
    return Conflict(problem, param=place, code="tool_changed")
