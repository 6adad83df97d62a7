"""Examine a backend: ask one question after the other, and judge the answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from antwort.api.wire import UNSET, Plain, Wire, replace
from antwort.config.checks import without_query
from antwort.config.settings import BackendSettings, CapabilitySettings
from antwort.doctor import checks, questions, tool_checks
from antwort.doctor.answers import ApiKind, BackendAnswer, quote_name
from antwort.doctor.client import PATHS, Access, ProbeClient, below, candidates, root_of, without_slash
from antwort.doctor.engines import OWN_ENDPOINTS, Facts, chat_models, facts_of, likely_chat, names_in
from antwort.doctor.findings import NOT_ASKED, Examination, Finding, Value, fails, outcome, unknown, works
from antwort.doctor.questions import RequestStyle
from antwort.doctor.tool_checks import Choice, ToolResults
from antwort.net.response import InvalidResponse
from antwort.providers.base import ChatMessage, ChatRequest
from antwort.providers.chat import ChatProvider
from antwort.providers.errors import retry_after
from antwort.providers.responses import ResponsesProvider
from antwort.providers.token_counter import BackendTokenCounter, CountReply

TIMEOUT_SECONDS = 60.0
"""For one inference: a model may have to be loaded first."""
_MAX_UNANSWERED = 2
"""Questions without an answer, after which no more inferences are requested."""
_MAX_RETRY_AFTER_SECONDS = 10.0
_MAX_STYLES = 3
_SECRET_LENGTH = 8
"""A shorter key, such as `none`, may be an ordinary word of a finding."""
_NO_KEY = "say --backend-key-file, or set ANTWORT_BACKEND_API_KEY"


class Subject(Wire):
    """A backend to examine."""

    name: str
    url: str
    access: Access = Access()
    model: str | None = None
    """The model to ask. None: the first that it lists."""
    settings: BackendSettings | None = None
    """The settings of a configured backend."""
    is_local: bool = False
    """Whether it is the model that antwort runs by itself."""


class OutOfReach(Exception):
    """The backend cannot be examined any further. The message is the rest of a sentence that begins with its URL."""


class Examiner:
    """Examine one backend. `begin` is called with the name of each probe before it starts."""

    def __init__(
        self, subject: Subject, *, timeout: float = TIMEOUT_SECONDS, begin: Callable[[str], None] = lambda _: None
    ) -> None:
        self._subject = subject
        self._settings = subject.settings
        self._capabilities = CapabilitySettings() if subject.settings is None else subject.settings.capabilities
        self._begin = begin
        self.base = candidates(subject.url)[0]
        """The base address that works, with its query."""
        self._facts = Facts()
        self._findings: list[Finding] = []
        self._tool_settings: dict[str, Value] = {}
        self._unanswered = 0
        self._has_given_up = False
        limit = self._capabilities.max_tokens_field
        self._style = RequestStyle(
            model=subject.model or "",
            limit="max_tokens" if limit is UNSET else limit,
            has_usage=self._capabilities.stream_usage is not False,
        )
        self._kind: ApiKind = "chat" if subject.settings is None else subject.settings.kind
        self._client = ProbeClient(self.base, subject.access, timeout, self._kind)

    def examination(self) -> Examination:
        """Return what is known so far."""
        given = in_force(self._settings)
        wanted = dict(self._tool_settings)
        for finding in self._findings:
            wanted |= finding.settings
        return Examination(
            name=self._subject.name,
            url=without_query(self.base),
            outcome=outcome(self._findings, given),
            engine=self._facts.engine,
            model=self._style.model or None,
            models=self._model_count(),
            findings=tuple(self._findings),
            settings={path: value for path, value in wanted.items() if given.get(path) != value},
        )

    async def findings(self) -> AsyncGenerator[Finding, None]:
        """Yield findings in the order of `PROBES`. Raises `OutOfReach` if nothing, or nothing more, can be asked."""
        secrets = tuple(each for each in self._subject.access.secrets() if len(each) >= _SECRET_LENGTH)
        try:
            async with aclosing(self._examine()) as found:
                async for finding in found:
                    # Whatever it quotes, no key is shown and nothing that controls a terminal.
                    shown = replace(finding, seen=quote_name(finding.seen, secrets, len(finding.seen) * 10))
                    self._findings.append(shown)
                    yield shown
        finally:
            await self._client.close()

    async def _examine(self) -> AsyncGenerator[Finding, None]:
        listing = await self._reach()
        yield self._address_finding(listing)
        configured = None if self._settings is None else self._settings.kind
        if self._kind != (configured or "chat") or self._kind == "responses":
            yield checks.check_kind(self._kind, configured)
        yield checks.check_models(listing, self._facts.models, self._style.model or None)
        if not self._style.model:
            return
        text = await self._ask_text()
        yield checks.check_streaming(text)
        is_set = self._capabilities.max_tokens_field is not UNSET
        yield checks.check_limit(self._style, text, is_set=is_set)
        yield checks.check_usage(self._style, text, is_set=self._capabilities.stream_usage is not UNSET)
        schema = checks.check_schema(await self._ask("json_schema", questions.schema(self._style)))
        answers: Mapping[Choice, BackendAnswer] = {
            "auto": await self._ask("tools.auto", questions.auto(self._style)),
            "required": await self._ask("tools.required", questions.required(self._style)),
            "named": await self._ask("tools.named", questions.named(self._style)),
            "parallel": await self._ask("tools.parallel", questions.parallel(self._style)),
        }
        for finding in await self._tool_findings(answers, schema):
            yield finding
        yield schema
        field = self._capabilities.reasoning_field
        in_use = "reasoning_content" if field is UNSET else field
        yield checks.check_reasoning((text, *answers.values()), self._facts, in_use)
        image = await self._ask("images", questions.image(self._style))
        is_off = self._capabilities.vision is False
        yield checks.check_images(image, self._facts, is_off=is_off, models=self._model_count())
        refusal = None
        if not checks.is_plausible(self._facts.context):
            refusal = await self._ask("context_length", questions.overlong(self._style), is_brief=True)
        length = self._capabilities.context_length
        yield checks.check_context(
            self._facts,
            refusal,
            is_local=self._subject.is_local,
            given=None if length is UNSET else length,
            models=self._model_count(),
        )
        yield await self._count_finding()
        yield checks.check_errors(await self._ask("errors", questions.MALFORMED))
        yield checks.check_first_token(text)
        yield checks.check_speed(text)

    # ---- finding it ----

    async def _reach(self) -> BackendAnswer:
        """Determine the base address, the facts and the model. Return the list of models."""
        self._begin("reachable")
        listing = await self._find_base()
        own = await asyncio.gather(*(self._client.get(f"{root_of(self.base)}{path}") for path in OWN_ENDPOINTS))
        model = self._style.model or likely_chat(names_in(listing)) or ""
        self._facts = facts_of(listing, dict(zip(OWN_ENDPOINTS, own, strict=True)), model or None)
        self._style = replace(self._style, model=model)
        return listing

    async def _find_base(self) -> BackendAnswer:
        tried = []
        for base in candidates(self._subject.url):
            listing = await self._client.get(below(base, "/models"))
            self._check_reach(listing)
            if listing.is_good and isinstance(listing.decoded(), dict | list):
                self.base = base
                await self._find_kind(base, is_listed=True)
                return listing
            tried.append((base, listing))
        refused = []
        for base, listing in tried:
            refusals = await self._find_kind(base, is_listed=False)
            if not refusals:
                self.base = base
                return listing
            refused += [listing, *refusals]
        for answer in refused:
            if answer.is_redirect:
                raise OutOfReach(f"redirects to {answer.location or 'elsewhere'}: say the address that it leads to")
        if any(answer.fault == "endless" for answer in refused):
            raise OutOfReach("answers, but its answers do not come to an end")
        raise OutOfReach(f"answers, but there is no {PATHS[self._kind]}, with or without /v1")

    async def _find_kind(self, base: str, *, is_listed: bool) -> list[BackendAnswer]:
        """Find out which API the backend speaks there: the configured one, if it has both. Return the answers that say
        that it has neither. Without a list of models, only a refusal of the malformed request shows that it has one.
        """
        configured, refusals = self._kind, list[BackendAnswer]()
        kinds: tuple[ApiKind, ...] = ("chat", "responses") if configured == "chat" else ("responses", "chat")
        for kind in kinds:
            self._kind = self._client.kind = kind
            refusal = await self._client.ask(base, questions.MALFORMED)
            if not is_listed:
                self._check_reach(refusal)
            if refusal.status not in (404, 405) and (is_listed or refusal.status >= 400):
                return []
            refusals.append(refusal)
        self._kind = self._client.kind = configured
        return refusals

    def _address_finding(self, listing: BackendAnswer) -> Finding:
        seen = f"answers in {checks.in_seconds(listing.seconds)} at {without_query(self.base)}"
        if self._settings is None or without_slash(self._settings.url) == self.base:
            return works("reachable", seen)
        remedy = "antwort asks where `url` says; set it to this: --write does"
        return fails("reachable", seen, remedy, {"url": self.base}, blocks=True)

    def _check_reach(self, answer: BackendAnswer) -> None:
        match answer.fault:
            case "unreachable" | "cut" | "garbled":
                raise OutOfReach(f"cannot be reached: {answer.reason}")
            case "slow":
                raise OutOfReach(f"does not answer: it was waited for {checks.in_seconds(answer.seconds)}")
        self._check_access(answer)

    def _check_access(self, answer: BackendAnswer) -> None:
        words = f": {problem}" if (problem := answer.problem()) else ""
        if answer.status in (401, 403):
            has_key = self._subject.access.key is not None
            raise OutOfReach(f"asks for a key: {'the key is not the right one' if has_key else _NO_KEY}")
        if answer.status == 429:
            raise OutOfReach(f"is asked too often{words} (try again later)")
        if answer.status == 503:
            raise OutOfReach(f"is not ready{words} (try again in a moment)")

    # ---- asking ----

    def _model_count(self) -> int:
        """Return how many models the settings of the backend hold for."""
        configured = self._settings.models if self._settings is not None else None
        return max(len(configured or chat_models(self._facts.models)), 1)

    async def _ask(self, probe: str, question: Plain | bytes, *, is_brief: bool = False) -> BackendAnswer:
        if self._has_given_up:
            return BackendAnswer(fault="unasked")
        self._begin(probe)
        answer = await self._client.ask(self.base, question, is_brief=is_brief)
        if answer.is_busy and (wait := retry_after(answer.headers)) is not None and wait <= _MAX_RETRY_AFTER_SECONDS:
            await asyncio.sleep(wait)
            answer = await self._client.ask(self.base, question, is_brief=is_brief)
        if answer.fault == "slow" or answer.is_busy:
            self._unanswered += 1
            self._has_given_up = self._unanswered >= _MAX_UNANSWERED
        return answer

    async def _ask_text(self) -> BackendAnswer:
        """Ask the first question, again in the style that a refusal asks for, which then holds for all others."""
        answer = await self._ask("streaming", questions.text(self._style))
        for _ in range(_MAX_STYLES):
            style = None if answer.is_good else questions.adapted(self._style, answer.problem())
            if style is None:
                break
            self._style = style
            answer = await self._ask("streaming", questions.text(style))
        self._check_access(answer)
        self._has_given_up = self._has_given_up or checks.parsed(answer) is None
        self._style = replace(self._style, call_tokens=checks.tokens_for_calls(answer, self._facts))
        return answer

    async def _tool_findings(self, answers: Mapping[Choice, BackendAnswer], schema: Finding) -> tuple[Finding, ...]:
        tools = ToolResults(
            seen={choice: tool_checks.check_choice(choice, answer, self._facts) for choice, answer in answers.items()},
            schema=schema.verdict,
            facts=self._facts,
            model=self._style.model,
            mode="auto" if self._settings is None else self._settings.tool_calling,
            kind=self._kind,
            models=self._model_count(),
        )
        whole = None
        if not tools.has_called and self._facts.offers_tools is not False:
            whole = await self._ask("tools.streamed", questions.required(self._style, is_streamed=False))
        self._tool_settings = tool_checks.tool_settings(tools)
        streamed = tool_checks.check_streamed(tools, tuple(answers.values()), whole)
        return (*tool_checks.check_choices(tools), streamed)

    async def _count_finding(self) -> Finding:
        if self._has_given_up:
            return unknown("token_counts", NOT_ASKED)
        self._begin("token_counts")
        provider = ChatProvider if self._kind == "chat" else ResponsesProvider
        message = ChatMessage(role="user", content="How many tokens are these?")
        counter = BackendTokenCounter(self._post, provider.count_methods)
        return checks.check_counts(await counter.count(ChatRequest(model=self._style.model, messages=[message])))

    async def _post(self, path: str, body: bytes, *, is_unversioned: bool = False) -> CountReply:
        answer = await self._client.post(below(self.base, path, is_unversioned=is_unversioned), body)
        if answer.fault:
            raise InvalidResponse(answer.fault)
        return CountReply(answer.status, answer.body)


def in_force(settings: BackendSettings | None) -> dict[str, Value]:
    """Return the settings of a configured backend, by their paths within its entry."""
    if settings is None:
        return {}
    capabilities = settings.capabilities
    values = ((name, getattr(capabilities, name)) for name in capabilities.__struct_fields__)
    given = {f"capabilities.{name}": value for name, value in values if value is not UNSET}
    return {"url": settings.url, "kind": settings.kind, "tool_calling": settings.tool_calling, **given}
