"""Plan a response: find its model, tools and history, and check all that can be checked before the first inference."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import TypeVar

import msgspec

from antwort.api.decoding import UNLIMITED, Steps
from antwort.api.items import InputItem, McpApprovalRequest, McpApprovalResponse, Message, is_additional
from antwort.api.requests import CreateRequest
from antwort.api.responses import Model, Response
from antwort.api.status import transition
from antwort.api.tool_parsing import check_steps
from antwort.api.tools import McpTool, OpaqueTool
from antwort.api.wire import replace
from antwort.engine.context.compaction import asks_to_compact, check_compacts, without_tools
from antwort.engine.context.compaction_item import since_compaction
from antwort.engine.context.token_counter import TokenEstimator
from antwort.engine.history.approval_records import (
    check_unchanged,
    find_approvals,
    find_more_approvals,
    settle_approvals,
)
from antwort.engine.history.call_records import CallRecords
from antwort.engine.history.calls import CallIndex, is_made_here
from antwort.engine.history.deduplication import known_steps, referring
from antwort.engine.history.history import assemble, is_all_new, load_chain, load_conversation, unrepeated_steps
from antwort.engine.history.memory_limit import WAIT_SECONDS, HistoryReader
from antwort.engine.history.recent_responses import RecentResponses
from antwort.engine.history.references import (
    call_id_steps,
    is_known_by_id,
    resolve_references,
    results_by_call_id_steps,
    without_references,
)
from antwort.engine.history.sealed_items import SealedItems
from antwort.engine.plan import Budget, History, Plan, budget_of, compact_threshold, draft_response
from antwort.engine.prompt.chat_request import emptiness_steps, is_certainly_heard
from antwort.engine.prompt.content_checks import check_capabilities, has_media, media_steps, omitted_steps
from antwort.engine.prompt.declared_tools import additional_tools
from antwort.engine.prompt.discovery import Discovery
from antwort.engine.prompt.tool_choice import check_choice
from antwort.engine.prompt.toolbox import build_toolbox, toolbox_cache
from antwort.engine.resources import Resources, model_hint, usable_models
from antwort.engine.runs.conversation_lock import LockRequest
from antwort.engine.runs.live import LiveRuns
from antwort.engine.settings import EngineSettings
from antwort.errors import (
    BackendTimeout,
    ConversationLocked,
    DeadlineTooShort,
    InvalidField,
    NotPermitted,
    UnsupportedFeature,
    shown,
)
from antwort.event_loop import Pace, in_turns
from antwort.identity import ANONYMOUS, Identity
from antwort.limiter import Limiter
from antwort.net.media import MediaHosts
from antwort.providers.base import OtherName
from antwort.storage.base import CallClaim
from antwort.suggestions import among

T = TypeVar("T")
_log = logging.getLogger("antwort.engine")
_FIRST = frozenset({0})
_NO_LABELS = frozenset[str]()
_NO_LOG = "Background responses are not offered here: there is no log of runs for the store of the engine."


class Resumed(msgspec.Struct, frozen=True):
    """A response that another process may have begun: it is planned anew, and stays the same response."""

    response: Response
    """As it is stored."""
    deadline: float
    """By the clock of the event loop."""

    def draft(self) -> Response:
        """Return the response as it starts now."""
        response = self.response
        if response.status == "queued":
            response = replace(response, status=transition("queued", "in_progress"))
        return response


class Planner:
    """Make the plans of an engine. A request leaves nothing behind here, and its planning may be cancelled."""

    def __init__(self, resources: Resources, live: LiveRuns) -> None:
        settings = resources.settings
        self.history_memory = Limiter(settings.limits.history_memory, settings.limits.history_memory // 2)
        """The bytes that large histories of all requests share. A tenant gets half of them."""
        self.resources, self.live = resources, live
        self.default_budget = budget_of(CreateRequest(), settings)
        """The limits of requests that ask for none."""
        self._estimator = TokenEstimator(resources.provider, tenant=ANONYMOUS.tenant)
        self.toolboxes = toolbox_cache()
        self._media = MediaHosts(settings.limits.media_hosts)

    async def models(self, identity: Identity) -> list[Model]:
        """Return the models that an identity may use."""
        return await usable_models(self.resources.provider, identity)

    async def plan(
        self,
        request: CreateRequest,
        identity: Identity,
        recent: RecentResponses | None = None,
        *,
        lock: LockRequest | None = None,
        resumed: Resumed | None = None,
    ) -> Plan:
        """Return the plan, once it has the `lock` of its conversation, which the plan holds from then on. The time of
        the response begins here, unless it is `resumed`; all waiting counts.
        """
        resources, settings, now = self.resources, self.resources.settings, asyncio.get_running_loop().time
        is_new, pace = is_all_new(request), Pace()
        brings_media = not is_new or has_media(request.input)
        deadline = now() + (request.deadline or settings.deadline) if resumed is None else resumed.deadline
        try:
            if resumed is None:
                if request.unknown_fields and _log.isEnabledFor(logging.DEBUG):
                    _log.debug("%s", request.warnings)
                if request.background:
                    self._check_background(request)
                if brings_media:
                    for _ in media_steps(request.input, "input", self._media):
                        await pace.pause()
            budget = self._budget_of(request, is_accepted=resumed is not None)

            model = request.model or settings.default_model
            if not model:
                model = await _in_time(request, self._only_model(request, identity), deadline)
            elif not identity.may_use(model):
                hint = await model_hint(model, self.resources.provider, identity)
                problem = f"You may not use the model {shown(model)}. {hint}"
                raise NotPermitted(problem.rstrip(), param="model", code="model_not_allowed")
            capabilities, compacts = resources.provider.capabilities(model), asks_to_compact(request)
            fresh = _NO_LABELS if is_new else await self._fresh_labels(request, identity)
            discovery = Discovery(resources.executors, identity, settings, capabilities, model, deadline, fresh)
            # Tool servers have a time of their own: `Discovery.patience`.
            toolbox, listings = await build_toolbox(
                without_tools(request) if compacts else request,
                discovery,
                with_standing=not compacts,
                is_complete=is_new,
                cache=self.toolboxes,
            )
            if lock is not None:
                left = deadline - now()
                await (_acquire(lock, request, settings, left) if resumed is None else lock.acquire(left))
            if request.tools or not is_new:
                await pace.pause()

            estimator, tenant = self._estimator, identity.tenant
            plan = Plan(
                request=request,
                identity=identity,
                settings=settings,
                response=draft_response(request, model, settings) if resumed is None else resumed.draft(),
                budget=budget,
                toolbox=toolbox,
                capabilities=capabilities,
                history=History((request.input,), inputs=_FIRST),
                listings=listings,
                estimator=estimator if estimator.tenant == tenant else replace(estimator, tenant=tenant),
                sealed=SealedItems(resources.vault, identity),
                compacts=compacts,
                compact_threshold=compact_threshold(request, capabilities) if request.context_management else None,
                clock=resources.clock,
                deadline=deadline,
                lock=lock,
                is_durable=bool(request.background),
            )
            if not is_new:
                continuation = _Continuation(self, plan, discovery, recent, is_resumed=resumed is not None)
                return await _in_time(request, continuation.plan(), deadline)
            if brings_media:
                await in_turns(readable_steps(plan))
            return await _checked(plan)
        except BaseException:
            if lock is not None:
                lock.release()
            raise

    def _check_background(self, request: CreateRequest) -> None:
        if self.resources.runs is None:
            raise UnsupportedFeature(_NO_LOG, param="background")
        if not request.is_stored:
            raise InvalidField("background", "a background response must be stored; 'store' is false.")
        if not self.resources.settings.background.enabled:
            raise UnsupportedFeature("Background responses are not offered here.", param="background")

    def _budget_of(self, request: CreateRequest, *, is_accepted: bool) -> Budget:
        """Return the limits of a response. Refuse a request that asks for more than there is, unless it was accepted
        before: its client would count on it.
        """
        turns, seconds, tokens, settings = (
            request.max_turns,
            request.deadline,
            request.token_budget,
            self.resources.settings,
        )
        if turns is None and seconds is None and tokens is None and request.max_tool_calls is None:
            return self.default_budget
        for field, asked, most in (
            ("max_turns", turns, settings.max_turns),
            ("deadline", seconds, settings.deadline),
            ("token_budget", tokens, settings.token_budget),
        ):
            if asked is not None and asked > most and not is_accepted:
                raise InvalidField(
                    field, f"this server allows {most:.15g} at most, and a request may only ask for less."
                )
        return budget_of(request, settings)

    async def _fresh_labels(self, request: CreateRequest, identity: Identity) -> frozenset[str]:
        """Return the labels of the servers whose calls are approved: they list their tools anew, so that a change shows
        before the call runs. If a server is not known, it may be any of them.
        """
        if not (approved := _approved(request)):
            return frozenset()
        labels = {item.id: item.server_label for item in request.input if isinstance(item, McpApprovalRequest)}
        stored = await self.resources.store.find_approvals(identity, approved)
        labels |= {each.id: each.server_label for each in stored.values()}
        if labels.keys() >= set(approved):
            return frozenset(labels[each] for each in approved)
        declared = [each.tool for each in request.declarations]
        return frozenset(tool.server_label for tool in declared if isinstance(tool, McpTool))

    async def _only_model(self, request: CreateRequest, identity: Identity) -> str:
        """Return the model for a request that names none."""
        models = await self.models(identity)
        own = [model for model in models if not isinstance(model, OtherName)] or models
        if len(own) == 1:
            return own[0].id
        choice = among("", [model.id for model in models])
        raise request.missing("model", f"There is not just one to choose from. {choice}".rstrip())


async def _checked(plan: Plan) -> Plan:
    """Return the plan, if there is something for the model to read."""
    if not is_certainly_heard(plan.history):
        await in_turns(emptiness_steps(plan))
    if plan.compacts:
        check_compacts(plan)
    return plan


class _Continuation:
    """Plans a request that continues something, or whose input refers to something."""

    def __init__(
        self,
        planner: Planner,
        plan: Plan,
        discovery: Discovery,
        recent: RecentResponses | None,
        *,
        is_resumed: bool,
    ) -> None:
        """`plan` is that of the request without its history."""
        self._planner, self._draft, self._discovery, self._is_resumed = planner, plan, discovery, is_resumed
        self._request, self._toolbox, self._listings = plan.request, plan.toolbox, plan.listings
        self._store = planner.resources.store
        self._reader = HistoryReader(
            planner.history_memory,
            plan.settings.limits,
            self._store,
            recent,
            plan.identity,
            truncates=plan.response.truncation == "auto",
            seconds=None if is_resumed else WAIT_SECONDS,
        )

    async def plan(self) -> Plan:
        reader = self._reader
        try:
            history = await self._history()
            plan = replace(
                self._draft,
                request=without_references(self._request),
                toolbox=self._toolbox,
                listings=self._listings,
                history=history,
            )
            await in_turns(readable_steps(plan))
            if history.leftovers or history.answered:
                plan = replace(plan, call_records=self._call_records(plan))
            plan = await _checked(plan)
        except BaseException:
            reader.release()
            raise
        return replace(plan, reader=reader) if reader.size else plan

    def _call_records(self, plan: Plan) -> CallRecords:
        live, response_id = self._planner.live, plan.response.id
        claims = _claims(plan.history, plan.request, response_id)
        return CallRecords(
            self._store, plan.identity, response_id, claims, is_live=live.__contains__, catch_up=live.catch_up
        )

    async def _history(self) -> History:
        draft, store, reader, pace = self._draft, self._store, self._reader, Pace()
        identity, sealed = draft.identity, draft.sealed
        request, live = self._request, self._planner.live
        conversation = await load_conversation(request, store, identity, reader)
        if request.previous_response_id is not None:
            await live.catch_up(identity, request.previous_response_id)
        stored_chain = await load_chain(request, store, identity, reader)
        await pace.pause()
        conversation = await in_turns(call_id_steps(conversation, CallIndex()))
        earlier = [*conversation, *(item for link in stored_chain for item in (*link.input, *link.output))]
        calls = await in_turns(CallIndex.steps(earlier))
        known = await in_turns(known_steps(request, earlier, calls.answered))
        await pace.pause()
        request = await in_turns(results_by_call_id_steps(referring(request, known), calls))
        await pace.pause()
        sealed.check_input(request.input)
        response_id = draft.response.id if self._is_resumed else None
        sent = [*conversation, *request.input]
        approvals = await find_approvals(sent, calls, stored_chain, store, identity, live.__contains__, response_id)
        await pace.pause()
        check_unchanged(request.input, approvals)
        request = await resolve_references(request, stored_chain, conversation, calls, reader, known)
        request = await self._with_additional_tools(request, earlier)
        await pace.pause()
        conversation, chain = sealed.opened(conversation), sealed.opened_chain(stored_chain)
        steps = unrepeated_steps(request, chain, conversation, sealed.memories)
        self._request = request = await in_turns(steps)
        await pace.pause()
        history = await assemble(request, chain, self._toolbox, self._discovery, sealed, conversation, approvals.askers)
        history = replace(history, chain=stored_chain, is_cut=reader.is_cut)
        approvals = await find_more_approvals(history, approvals, store, identity)
        await pace.pause()
        if not draft.compacts:
            seconds = max(1, int(draft.settings.approval_time))
            now = int(self._planner.resources.clock())
            history = settle_approvals(history, request, approvals, sealed, now, seconds)
        return history

    async def _with_additional_tools(self, request: CreateRequest, earlier: Sequence[InputItem]) -> CreateRequest:
        """Add the tools that items declare, in the request and before it. Raises `InvalidField` where these are too
        many, or the choice is not among them.
        """
        draft, limits = self._draft, self._draft.settings.limits
        path = "previous_response_id" if request.conversation is None else "conversation"
        most = UNLIMITED.tools if self._is_resumed else limits.tools  # it was accepted under other limits
        additional = await additional_tools(earlier, request.input, draft.sealed, path=path, most=most)
        if additional != request.additional:
            request = replace(request, additional=additional)
            if not self._is_resumed:
                await in_turns(check_steps(request.declarations, limits))
            if not draft.compacts:
                self._toolbox, self._listings = await build_toolbox(
                    request, self._discovery, cache=self._planner.toolboxes
                )
        if not draft.compacts:
            check_choice(request, self._toolbox, draft.settings)
        return request


async def _acquire(lock: LockRequest, request: CreateRequest, settings: EngineSettings, seconds: float) -> None:
    """Wait for the lock, at most for so many seconds as the response has. Raises `ConversationLocked`."""
    wait = settings.conversation_wait
    try:
        await lock.acquire(min(wait, seconds))
    except ConversationLocked as exc:
        if request.deadline is None or wait <= seconds:
            raise
        raise ConversationLocked(deadline=request.deadline) from exc


async def _in_time(request: CreateRequest, work: Coroutine[None, None, T], deadline: float) -> T:
    """Do the work before the deadline, unless it waits for nothing: no store, no tool server, no list of models."""
    waits = (
        request.model is None
        or request.previous_response_id is not None
        or request.conversation is not None
        or any(isinstance(each.tool, McpTool | OpaqueTool) for each in request.declarations)
        or any(map(is_known_by_id, request.input))
    )
    if not waits:
        return await work
    try:
        async with asyncio.timeout_at(deadline):
            return await work
    except TimeoutError as exc:
        if request.deadline is not None:
            raise DeadlineTooShort(request.deadline) from exc
        raise BackendTimeout("The response could not be prepared in time.") from exc


def readable_steps(plan: Plan) -> Steps[None]:
    """Refuse what the backend cannot read, and log what the model is not shown, in pieces."""
    history = plan.history
    if not plan.compacts:
        said = since_compaction(history.stretches, history.inputs, plan.sealed.memories, history.kept)
        earlier = "conversation" if history.kept else "previous_response_id"
        if said.skipped:
            earlier = f"input[{said.skipped - 1}].encrypted_content"
        check_capabilities(said.stretches, plan.capabilities, earlier, said.skipped)
        yield
    yield from omitted_steps(history.stretches)


def _claims(history: History, request: CreateRequest, response_id: str) -> dict[str, CallClaim]:
    """Return the claim on each call that the response settles, by call id. It is stored with the response that asked
    for the call, else with the conversation, else with the response itself; without any of them, there is none.
    """
    claims: dict[str, CallClaim] = {}
    for left in history.leftovers:
        call_id = left.call.call_id
        if not is_made_here(call_id):
            continue  # a client may use its own ids again for other calls
        own = response_id if request.is_stored and request.conversation is None else None
        if (holder := left.asked_by or own) is not None:
            claims[call_id] = CallClaim(call_id=call_id, settled_by=response_id, response_id=holder)
        elif request.conversation is not None:
            claims[call_id] = CallClaim(call_id=call_id, settled_by=response_id, conversation_id=request.conversation)
    for answered in history.answered:
        claims[answered.call_id] = replace(answered, settled_by=response_id)
    return claims


def _approved(request: CreateRequest) -> list[str]:
    """Return the ids of the approval requests that the request approves. An approval with anything behind it but
    messages of the user was acted on before.
    """
    approved: list[str] = []
    for item in reversed(request.input):
        if isinstance(item, McpApprovalResponse):
            if item.approve:
                approved.append(item.approval_request_id)
        elif not is_additional(item) and (not isinstance(item, Message) or item.role == "assistant"):
            break
    return approved
