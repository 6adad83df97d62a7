"""What is done before the first inference: the means to answer a request, and what came before it, become its plan."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TypeVar

import msgspec

from antwort.api.additional_tools import check_steps, is_additional
from antwort.api.items import InputItem, McpApprovalRequest, McpApprovalResponse, McpListTools, Message
from antwort.api.requests import CreateRequest
from antwort.api.resources import Approval
from antwort.api.responses import Model, Response
from antwort.api.status import transition
from antwort.api.tools import McpTool, OpaqueTool
from antwort.api.wire import replace
from antwort.engine.context.compaction import asks_to_compact, check_compacts, without_tools
from antwort.engine.context.compaction_item import since_compaction
from antwort.engine.context.token_counter import TokenEstimator
from antwort.engine.history.approval_ids import ApprovalIds
from antwort.engine.history.approvals import ApprovalTerms, check_unchanged, look_again, look_up, weighed
from antwort.engine.history.call_records import CallRecords
from antwort.engine.history.calls import is_made_here
from antwort.engine.history.client_results import results_by_call_id, with_call_ids
from antwort.engine.history.credentials import Credentials
from antwort.engine.history.deduplication import held_in, known_places, referring
from antwort.engine.history.history import assemble, is_all_new, load_chain, load_said, without_repeats
from antwort.engine.history.memory_limit import WAIT_SECONDS, HistoryMemory, HistoryReader
from antwort.engine.history.recent_responses import Recent, Records
from antwort.engine.history.references import is_known_by_id, recall_runs, resolve_references, without_references
from antwort.engine.history.sealed_reasoning import Sealed
from antwort.engine.loop.budgets import check_budget, seconds_of
from antwort.engine.plan import History, Plan, draft_response
from antwort.engine.prompt.additional_tools import UNBOUNDED, additional_tools
from antwort.engine.prompt.foreign import note_unseen
from antwort.engine.prompt.media import media_steps
from antwort.engine.prompt.messages import check_said
from antwort.engine.prompt.modalities import check_capabilities, has_media
from antwort.engine.prompt.tool_choice import check_choice
from antwort.engine.prompt.toolbox import Shelf, build_toolbox
from antwort.engine.prompt.toolbox_cache import Boxes
from antwort.engine.resources import Resources
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
from antwort.identity import Identity
from antwort.net.media import MediaHosts
from antwort.providers.base import OtherName
from antwort.storage.base import CallClaim, Decision, Link
from antwort.tools.routing import Toolbox

T = TypeVar("T")
_FIRST = frozenset({0})


class Means(msgspec.Struct, frozen=True):
    """What a request is answered with, whatever was said before it."""

    model: str
    shelf: Shelf
    toolbox: Toolbox
    listings: tuple[McpListTools, ...]
    compacts: bool


class Resumed(msgspec.Struct, frozen=True):
    """What holds for a run that another process may have begun: it is planned anew, and stays the same response."""

    response: Response
    """As it was put on record."""
    deadline: float
    """By the clock of the event loop."""


class Before(msgspec.Struct, frozen=True):
    """What came before a request, and the request as it is meant by that."""

    request: CreateRequest
    history: History
    chain: tuple[Link, ...] = ()
    own: tuple[InputItem, ...] | None = None
    """Its input in readable form, where it may hold anything sealed."""
    means: Means | None = None
    """Where tools were declared before, what the request is answered with."""
    decisions: tuple[Decision, ...] = ()
    brought_approvals: tuple[Approval, ...] = ()


class Planner:
    """Answers what has to be known before the first inference. It keeps nothing of a request, and may be broken off."""

    def __init__(self, resources: Resources, live: LiveRuns) -> None:
        self._provider, self._store, self._executors = resources.provider, resources.store, resources.executors
        self._settings, self._clock, self._vault = resources.settings, resources.clock, resources.vault
        self._meter, self._live = TokenEstimator(resources.provider), live
        self._boxes = Boxes()
        self._media = MediaHosts(self._settings.limits.media_hosts)
        self.history_memory = HistoryMemory(self._settings.limits.history_memory)
        """What the histories of all requests take."""

    async def models(self, identity: Identity) -> list[Model]:
        """Return the models that an identity may use."""
        return [model for model in await self._provider.models() if identity.may_use(model.id)]

    async def prepared(
        self,
        request: CreateRequest,
        identity: Identity,
        recent: Recent | None,
        lock: LockRequest | None = None,
        resumed: Resumed | None = None,
    ) -> Plan:
        """The plan, once it has the `lock` of its conversation. The time that a response has begins here, unless it
        is `resumed`; all that is waited for counts.
        """
        clock, pace, is_new = asyncio.get_running_loop().time, Pace(), is_all_new(request)
        brings_media = not is_new or has_media(request.input)
        if resumed is None:
            if request.background:
                _check_background(request, self._settings)
            check_budget(request, self._settings)
            if brings_media:
                for _ in media_steps(request.input, "input", self._media):
                    await pace.pause()
            deadline = clock() + seconds_of(request, self._settings)
        else:
            deadline = resumed.deadline
        asked = self._means(request, identity, deadline, is_new=is_new)
        means = await (self._in_time(request, asked, deadline) if request.model is None else asked)  # see `patience`
        if lock is not None:
            left = deadline - clock()
            await (self._acquire(lock, request, left) if resumed is None else lock.acquire(left))
        if request.tools or not is_new:
            await pace.pause()
        if not is_new:
            plan = self._plan_after(request, identity, means, recent, resumed)
            return await self._in_time(request, plan, deadline)
        sealed, before = Sealed(self._vault, identity), Before(request, History((request.input,), inputs=_FIRST))
        if brings_media:
            self._check_readable(before, means, sealed)
        return self._plan(before, identity, means, sealed, Credentials(self._vault, identity), resumed)

    async def _acquire(self, lock: LockRequest, request: CreateRequest, seconds: float) -> None:
        """Wait for the lock, at most for so many seconds as the response has. Raises `ConversationLocked`."""
        wait = self._settings.conversation_wait
        try:
            await lock.acquire(min(wait, seconds))
        except ConversationLocked as exc:
            if request.deadline is None or wait <= seconds:
                raise
            raise ConversationLocked(deadline=request.deadline) from exc

    async def _in_time(self, request: CreateRequest, work: Coroutine[None, None, T], deadline: float) -> T:
        """In the time that the response has. What tool servers do not say by then is left out before."""
        if not _must_ask(request):
            return await work
        try:
            async with asyncio.timeout_at(deadline):
                return await work
        except TimeoutError as exc:
            if request.deadline is not None:
                raise DeadlineTooShort(request.deadline) from exc
            raise BackendTimeout("The response could not be prepared in time.") from exc

    async def _means(self, request: CreateRequest, identity: Identity, deadline: float, *, is_new: bool) -> Means:
        model = request.model or self._settings.default_model
        if not model:
            model = await self._only_model(identity)
        elif not identity.may_use(model):
            raise NotPermitted(f"You may not use the model {shown(model)}.", param="model", code="model_not_allowed")
        capabilities = self._provider.capabilities(model)
        fresh = frozenset[str]() if is_new else await self._fresh(request, identity)
        shelf = Shelf(self._executors, identity, self._settings, capabilities, model, deadline, fresh)
        compacts = asks_to_compact(request)
        asked = without_tools(request) if compacts else request
        toolbox, listings = await build_toolbox(
            asked, shelf, with_standing=not compacts, is_all=is_new, boxes=self._boxes
        )
        return Means(model, shelf, toolbox, listings, compacts)

    async def _fresh(self, request: CreateRequest, identity: Identity) -> frozenset[str]:
        """The labels of the servers that are asked for their tools now: those whose calls are approved, so that whoever
        approves sees what has changed. All of them where it is not known whose calls they are.
        """
        if not (approved := _approved(request)):
            return frozenset()
        labels = {item.id: item.server_label for item in request.input if isinstance(item, McpApprovalRequest)}
        on_record = await self._store.find_approvals(identity, approved)
        labels |= {each.id: each.server_label for each in on_record.values()}
        if labels.keys() >= set(approved):
            return frozenset(labels[each] for each in approved)
        declared = [each.tool for each in request.declarations]
        return frozenset(tool.server_label for tool in declared if isinstance(tool, McpTool))

    async def _plan_after(
        self,
        request: CreateRequest,
        identity: Identity,
        means: Means,
        recent: Recent | None,
        resumed: Resumed | None,
    ) -> Plan:
        """The plan of a request that goes on from something, or says something that stands for something else."""
        sealed, credentials = Sealed(self._vault, identity), Credentials(self._vault, identity)
        reader = HistoryReader(
            self.history_memory,
            self._settings.limits,
            identity.tenant,
            truncates=(request.truncation or self._settings.truncation) == "auto",
            seconds=WAIT_SECONDS if resumed is None else None,
        )
        pace = Pace()
        try:
            before = await self._remembered(request, identity, means, recent, sealed, credentials, reader, resumed)
            means = before.means or means
            self._check_readable(before, means, sealed)
            await pace.pause()
            plan = self._plan(before, identity, means, sealed, credentials, resumed)
        except BaseException:
            reader.release()
            raise
        return msgspec.structs.replace(plan, reader=reader) if reader.size else plan

    def _plan(
        self,
        before: Before,
        identity: Identity,
        means: Means,
        sealed: Sealed,
        credentials: Credentials,
        resumed: Resumed | None,
    ) -> Plan:
        request, response = before.request, _response(before.request, means, self._settings, resumed)
        plan = Plan(
            request=request,
            identity=identity,
            settings=self._settings,
            response=response,
            toolbox=means.toolbox,
            capabilities=means.shelf.capabilities,
            history=before.history if before.own is None else sealed.opened_history(before.history, before.own),
            listings=means.listings,
            seal=sealed.seal_for(request),
            chain=before.chain,
            meter=self._meter.for_tenant(identity.tenant),
            memories=sealed.memories,
            credentials=credentials,
            compacts=means.compacts,
            call_records=self._call_records(before, identity, response.id),
            approval_ids=ApprovalIds(self._vault, identity),
            brought_approvals=before.brought_approvals,
            decisions=before.decisions,
            clock=self._clock,
            deadline=means.shelf.deadline,
            is_durable=bool(request.background),
        )
        check_said(plan)
        if means.compacts:
            check_compacts(plan)
        return plan

    def _call_records(self, before: Before, identity: Identity, response_id: str) -> CallRecords | None:
        if not before.history.leftovers and not before.history.answered:
            return None
        claims = _claims(before.history, before.request, response_id)
        return CallRecords(
            self._store, identity, response_id, claims, is_live=self._live.__contains__, catch_up=self._live.catch_up
        )

    async def _remembered(
        self,
        request: CreateRequest,
        identity: Identity,
        means: Means,
        recent: Recent | None,
        sealed: Sealed,
        credentials: Credentials,
        reader: HistoryReader,
        resumed: Resumed | None,
    ) -> Before:
        """What came before a request, and what it says that stands for something else."""
        pace = Pace()
        records: Records = self._store if recent is None else recent.before(self._store)
        items = await load_said(request, self._store, identity, reader)
        if request.previous_response_id is not None:
            await self._live.catch_up(identity, request.previous_response_id)
        kept = await load_chain(request, records, self._store, identity, reader)
        await pace.pause()
        items = with_call_ids(items)
        earlier = [*items, *(item for link in kept for item in (*link.input, *link.output))]
        messages = [item for item in earlier if isinstance(item, Message)]
        known = known_places(request.input, [*items, *held_in(kept)], messages, request.raw_input)
        await pace.pause()
        request = results_by_call_id(referring(request, known), earlier)
        await pace.pause()
        own = sealed.opened_input(request.input)
        response_id = None if resumed is None else resumed.response.id
        decided = await look_up(
            (*items, *request.input), kept, self._store, identity, self._live.__contains__, response_id
        )
        await pace.pause()
        check_unchanged(request.input, decided)
        request = await resolve_references(request, records, identity, reader, known)
        request, means = await self._with_additional(request, earlier, means, sealed, credentials, resumed)
        await pace.pause()
        said, chain = sealed.opened_said(items), sealed.opened_chain(kept)
        request = await recall_runs(request, chain, records, identity, reader, said)
        await pace.pause()
        request = without_repeats(request, chain, said, sealed.memories)
        await pace.pause()
        history = await assemble(
            request, chain, means.toolbox, means.shelf, credentials, said, sealed.memories, decided.askers
        )
        if reader.is_cut:
            history = replace(history, is_cut=True)
        decided = await look_again(history, decided, self._store, identity)
        await pace.pause()
        if means.compacts:
            return Before(without_references(request), history, kept, own, means)
        ids = ApprovalIds(self._vault, identity)
        terms = ApprovalTerms(ids, int(self._clock()), max(1, int(self._settings.approval_time)))
        history, decisions, brought = weighed(history, request, decided, terms)
        return Before(without_references(request), history, kept, own, means, decisions, brought)

    async def _with_additional(
        self,
        request: CreateRequest,
        earlier: Sequence[InputItem],
        means: Means,
        sealed: Sealed,
        credentials: Credentials,
        resumed: Resumed | None,
    ) -> tuple[CreateRequest, Means]:
        """The request with the tools that items have declared, in it and before it, and what it is answered with then.
        Raises `InvalidField` where these are too many, or the choice is not among them.
        """
        path = "previous_response_id" if request.conversation is None else "conversation"
        limits, memories = self._settings.limits, sealed.memories
        most = limits.tools if resumed is None else UNBOUNDED  # it was taken under other limits
        additional = await additional_tools(earlier, request.input, credentials, memories, path=path, most=most)
        if additional != request.additional:
            request = replace(request, additional=additional)
            if resumed is None:
                await in_turns(check_steps(request.declarations, limits))
            if not means.compacts:
                toolbox, listings = await build_toolbox(request, means.shelf, boxes=self._boxes)
                means = msgspec.structs.replace(means, toolbox=toolbox, listings=listings)
        if not means.compacts:
            check_choice(request, means.toolbox, self._settings)
        return request, means

    def _check_readable(self, before: Before, means: Means, sealed: Sealed) -> None:
        """Refuse what the backend cannot read, and say in the log what the model is not shown."""
        if not means.compacts:
            self._check_capable(before.history, means, sealed)
        note_unseen(before.history.stretches)

    def _check_capable(self, history: History, means: Means, sealed: Sealed) -> None:
        shown = since_compaction(history.stretches, history.inputs, sealed.memories, history.kept)
        earlier = "conversation" if history.kept else "previous_response_id"
        if shown.skipped:
            earlier = f"input[{shown.skipped - 1}].encrypted_content"
        check_capabilities(shown.stretches, means.shelf.capabilities, earlier, shown.skipped)

    async def _only_model(self, identity: Identity) -> str:
        """For a request that names none."""
        models = await self.models(identity)
        own = [model for model in models if not isinstance(model, OtherName)] or models
        if len(own) == 1:
            return own[0].id
        problem = "missing, and there is not just one model to choose from."
        raise InvalidField("model", problem, code="missing_required_parameter")


def _claims(history: History, request: CreateRequest, response_id: str) -> dict[str, CallClaim]:
    """The claim on each call that the response settles, by call id. It is kept with the stored response that asked for
    the call, else with the conversation, else with the response itself; without any of them, there is no record.
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
        claims[answered.call_id] = msgspec.structs.replace(answered, settled_by=response_id)
    return claims


def _approved(request: CreateRequest) -> list[str]:
    """The ids of the approval requests that it approves. Approvals with anything behind them but words of the user were
    acted on before.
    """
    approved: list[str] = []
    for item in reversed(request.input):
        if isinstance(item, McpApprovalResponse):
            if item.approve:
                approved.append(item.approval_request_id)
        elif not is_additional(item) and (not isinstance(item, Message) or item.role == "assistant"):
            break
    return approved


def _must_ask(request: CreateRequest) -> bool:
    """Whether the plan needs anybody else: the store, a tool server, the backend's list of models."""
    return (
        request.model is None
        or request.previous_response_id is not None
        or request.conversation is not None
        or any(isinstance(each.tool, McpTool | OpaqueTool) for each in request.declarations)
        or any(is_known_by_id(item) for item in request.input)
    )


def _response(request: CreateRequest, means: Means, settings: EngineSettings, resumed: Resumed | None) -> Response:
    """As it starts."""
    if resumed is None:
        return draft_response(request, means.model, settings)
    response = resumed.response
    return response if response.status != "queued" else replace(response, status=transition("queued", "in_progress"))


def _check_background(request: CreateRequest, settings: EngineSettings) -> None:
    if not request.is_stored:
        raise InvalidField("background", "a background response must be stored; 'store' is false.")
    if not settings.background.enabled:
        raise UnsupportedFeature("Background responses are not offered here.", param="background")
