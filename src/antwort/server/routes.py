"""The endpoints, and which of them a request is for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import MappingProxyType
from typing import Literal, TypeAlias
from urllib.parse import unquote

from antwort.api.decoding import SMALL_BODY
from antwort.api.items import McpListTools
from antwort.api.requests import compaction_steps, request_steps
from antwort.api.responses import Model, Response
from antwort.api.standard import wording
from antwort.api.status import FINAL
from antwort.api.wire import Wire, encode, replace
from antwort.engine.engine import Engine
from antwort.engine.runs.idempotency import checked_key
from antwort.errors import MethodNotAllowed, ModelNotFound, NotFound, RequestError, ResponseNotFound
from antwort.event_loop import in_turns, next_turn, turns
from antwort.identity import TENANT, Identity
from antwort.server.api_reference import FILES, ApiReference
from antwort.server.exchange import Exchange, Scope
from antwort.server.offer import Offer
from antwort.server.quotas import Followers, Quotas
from antwort.server.readiness import Readiness
from antwort.server.relay import RELAYED, Ask, Relay
from antwort.server.resources import (
    MAX_ID,
    ApprovalRoutes,
    ConversationRoutes,
    Endpoint,
    Offered,
    ends,
    is_id,
    item_list,
    read_after,
    read_page,
    read_wanted,
    readable,
)
from antwort.server.respond import follow, respond, unless_gone
from antwort.suggestions import addresses, among

Identify: TypeAlias = Callable[[Scope], Identity]
"""Return who a request is made for. May raise `NotAuthenticated`."""

FOLLOWERS = 256
NOTHING: Mapping[str, Endpoint] = MappingProxyType({})


class ResponseList(Wire, kw_only=True):
    object: Literal["list"] = "list"
    data: tuple[Response, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ModelList(Wire, kw_only=True):
    object: Literal["list"] = "list"
    data: tuple[Model, ...]


class ToolsetList(Wire, kw_only=True):
    object: Literal["list"] = "list"
    data: tuple[McpListTools, ...]


class Deleted(Wire, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class InputTokens(Wire, kw_only=True):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class Routes:
    """The endpoints, and which of them a request is for.

    `extra` are endpoints to read, by their paths. They are open: each decides for itself who may read it. `ask` asks
    other processes for what they make. `followers`: how many may read streams again at once.
    """

    def __init__(
        self,
        engine: Engine,
        identify: Identify,
        *,
        body_limit: int,
        quotas: Quotas,
        offer: Offer,
        followers: int = FOLLOWERS,
        extra: Mapping[str, Endpoint] = NOTHING,
        ask: Ask | None = None,
    ) -> None:
        self._followers = Followers(followers)
        self._engine, self._identify, self._body_limit, self._quotas = engine, identify, body_limit, quotas
        self._remembers_keys = bool(engine.settings.idempotency)
        self._words = wording(strict=engine.settings.strict)
        self._encode = self._words.encode
        self._relay = Relay(engine, ask)
        self._readiness = Readiness(engine.check)
        self._reference = ApiReference(
            self.offered,
            lambda: replace(offer, limits=engine.settings.limits, tells_quotas=quotas.have_headers),
            engine,
        )
        self._open = frozenset(
            {"/healthz", "/readyz", "/openapi.json", "/docs", *(f"/docs/{name}" for name in FILES), *extra}
        )
        self._by_path: dict[str, Offered] = {
            "/v1/responses": {"POST": self.create, **readable(self.list)},
            "/v1/responses/compact": {"POST": self.compact},
            "/v1/responses/input_tokens": {"POST": self.input_tokens},
            "/v1/models": readable(self.models),
            "/v1/toolsets": readable(self.toolsets),
            "/healthz": readable(self.health),
            "/readyz": readable(self.readiness),
            "/openapi.json": readable(self._reference.document),
            "/docs": readable(self._reference.page),
            **{path: readable(endpoint) for path, endpoint in extra.items()},
            "/v1/responses/{id}": {**readable(self.retrieve), "DELETE": self.delete},
            "/v1/responses/{id}/cancel": {"POST": self.cancel},
            "/v1/responses/{id}/input_items": readable(self.input_items),
            "/v1/models/{name}": readable(self.model),
            **ConversationRoutes(engine.conversations, self._encode, body_limit).offered(),
            **ApprovalRoutes(engine, self._encode).offered(),
        }
        """What a client fills in stands in braces."""
        self._templates = [(tuple(path.split("/")[1:]), offered) for path, offered in self._by_path.items()]

    def offered(self) -> dict[tuple[str, str], Endpoint]:
        """Return every endpoint, by method and path."""
        return {
            (method, path): endpoint for path, offered in self._by_path.items() for method, endpoint in offered.items()
        }

    def identify(self, exchange: Exchange) -> None:
        """Set the identity of the exchange. Raises `NotAuthenticated`.

        It comes first, for every path that is not open: so no endpoint can forget it, no body is read for a stranger,
        and a stranger does not learn what is here and what is not.
        """
        if exchange.path in self._open:
            return
        token = exchange.headers.get(RELAYED)
        if token is None:
            exchange.identity = self._identify(exchange.scope)
        else:  # another process has seen to it
            exchange.identity = self._relay.identity(exchange, token)
        TENANT.set(exchange.identity.tenant)

    def find(self, method: str, path: str) -> tuple[Endpoint, str]:
        """Return the endpoint for a path as it was written, and its id. Raises `NotFound` or `MethodNotAllowed`."""
        offered, subject = self._by_path.get(path), ""
        if offered is None or "{" in path:
            offered, subject = self._match(path)
        endpoint = offered.get(method)
        if endpoint is None:
            raise MethodNotAllowed(method, tuple(offered))
        return endpoint, subject

    def _match(self, path: str) -> tuple[Offered, str]:
        segments = tuple([unquote(segment) for segment in path.split("/")[1:]])
        for template, offered in self._templates:
            if (ids := _ids_in(template, segments)) is not None:
                return offered, ids
        if segments[:1] == ("docs",) and len(segments) == 2 and segments[1]:  # a file of the page
            return self._by_path["/docs"], segments[1]
        problem = f"There is nothing at {path[:MAX_ID]!r}. {addresses(path, self._by_path)}"
        raise NotFound(problem, code="unknown_url")

    # ---- responses ----

    async def create(self, exchange: Exchange, _: str) -> None:
        """A slot is taken before the body is read, which is in memory from then on."""
        identity, key = exchange.identity, b"idempotency-key"
        keys = exchange.header_values(key) if key in exchange.headers else []
        quota, known_by = self._quotas.of(identity.key), keys[0] if keys and self._remembers_keys else b""
        with quota.slot(exchange.answer_headers, known_by):
            body = await exchange.body(self._body_limit)
            if len(body) > SMALL_BODY:  # parsing takes long
                await next_turn()
            elif (place := turns().begin_short(identity.tenant)) is not None:
                await place
            request = await in_turns(request_steps(body, self._engine.settings.limits))
            if request.unknown_fields:
                exchange.answer_headers.append((b"antwort-warning", request.warnings.encode()))
            try:
                await respond(exchange, self._engine, self._words, request, identity, self._key(keys) if keys else None)
            finally:
                if exchange.run is not None and exchange.run.runs_alone:
                    quota.keep(exchange.run, known_by)

    async def compact(self, exchange: Exchange, _: str) -> None:
        """It takes a slot as a response does, and counts as one."""
        identity = exchange.identity
        with self._quotas.of(identity.key).slot(exchange.answer_headers):
            body = await exchange.body(self._body_limit)
            request = await in_turns(compaction_steps(body, self._engine.settings.limits))
            await respond(exchange, self._engine, self._words, request, identity)

    async def input_tokens(self, exchange: Exchange, _: str) -> None:
        """It takes a slot while it counts, because a backend may be asked, and is a request; it uses no tokens."""
        identity = exchange.identity
        with self._quotas.of(identity.key).slot(exchange.answer_headers):
            body = await exchange.body(self._body_limit)
            request = await in_turns(request_steps(body, self._engine.settings.limits))
            tokens = await unless_gone(exchange, self._engine.count(request, identity))
        await exchange.answer(self._encode(InputTokens(input_tokens=tokens)))

    def _key(self, given: Sequence[bytes]) -> str | None:
        """Return the key, where keys are remembered. Of two that differ it is not known which is meant."""
        if not self._remembers_keys:
            return None
        if len(set(given)) > 1:
            raise RequestError("There is more than one Idempotency-Key.", code="invalid_idempotency_key")
        return checked_key(given[0].decode("latin-1"))

    async def list(self, exchange: Exchange, _: str) -> None:
        """Not in the standard: the responses that the identity has stored."""
        page, wanted = read_page(exchange.query()), read_wanted(exchange.query_pairs())
        found = await self._engine.list(exchange.identity, page, wanted)
        first, last = ends(found.responses)
        listed = ResponseList(data=found.responses, first_id=first, last_id=last, has_more=found.has_more)
        await exchange.answer(self._encode(listed))

    async def retrieve(self, exchange: Exchange, response_id: str) -> None:
        """Return the response; with `stream`, the events that led there, and those to come."""
        after, wanted = read_after(exchange.query()), _checked(exchange, response_id)
        if after is None:
            response = await self._engine.retrieve(exchange.identity, wanted)
            if response.status in FINAL or not await self._relay.answers(exchange, wanted):
                await exchange.answer(self._encode(response))
        else:
            with self._following(exchange):
                if not await self._relay.answers(exchange, wanted):
                    run = await self._engine.follow(exchange.identity, wanted, after)
                    await follow(exchange, run, self._words)

    @contextmanager
    def _following(self, exchange: Exchange) -> Iterator[None]:
        """Hold a slot for reading a stream again. What another process passes on has one of its key there."""
        identity, is_passed_on = exchange.identity, exchange.headers.get(RELAYED) is not None
        counted = nullcontext() if is_passed_on else self._quotas.of(identity.key).following(exchange.answer_headers)
        with counted, self._followers.slot(identity):
            yield

    async def delete(self, exchange: Exchange, response_id: str) -> None:
        await self._engine.delete(exchange.identity, _checked(exchange, response_id))
        await exchange.answer(encode(Deleted(id=response_id)))

    async def cancel(self, exchange: Exchange, response_id: str) -> None:
        response = await self._engine.cancel(exchange.identity, _checked(exchange, response_id))
        await exchange.answer(self._encode(response))

    async def input_items(self, exchange: Exchange, response_id: str) -> None:
        page = read_page(exchange.query())
        found = await self._engine.input_items(exchange.identity, _checked(exchange, response_id), page)
        await exchange.answer(self._encode(item_list(found.items, has_more=found.has_more)))

    # ---- models, tools and health ----

    async def models(self, exchange: Exchange, _: str) -> None:
        await exchange.answer(encode(ModelList(data=tuple(await self._engine.models(exchange.identity)))))

    async def model(self, exchange: Exchange, name: str) -> None:
        models = await self._engine.models(exchange.identity)
        for model in models:
            if model.id == name:
                return await exchange.answer(encode(model))
        raise ModelNotFound(name[:MAX_ID], among(name, [model.id for model in models]))

    async def toolsets(self, exchange: Exchange, _: str) -> None:
        """Not in the standard: what requests can reach by label."""
        await exchange.answer(self._encode(ToolsetList(data=tuple(await self._engine.toolsets(exchange.identity)))))

    async def health(self, exchange: Exchange, _: str) -> None:
        await exchange.answer(b'{"status":"ok"}')

    def leave(self) -> None:
        """Report that the server is not ready, from now on."""
        self._readiness.leave()

    async def readiness(self, exchange: Exchange, _: str) -> None:
        """Ready when every part is. Why a part is not is told to those only who may come in."""
        parts = await self._readiness.verdict()
        ready = all(state == "ok" for state in parts.values())
        shown = parts if self._may_come_in(exchange) else {}
        body = encode({"status": "ok" if ready else "unavailable", **shown})
        await exchange.answer(body, status=200 if ready else 503)

    def _may_come_in(self, exchange: Exchange) -> bool:
        """Whatever `identify` fails with, they may not: probes of readiness bring no key."""
        try:
            self._identify(exchange.scope)
        except Exception:
            return False
        return True


def _checked(exchange: Exchange, response_id: str) -> str:
    """Return the id, if a store may have given it out; others are not looked up."""
    if not is_id(response_id):
        raise ResponseNotFound(response_id[:MAX_ID])
    exchange.response_id = response_id
    return response_id


def _ids_in(template: tuple[str, ...], segments: tuple[str, ...]) -> str | None:
    """Return the ids in the segments of a path, joined by slashes, or None if they do not match."""
    if template[-1] == "{name}":  # the name of a model may have slashes in it
        head, name = segments[: len(template) - 1], segments[len(template) - 1 :]
        return "/".join(name) if head == template[:-1] and name not in ((), ("",)) else None
    if len(template) != len(segments):
        return None
    ids: list[str] = []
    for part, segment in zip(template, segments, strict=True):
        if part.startswith("{") and segment:
            ids.append(segment)
        elif part != segment:
            return None
    return None if len(ids) > 1 and "/" in ids[0] else "/".join(ids)
