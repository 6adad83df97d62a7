"""A session with a server that stands: what can be asked over it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from itertools import count
from typing import Any, TypeVar, cast

from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import encode_header_value, find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR
from msgspec.structs import replace

from antwort.tools.mcp.base import ServerUnavailable, Unauthorized
from antwort.tools.mcp.lean import Lean, Line, Unusual
from antwort.tools.mcp.messages import (
    BROKEN,
    NOT_AN_ANSWER,
    UNAUTHORIZED,
    Agreement,
    Ask,
    Refused,
    Report,
    Unsent,
    progress_of,
)
from antwort.tools.mcp.quiet import own_context
from antwort.tools.mcp.unsolicited_traffic import Unsolicited
from antwort.tools.mcp.watching import Watch

Q = TypeVar("Q")


class Connection:
    """Requests go over the SDK's dispatcher, each in a task of its own: whoever is cancelled does not wait for the
    server to hear it. Calls over streamable HTTP go the lean way.
    """

    def __init__(
        self,
        dispatcher: JSONRPCDispatcher[Any],
        agreed: Agreement,
        over: asyncio.Event,
        watch: Watch | None,
    ) -> None:
        """`watch` is there for a session over HTTP."""
        self.agreed = agreed
        self.is_unproven = True
        """Whether it has answered nothing yet: one that ends so is as good as one that was never had."""
        self._dispatcher = dispatcher
        self._over = over
        self._watch = watch
        self._lean: Lean | None = None
        self._is_light = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._reports: dict[str, Report] = {}
        self._tokens = count(1)
        self._calls = 0
        self._is_retired = False
        self._mirrored: dict[str, tuple[Mapping[str, Any], dict[tuple[str, ...], str]]] = {}

    @property
    def has_ended(self) -> bool:
        return self._over.is_set()

    @property
    def is_usable(self) -> bool:
        """Whether anybody may still begin to ask something over it."""
        return not self._over.is_set() and not self._is_retired

    def lighten(
        self, line: Line, largest: int, largest_page: int, unsolicited: Unsolicited, changed: Callable[[], None]
    ) -> None:
        """Let calls and lists go the lean way."""
        self._is_light = True
        self._lean = Lean(
            line,
            self.agreed,
            largest,
            largest_page=largest_page,
            unsolicited=unsolicited,
            spawn=self._spawn,
            changed=changed,
            doubted=self.retire,
            refused=self._prove,
        )

    async def tell(self, message: Mapping[str, Any]) -> bool:
        """Say what has no answer; gives whether it goes the lean way, as it otherwise does not."""
        if self._lean is None:
            return False
        await self._lean.tell(message)
        return True

    def end(self) -> None:
        """Nothing more is asked over it. Its owner leaves it."""
        self._over.set()

    def retire(self) -> None:
        """Nobody else gets it. It ends with the last of the calls that are under way."""
        self._is_retired = True
        if not self._calls:
            self.end()

    async def finish(self, grace: float) -> None:
        """Let what is under way end, such as telling the server of a cancel."""
        self.end()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=grace)
            for task in late:
                task.cancel()

    def hear_progress(self, params: object) -> bool:
        """Whether it is of a call that is under way, in whichever way it went."""
        if (said := progress_of(params)) is None:
            return False
        if isinstance(said[0], str) and (report := self._reports.get(said[0])) is not None:
            report(said[1])
            return True
        return self._lean is not None and self._lean.hear_progress(said)

    def takes(self, schema: object) -> bool:
        """Whether the protocol lets a client use a tool with that schema."""
        return not self.agreed.is_modern or find_invalid_x_mcp_header(schema) is None

    def page(self, cursor: str | None) -> Coroutine[Any, Any, object]:
        """Of the list of tools. Raises as `_request` does."""
        params: dict[str, Any] = {} if cursor is None else {"cursor": cursor}
        if self.agreed.meta:
            params["_meta"] = dict(self.agreed.meta)
        return self._answered(Lean.page, self._list_by_sdk, params)

    def call(self, ask: Ask) -> Coroutine[Any, Any, object]:
        """What the server answers. Raises as `_request` does."""
        if self.agreed.is_modern:
            ask = replace(ask, headers=self._mirror(ask))
        return self._answered(Lean.call, self._call_by_sdk, ask)

    async def _answered(
        self,
        leanly: Callable[[Lean, Q], Coroutine[Any, Any, object]],
        by_sdk: Callable[[Q], Coroutine[Any, Any, object]],
        question: Q,
    ) -> object:
        """What is under way counts, and an answer proves the session, whatever it says."""
        self._calls += 1
        try:
            if self._lean is None or self._over.is_set():
                answer = await by_sdk(question)
            else:
                try:
                    answer = await leanly(self._lean, question)
                except Unusual:
                    self._lean = None
                    answer = await by_sdk(question)
        except Refused:
            self.is_unproven = False
            raise
        finally:
            self._calls -= 1
            if self._is_retired:
                self.retire()
        self.is_unproven = False
        return answer

    def _prove(self) -> None:
        """It has answered, were it only with a status."""
        self.is_unproven = False

    def _list_by_sdk(self, params: dict[str, Any]) -> Coroutine[Any, Any, object]:
        return self._request("tools/list", params, {})

    async def _call_by_sdk(self, ask: Ask) -> object:
        token = None if ask.progress is None else f"antwort-sdk-{next(self._tokens)}"
        params = {**ask.params(self.agreed, token), "arguments": dict(ask.said)}
        if token is not None and ask.progress is not None:
            self._reports[token] = ask.progress
        try:
            return await self._request("tools/call", params, ask.headers)
        finally:
            if token is not None:
                self._reports.pop(token, None)

    async def _request(self, method: str, params: dict[str, Any], headers: Mapping[str, str]) -> object:
        """Raises `Refused`, `Unsent`, `ServerUnavailable`."""
        if self.has_ended:
            raise Unsent
        options: CallOptions = {
            "headers": {"mcp-protocol-version": self.agreed.version, "mcp-method": method, **headers}
        }
        asked = self._spawn(self._dispatcher.send_raw_request(method, params, options))
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            asked.cancel()
            if cast("asyncio.Task[Any]", asyncio.current_task()).cancelling():
                raise
            self.end()  # the SDK's own, for a connection that is gone
            raise ServerUnavailable(BROKEN) from None
        except MCPError as error:
            raise self._judged(error) from error
        except Exception as exc:
            self.retire()  # what others wait for may still come
            raise ServerUnavailable(BROKEN) from exc

    def _judged(self, error: MCPError) -> Exception:
        """The SDK tells some of its own troubles as errors of the server's."""
        if isinstance(error.error.data, ServerUnavailable | Unsent):  # from a transport of our own
            return error.error.data
        code, refused = error.error.code, None if self._watch is None else self._watch.refused
        if code == CONNECTION_CLOSED and (self.has_ended or self._watch is not None):
            return ServerUnavailable(BROKEN)
        if self._is_light and code == INVALID_REQUEST and refused is None:
            return ServerUnavailable(NOT_AN_ANSWER)  # the SDK's words on a redirect, or an answer of another kind
        if self._watch is None or (refused is None and code != PARSE_ERROR):
            return Refused(code, error.error.message)
        if self._watch.is_unauthorized:
            return Unauthorized(UNAUTHORIZED)
        if code == INVALID_REQUEST and refused == 404 and self._watch.session is not None:
            self._prove()
            return Unsent(refused)
        if code in (PARSE_ERROR, INTERNAL_ERROR):
            return ServerUnavailable(NOT_AN_ANSWER)
        return Refused(code, error.error.message)

    def _mirror(self, ask: Ask) -> dict[str, str]:
        """What the newer versions want in the head as well, for whoever passes messages on."""
        headers = {"Mcp-Method": "tools/call", "Mcp-Name": encode_header_value(ask.name)}
        if ask.schema is None:
            return headers
        known = self._mirrored.get(ask.name)
        if known is None or known[0] is not ask.schema:
            known = self._mirrored[ask.name] = (ask.schema, x_mcp_header_map(ask.schema))
        return {**headers, **mcp_param_headers(known[1], ask.said)} if known[1] else headers

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, context=own_context())  # it may outlive the run that it is for
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
