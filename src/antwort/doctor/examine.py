"""One examination of a backend: it is asked, one question after the other, and what it answers is judged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from antwort.api.wire import UNSET, Plain, Wire, replace
from antwort.config.checks import without_query
from antwort.config.settings import BackendSettings
from antwort.doctor import questions, tool_verdicts, verdicts
from antwort.doctor.addresses import candidates, root_of, without_slash
from antwort.doctor.answers import Answer, Speech, named
from antwort.doctor.asking import PATHS, Access, Line, below, beside
from antwort.doctor.context_verdicts import about_context, about_counts, is_believed
from antwort.doctor.engines import OWN_ENDPOINTS, Facts, chat_models, facts_of, likely_chat, names_in
from antwort.doctor.findings import UNASKED, Examination, Finding, Value, outcome
from antwort.doctor.questions import Manner
from antwort.doctor.tool_verdicts import Choice, Tools, judge
from antwort.net.response import InvalidResponse
from antwort.providers.base import ChatMessage, ChatRequest
from antwort.providers.chat import ChatProvider
from antwort.providers.errors import retry_after
from antwort.providers.responses import ResponsesProvider
from antwort.providers.token_counter import BackendTokenCounter, CountReply

PATIENCE = 60.0
"""Seconds for one inference: a model may have to be loaded first."""
_MOST_SLOW = 2
_LONGEST_WAIT = 10.0
"""Seconds that a backend may ask to be left alone for."""
_LEAST_SECRET = 8
"""Characters; a shorter one may be a word of ours as well, such as `none`."""
_MOST_MANNERS = 3
_MODELS = "/models"
_WHERE_KEYS_GO = "say --backend-key-file, or set ANTWORT_BACKEND_API_KEY"


class Subject(Wire):
    """A backend to examine."""

    name: str
    url: str
    access: Access = Access()
    model: str | None = None
    """The model to ask; None: the first that it lists."""
    settings: BackendSettings | None = None
    """What is set about it, where it is a configured one."""
    is_ours: bool = False
    """Whether it is the model that antwort runs by itself."""


class OutOfReach(Exception):
    """There is nothing to examine, or nothing more; the message says why, as a sentence goes on after the address."""


class Visit:
    """An examination on its way. `begin` is told what is looked at next, by the name of its probe."""

    def __init__(
        self, subject: Subject, *, patience: float = PATIENCE, begin: Callable[[str], None] = lambda _: None
    ) -> None:
        self._subject = subject
        self._patience = patience
        self._begin = begin
        self._base = candidates(subject.url)[0]
        self._facts = Facts()
        self._findings: list[Finding] = []
        self._settings: dict[str, Value] = {}
        self._slow = 0
        self._is_lost = False
        self._manner = _manner(subject)
        self._speech: Speech = "chat" if subject.settings is None else subject.settings.kind
        self._line = Line(self._base, subject.access, patience, self._speech)

    # ---- what comes of it ----

    def examination(self) -> Examination:
        """What is known so far."""
        told = in_force(self._subject.settings)
        wanted = self._settings | {path: value for each in self._findings for path, value in each.settings.items()}
        return Examination(
            name=self._subject.name,
            url=without_query(self._base),
            outcome=outcome(self._findings, told),
            engine=self._facts.engine,
            model=self._manner.model or None,
            models=self._models(),
            findings=tuple(self._findings),
            settings={path: value for path, value in wanted.items() if told.get(path) != value},
        )

    @property
    def base(self) -> str:
        """The base address that works, with its query."""
        return self._base

    async def findings(self) -> AsyncGenerator[Finding, None]:
        """In the order of `PROBES`. Raises `OutOfReach` before the first, or where the model may not be asked."""
        try:
            async with aclosing(self._examine()) as found:
                async for each in found:
                    finding = self._fit_to_be_shown(each)
                    self._findings.append(finding)
                    yield finding
        finally:
            await self._line.close()

    def _fit_to_be_shown(self, finding: Finding) -> Finding:
        """Whatever words it is made of, no key is among them and nothing that a terminal would obey."""
        secrets = tuple(each for each in self._subject.access.secrets() if len(each) >= _LEAST_SECRET)
        return replace(finding, seen=named(finding.seen, secrets, len(finding.seen) * 10))

    async def _examine(self) -> AsyncGenerator[Finding, None]:
        listing = await self._reach()
        yield self._about_address(listing)
        configured = None if self._subject.settings is None else self._subject.settings.kind
        if self._speech != (configured or "chat") or self._speech == "responses":
            yield verdicts.about_kind(self._speech, configured)
        yield verdicts.about_models(listing, self._facts.models, self._manner.model or None)
        if not self._manner.model:
            return
        text = await self._ask_text()
        yield verdicts.about_streaming(text)
        yield verdicts.about_limit(self._manner, text, is_set=self._is_set("max_tokens_field"))
        yield verdicts.about_usage(self._manner, text, is_set=self._is_set("stream_usage"))
        schema = verdicts.about_schema(await self._ask("json_schema", questions.schema(self._manner)))
        answers = await self._ask_for_calls()
        for finding in await self._about_tools(answers, schema):
            yield finding
        yield schema
        yield verdicts.about_reasoning((text, *answers.values()), self._facts, self._reasoning_field())
        image = await self._ask("images", questions.image(self._manner))
        yield verdicts.about_images(image, self._facts, is_off=self._sees_nothing(), models=self._models())
        refusal = await self._ask_for_too_much()
        yield about_context(
            self._facts, refusal, is_ours=self._subject.is_ours, given=self._context_set(), models=self._models()
        )
        yield await self._about_counts()
        yield verdicts.about_errors(await self._ask("errors", questions.MALFORMED))
        yield verdicts.about_first_token(text)
        yield verdicts.about_speed(text)

    # ---- finding it ----

    async def _reach(self) -> Answer:
        """Settles the base address, the facts and the model; returns the list of models."""
        self._begin("reachable")
        listing = await self._find_base()
        own = await asyncio.gather(*(self._line.get(f"{root_of(self._base)}{path}") for path in OWN_ENDPOINTS))
        model = self._manner.model or likely_chat(names_in(listing)) or ""
        self._facts = facts_of(listing, dict(zip(OWN_ENDPOINTS, own, strict=True)), model or None)
        self._manner = replace(self._manner, model=model)
        return listing

    async def _find_base(self) -> Answer:
        tried = []
        for base in candidates(self._subject.url):
            listing = await self._line.get(below(base, _MODELS))
            self._check_reach(listing)
            if listing.is_good and isinstance(listing.plain(), dict | list):
                self._base = base
                await self._find_kind(base, is_listed=True)
                return listing
            tried.append((base, listing))
        tried_in_vain = []
        for base, listing in tried:
            refusals = await self._find_kind(base, is_listed=False)
            if not refusals:
                self._base = base
                return listing
            tried_in_vain += [listing, *refusals]
        for answer in tried_in_vain:
            if answer.is_redirect:
                raise OutOfReach(f"redirects to {answer.location or 'elsewhere'}: say the address that it leads to")
        if any(answer.fault == "endless" for answer in tried_in_vain):
            raise OutOfReach("answers, but its answers do not come to an end")
        raise OutOfReach(f"answers, but there is no {PATHS[self._speech]}, with or without /v1")

    async def _find_kind(self, base: str, *, is_listed: bool) -> list[Answer]:
        """Find out which API the backend speaks there: the configured one, if it has both. Return the answers that say
        that it has neither. Without a list of models, only a refusal of the malformed request shows that it has one.
        """
        configured, refusals = self._speech, list[Answer]()
        kinds: tuple[Speech, ...] = ("chat", "responses") if configured == "chat" else ("responses", "chat")
        for speech in kinds:
            self._speech = self._line.speech = speech
            refusal = await self._line.ask(base, questions.MALFORMED)
            if not is_listed:
                self._check_reach(refusal)
            if refusal.status not in (404, 405) and (is_listed or refusal.status >= 400):
                return []
            refusals.append(refusal)
        self._speech = self._line.speech = configured
        return refusals

    def _about_address(self, listing: Answer) -> Finding:
        seen = f"answers in {verdicts.in_seconds(listing.seconds)} at {without_query(self._base)}"
        settings = self._subject.settings
        if settings is None or without_slash(settings.url) == self._base:
            return Finding(probe="reachable", verdict="works", seen=seen)
        remedy = "antwort asks where `url` says; set it to this: --write does"
        return Finding(
            probe="reachable", verdict="fails", seen=seen, remedy=remedy, blocks=True, settings={"url": self._base}
        )

    def _check_reach(self, answer: Answer) -> None:
        match answer.fault:
            case "unreachable" | "cut" | "garbled":
                raise OutOfReach(f"cannot be reached: {answer.reason}")
            case "slow":
                raise OutOfReach(f"does not answer: it was waited for {verdicts.in_seconds(answer.seconds)}")
        self._check_access(answer)

    def _check_access(self, answer: Answer) -> None:
        words = f": {told}" if (told := answer.problem()) else ""
        if answer.status in (401, 403):
            has_key = self._subject.access.key is not None
            fix = "the key is not the right one" if has_key else _WHERE_KEYS_GO
            raise OutOfReach(f"asks for a key: {fix}")
        if answer.status == 429:
            raise OutOfReach(f"is asked too often{words} (try again later)")
        if answer.status == 503:
            raise OutOfReach(f"is not ready{words} (try again in a moment)")

    # ---- asking ----

    def _models(self) -> int:
        """How many the settings of the backend hold for."""
        settings = self._subject.settings
        told = settings.models if settings is not None and settings.models else chat_models(self._facts.models)
        return max(len(told), 1)

    def _is_set(self, capability: str) -> bool:
        settings = self._subject.settings
        return settings is not None and getattr(settings.capabilities, capability) is not UNSET

    def _sees_nothing(self) -> bool:
        settings = self._subject.settings
        return settings is not None and settings.capabilities.vision is False

    def _context_set(self) -> int | None:
        length = self._subject.settings.capabilities.context_length if self._subject.settings else UNSET
        return None if length is UNSET else length

    def _reasoning_field(self) -> str | None:
        field = self._subject.settings.capabilities.reasoning_field if self._subject.settings else UNSET
        return "reasoning_content" if field is UNSET else field

    async def _ask(self, probe: str, question: Plain | bytes, *, is_brief: bool = False) -> Answer:
        if self._is_lost:
            return Answer(fault="unasked")
        self._begin(probe)
        answer = await self._line.ask(self._base, question, is_brief=is_brief)
        if answer.is_busy and (wait := retry_after(answer.headers)) is not None and wait <= _LONGEST_WAIT:
            await asyncio.sleep(wait)
            answer = await self._line.ask(self._base, question, is_brief=is_brief)
        if answer.fault == "slow" or answer.is_busy:
            self._slow += 1
            self._is_lost = self._slow >= _MOST_SLOW
        return answer

    async def _ask_text(self) -> Answer:
        """The first question of all: a refusal of the manner it is asked in is heeded from then on."""
        answer = await self._ask("streaming", questions.text(self._manner))
        for _ in range(_MOST_MANNERS):
            manner = None if answer.is_good else questions.adapted(self._manner, answer.problem())
            if manner is None:
                break
            self._manner = manner
            answer = await self._ask("streaming", questions.text(self._manner))
        self._check_access(answer)
        self._is_lost = self._is_lost or not verdicts.is_told(answer)
        self._manner = replace(self._manner, call_tokens=verdicts.tokens_for_calls(answer, self._facts))
        return answer

    async def _ask_for_calls(self) -> Mapping[Choice, Answer]:
        return {
            "auto": await self._ask("tools.auto", questions.auto(self._manner)),
            "required": await self._ask("tools.required", questions.required(self._manner)),
            "named": await self._ask("tools.named", questions.named(self._manner)),
            "parallel": await self._ask("tools.parallel", questions.parallel(self._manner)),
        }

    async def _about_tools(self, answers: Mapping[Choice, Answer], schema: Finding) -> tuple[Finding, ...]:
        settings = self._subject.settings
        tools = Tools(
            seen={choice: judge(choice, answer, self._facts) for choice, answer in answers.items()},
            schema=schema.verdict,
            facts=self._facts,
            model=self._manner.model,
            mode="auto" if settings is None else settings.tool_calling,
            speech=self._speech,
            models=self._models(),
        )
        whole = None
        if not tools.has_called and self._facts.offers_tools is not False:
            whole = await self._ask("tools.streamed", questions.required(self._manner, is_streamed=False))
        self._settings = tool_verdicts.settings_of(tools)
        streamed = tool_verdicts.about_streamed(tools, tuple(answers.values()), whole)
        return (*tool_verdicts.about_choices(tools), streamed)

    async def _about_counts(self) -> Finding:
        if self._is_lost:
            return Finding(probe="token_counts", verdict="unknown", seen=UNASKED)
        self._begin("token_counts")
        counter = BackendTokenCounter(
            self._post, (ChatProvider if self._speech == "chat" else ResponsesProvider).count_methods
        )
        message = ChatMessage(role="user", content="How many tokens are these?")
        return about_counts(await counter.count(ChatRequest(model=self._manner.model, messages=[message])))

    async def _post(self, path: str, body: bytes, *, is_unversioned: bool = False) -> CountReply:
        answer = await self._line.post((beside if is_unversioned else below)(self._base, path), body)
        if answer.fault:
            raise InvalidResponse(answer.fault)
        return CountReply(answer.status, answer.body)

    async def _ask_for_too_much(self) -> Answer | None:
        if is_believed(self._facts.context):
            return None
        return await self._ask("context_length", questions.overlong(self._manner), is_brief=True)


def _manner(subject: Subject) -> Manner:
    manner = Manner(model=subject.model or "")
    if subject.settings is None:
        return manner
    told = subject.settings.capabilities
    return Manner(
        model=manner.model,
        limit=manner.limit if told.max_tokens_field is UNSET else told.max_tokens_field,
        has_usage=told.stream_usage is not False,
    )


def in_force(settings: BackendSettings | None) -> dict[str, Value]:
    """What is set about a backend, by the paths within its entry."""
    if settings is None:
        return {}
    capabilities = settings.capabilities
    told = ((name, getattr(capabilities, name)) for name in capabilities.__struct_fields__)
    found = {f"capabilities.{name}": value for name, value in told if value is not UNSET}
    return {"url": settings.url, "kind": settings.kind, "tool_calling": settings.tool_calling, **found}
