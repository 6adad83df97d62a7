"""Every error of the house.

AntwortError                 what a client may be told: status, type, code, param, message
├── RequestError             400 the request is wrong, or asks for what is not there
│   ├── InvalidField         400 names the path of the field
│   │   ├── MissingField
│   │   └── DeadlineTooShort
│   ├── UnsupportedFeature   400 understood, but not offered here
│   ├── ContextTooLong       400 more than the model can read
│   ├── BackendRefused       400 the backend found fault with the request
│   ├── NotFound             404
│   │   ├── ResponseNotFound
│   │   ├── ItemNotFound
│   │   ├── ConversationNotFound
│   │   ├── ApprovalNotFound
│   │   └── ModelNotFound
│   ├── MethodNotAllowed     405
│   ├── RequestTooSlow       408 it took too long to come in
│   ├── Conflict             409
│   │   ├── KeyReused        the same Idempotency-Key, another body
│   │   ├── KeyInUse         its response is being made elsewhere
│   │   ├── ConversationLocked  its turn did not come in time
│   │   └── ApprovalInUse    another response acts on it
│   ├── ConnectionTooOld     400 a WebSocket has been open as long as one may be
│   ├── BodyTooLarge         413
│   ├── TooManyValues        413 as JSON, however short
│   ├── WrongMediaType       415
│   ├── BadUpgrade           400 a WebSocket is asked for as nobody does
│   ├── WrongSocketVersion   426 or in a version that is not spoken
│   ├── SocketsOff           426 no WebSocket here; the same is to be had over HTTP
│   ├── HeadTooLarge         431
│   └── UnknownTransferCoding  501 neither a length nor plain chunks
├── NotAuthenticated         401
├── NotPermitted             403
├── RateLimited              429
│   ├── QueueFull            429 as many background responses wait as may
│   └── QuotaUsedUp          429 waiting does not help
└── ServerFault              500 ours, or a part we depend on
    ├── StoreFault           500 the record could not be read or written
    │   ├── StoreUnavailable    503 now; later it may be
    │   └── Damaged             500 nor can it be later
    ├── AttemptsExhausted    500 whoever made the response was lost or failed
    ├── MakerAway            503 only the process that makes the response can tell, and it cannot be reached
    ├── ShuttingDown         503
    ├── RequestCancelled     503 broken off by the program that hosts us
    ├── TooManySockets       503 as many WebSockets are open as there may be
    ├── HistoryMemoryFull    503 the histories of others take the memory that there is for them
    ├── TooManyFollowers     503 as many streams are read again as there may be
    ├── ToolServerUnavailable  503 what was approved cannot be run now
    └── BackendError         502 an inference failed
        ├── BackendUnavailable  503 not reachable, or not ready
        │   └── BackendOverloaded   503 it says that it has too much to do
        ├── BackendTimeout      504
        └── BackendCut          502 the answer broke off
Interrupted                  the run was told to stop; says how the response then ends
├── Cancelled
├── ClientLeft
├── DeadlinePassed
└── HandedOver               another process goes on with it
"""

from __future__ import annotations

from typing import ClassVar

_NOT_FOUND = frozenset({"not_found", "unknown_url"})
_OF_THE_MODEL = frozenset({"backend_error", "backend_timeout", "backend_stream_cut"})
BACKEND_UNAUTHORIZED = "backend_unauthorized"
_FINAL_CODES = frozenset({"context_length_exceeded", "insufficient_quota", "invalid_prompt", BACKEND_UNAUTHORIZED})
"""The codes that a response keeps which failed for good. Clients take them for its last word, but for the one that says
that the operator has something to mend: a code that they do not know they try again.
"""


def standard_type(kind: str, code: str) -> str:
    """The type of an error in the words of the standard, which has five."""
    match kind:
        case "invalid_request_error" if code in _NOT_FOUND or code.endswith("_not_found"):
            return "not_found"
        case "invalid_request_error" | "authentication_error" | "permission_error":
            return "invalid_request"
        case "rate_limit_error":
            return "too_many_requests"
        case "server_error" if code in _OF_THE_MODEL:
            return "model_error"
        case _:
            return kind


_LONGEST_SHOWN = 80


def shown(text: str) -> str:
    """Return what a client has sent as it may be repeated in a message: in quotes, and cut where it is long."""
    return repr(text) if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]!r}..."


class AntwortError(Exception):
    """An error whose message is written for the person who sent the request."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: str = "server_error"
    may_pass: bool | None = None
    """Whether the same request may succeed when it is sent again; None where nobody can tell."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        may_pass: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after
        if code is not None:
            self.code = code
        if may_pass is not None:
            self.may_pass = may_pass

    @property
    def failed_code(self) -> str:
        """The code of a response that failed with it. What is for good has one that no client tries again."""
        is_for_good = self.may_pass is False
        return "invalid_prompt" if is_for_good and self.code not in _FINAL_CODES else self.code

    @property
    def standard_type(self) -> str:
        """The type under the strict setting, as the standard names it."""
        return standard_type(self.type, self.code)

    def sent_status(self, *, strict: bool) -> int:
        """Return the HTTP status to answer with. The standard has 500 for every failure of the server or the model."""
        return min(self.status, 500) if strict else self.status


class RequestError(AntwortError):
    status = 400
    type = "invalid_request_error"
    code = "invalid_request"
    may_pass = False


class InvalidField(RequestError):
    code = "invalid_value"

    def __init__(self, param: str, problem: str, *, code: str | None = None) -> None:
        super().__init__(f"Invalid '{param}': {problem}" if param else problem, param=param or None, code=code)
        self._problem = problem

    def within(self, path: str) -> InvalidField:
        """The same fault, found in the object at `path`."""
        return InvalidField(f"{path}.{self.param}" if self.param else path, self._problem, code=self.code)


class MissingField(InvalidField):
    """`advice`: as sentences, what to send."""

    code = "missing_required_parameter"

    def __init__(self, param: str, advice: str) -> None:
        RequestError.__init__(self, f"Missing {param!r}. {advice}", param=param)
        self._problem = f"missing. {advice}"


class DeadlineTooShort(InvalidField):
    """The time that the request itself allows was over before its response could be begun. Nothing was kept."""

    may_pass = True

    def __init__(self, seconds: float) -> None:
        problem = f"{seconds:g} s were over before the response could be begun. Allow more, or leave it out."
        super().__init__("deadline", problem, code="deadline_too_short")


class UnsupportedFeature(RequestError):
    code = "unsupported_parameter"


class ContextTooLong(RequestError):
    code = "context_length_exceeded"
    limit: int | None = None
    """How many tokens the context has, where whoever refused it says so."""
    asked: int | None = None
    """How many tokens were asked for: those of the input, or with those kept for the answer."""
    is_firm: bool = False
    """Whether the numbers stand in fields of their own, or beside a code that says what they are."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        limit: int | None = None,
        asked: int | None = None,
        is_firm: bool = False,
    ) -> None:
        super().__init__(message, param=param)
        self.limit, self.asked, self.is_firm = limit, asked, is_firm


class BackendRefused(RequestError):
    code = "invalid_prompt"


class NotFound(RequestError):
    status = 404
    code = "not_found"


class ResponseNotFound(NotFound):
    code = "response_not_found"

    def __init__(self, response_id: str, *, param: str | None = None) -> None:
        code = "previous_response_not_found" if param == "previous_response_id" else None
        super().__init__(f"No response with id {shown(response_id)}.", param=param, code=code)


class ItemNotFound(NotFound):
    code = "item_not_found"

    def __init__(self, item_id: str, *, param: str | None = None) -> None:
        super().__init__(f"No item with id {shown(item_id)}.", param=param)


class ConversationNotFound(NotFound):
    code = "conversation_not_found"

    def __init__(self, conversation_id: str, *, param: str | None = None) -> None:
        super().__init__(f"No conversation with id {shown(conversation_id)}.", param=param)


class ApprovalNotFound(NotFound):
    code = "approval_not_found"

    def __init__(self, approval_id: str) -> None:
        super().__init__(f"No approval with id {shown(approval_id)}.")


class ModelNotFound(NotFound):
    code = "model_not_found"

    def __init__(self, model: str, hint: str = "") -> None:
        """`hint`: as sentences, which models there are for the client."""
        super().__init__(f"The model {shown(model)} does not exist. {hint}".rstrip(), param="model")
        self.model = model


class MethodNotAllowed(RequestError):
    status = 405
    code = "method_not_allowed"

    def __init__(self, method: str, allowed: tuple[str, ...]) -> None:
        super().__init__(f"{method} is not allowed here; use {' or '.join(allowed)}.")
        self.allowed = allowed


class RequestTooSlow(RequestError):
    status = 408
    code = "request_timeout"
    may_pass = True

    def __init__(self) -> None:
        super().__init__("The request took too long to arrive.")


class Conflict(RequestError):
    status = 409
    code = "conflict"


class KeyReused(Conflict):
    code = "idempotency_key_reused"

    def __init__(self) -> None:
        super().__init__("This Idempotency-Key was used before, with another body. Use a new key for a new request.")


class KeyInUse(Conflict):
    code = "idempotency_key_in_use"
    may_pass = True

    def __init__(self, response_id: str | None = None) -> None:
        """`response_id`: of the response that it stands for, where what that says can be read here all the same."""
        message = "The first request with this Idempotency-Key is still being answered, and not here."
        super().__init__(message, retry_after=1.0)
        self.response_id = response_id


class ConversationLocked(Conflict):
    """`deadline`: the seconds that the request allows its response, where they were over before its turn came."""

    code = "conversation_locked"
    may_pass = True

    def __init__(self, *, deadline: float | None = None) -> None:
        message, param = "Another request is being answered in this conversation.", "conversation"
        if deadline is not None:
            message += f" The 'deadline' of this one, {deadline:g} s, was over before its turn came."
            param = "deadline"
        super().__init__(f"{message} Please retry in a few seconds.", param=param, retry_after=2.0)


class ApprovalInUse(Conflict):
    code = "approval_in_use"
    may_pass = True

    def __init__(self) -> None:
        super().__init__("Another request acts on the same approval right now.", retry_after=1.0)


class BodyTooLarge(RequestError):
    status = 413
    code = "body_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"The request body is larger than {limit} bytes.")


class TooManyValues(RequestError):
    status = 413
    code = "too_many_values"

    def __init__(self, limit: int, *, param: str | None = None, is_last_tool: bool = False) -> None:
        """`param` is the part that is too large by itself, or, as the last tool, with those before it; without it, the
        whole is.
        """
        what = "The request body" if param is None else f"'{param}'"
        if is_last_tool:
            what = f"The list of all tools, with {what},"
        setting = "limits.body_values" if param is None else "limits.item_values"
        super().__init__(f"{what} holds more than {limit} JSON values ({setting}).", param=param)


class WrongMediaType(RequestError):
    status = 415
    code = "unsupported_media_type"

    def __init__(self, got: str) -> None:
        super().__init__(f"The body must be application/json, not {got or 'of no declared type'}.")


class SocketsOff(RequestError):
    status = 426
    code = "websocket_not_offered"

    def __init__(self) -> None:
        super().__init__("This server does not offer WebSocket; send the request over HTTP.")


class BadUpgrade(RequestError):
    code = "invalid_upgrade"


class WrongSocketVersion(RequestError):
    status = 426
    code = "websocket_version_not_supported"

    def __init__(self) -> None:
        super().__init__("The WebSockets of this server are of version 13: send 'Sec-WebSocket-Version: 13'.")


class ConnectionTooOld(RequestError):
    code = "websocket_connection_limit_reached"
    may_pass = True

    def __init__(self, seconds: float) -> None:
        limit = f"{seconds / 60:g} minutes" if seconds >= 60 else f"{seconds:g} seconds"
        super().__init__(f"This connection has reached its limit of {limit}. Open a new one to go on.")


class HeadTooLarge(RequestError):
    status = 431
    code = "request_head_too_large"

    def __init__(self, limit: int, part: str = "address and headers") -> None:
        super().__init__(f"The request's {part} are larger than {limit} bytes.")


class UnknownTransferCoding(RequestError):
    status = 501
    code = "transfer_coding_not_supported"

    def __init__(self, coding: str) -> None:
        super().__init__(f"The transfer coding '{coding}' is not supported. Send 'chunked', or a Content-Length.")

    def sent_status(self, *, strict: bool) -> int:  # noqa: ARG002 - HTTP's own rule, of which the standard says nothing
        return self.status


class NotAuthenticated(AntwortError):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"
    may_pass = False


class NotPermitted(AntwortError):
    status = 403
    type = "permission_error"
    code = "permission_denied"
    may_pass = False


class RateLimited(AntwortError):
    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"
    may_pass = True


class QueueFull(RateLimited):
    """Nothing was kept of the request."""

    code = "queue_full"

    def __init__(self, waiting: int) -> None:
        waits = "1 background response waits" if waiting == 1 else f"{waiting} background responses wait"
        super().__init__(f"{waits} already, as many as may.", retry_after=5)


class QuotaUsedUp(RateLimited):
    """Not for a moment: somebody has to pay, or to wait for the next month."""

    code = "insufficient_quota"
    may_pass = False


class ServerFault(AntwortError):
    """Something of ours, or something we depend on, is at fault."""


class StoreFault(ServerFault):
    code = "storage_error"
    is_ambiguous: bool = False
    """Whether what was to be written may have been written nevertheless: the answer to the commit did not come."""
    why: str = ""
    """What is behind it, for the log and not for clients. It names nobody."""


class StoreUnavailable(StoreFault):
    """The database cannot be reached, or is locked, full or read-only: its operator can mend that, or it passes."""

    status = 503
    code = "storage_unavailable"
    may_pass = True

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after=5)


class Damaged(StoreFault):
    """What is on record cannot be read, and that will not pass: to ask again is of no use."""

    def __init__(self) -> None:
        super().__init__("A stored record cannot be read.")


class AttemptsExhausted(ServerFault):
    """Whoever made the run was lost or failed, again and again. Nobody can tell whether it was the run's doing."""

    code = "attempts_exhausted"

    def __init__(self, attempts: int) -> None:
        tried = "once" if attempts == 1 else f"{attempts} times"
        super().__init__(f"The response was begun {tried}, and whoever made it was lost or could not go on.")

    @property
    def failed_code(self) -> str:
        """Its own: nobody waits for a background response who would try it again unasked."""
        return self.code


class MakerAway(ServerFault):
    """It comes back, or is found to be lost within the time of a lease."""

    status = 503
    code = "maker_unreachable"
    may_pass = True

    def __init__(self) -> None:
        words = "The process that makes this response cannot be reached: come again, or when the response has ended."
        super().__init__(words, retry_after=1)


class ShuttingDown(ServerFault):
    status = 503
    code = "server_shutting_down"
    may_pass = True

    def __init__(self) -> None:
        super().__init__("The server is shutting down.", retry_after=5)


class RequestCancelled(ServerFault):
    status = 503
    code = "request_cancelled"
    may_pass = True

    def __init__(self) -> None:
        super().__init__("The server broke the request off.")


class TooManySockets(ServerFault):
    status = 503
    code = "too_many_websockets"
    may_pass = True

    def __init__(self) -> None:
        super().__init__("As many WebSocket connections are open as the server allows.", retry_after=5)


class HistoryMemoryFull(ServerFault):
    """Nothing was begun."""

    status = 503
    code = "history_memory_full"
    may_pass = True

    def __init__(self, size: int, most: int) -> None:
        super().__init__(
            f"The history of this request has {size:,} bytes, and others hold too much of the {most:,} that this "
            "server has for histories at once (limits.history_memory).",
            retry_after=5,
        )


class TooManyFollowers(ServerFault):
    status = 503
    code = "too_many_followers"
    may_pass = True

    def __init__(self, most: int, share: int) -> None:
        """`share`: how many one tenant, or one of its subjects, may read."""
        if share == most:
            problem = f"{most} streams of responses are read again right now, as many as the server allows"
        else:
            problem = f"You read {share} streams of responses again right now, your share of the {most} of the server"
        super().__init__(f"{problem} (server.followers).", retry_after=5)


class ToolServerUnavailable(ServerFault):
    """Nothing was begun or decided."""

    status = 503
    code = "tool_server_unavailable"
    may_pass = True

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem} What was approved goes on waiting; send the approval again later.", retry_after=5)


class BackendError(ServerFault):
    status = 502
    code = "backend_error"


class BackendUnavailable(BackendError):
    status = 503
    code = "backend_unavailable"
    may_pass = True


class BackendOverloaded(BackendUnavailable):
    code = "server_is_overloaded"


class BackendTimeout(BackendError):
    status = 504
    code = "backend_timeout"


class BackendCut(BackendError):
    code = "backend_stream_cut"


class Interrupted(Exception):
    """The run was told to stop."""


class Cancelled(Interrupted):
    """Somebody asked for it by id."""


class ClientLeft(Interrupted):
    """Nobody reads the answer any more."""


class DeadlinePassed(Interrupted):
    """The response took longer than its own limit."""


class HandedOver(Interrupted):
    """Another process goes on with the run: it stops here, and has not ended."""
