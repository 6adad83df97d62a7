"""What of an inference fits into the model's context: found out before the backend is asked, and when it refuses."""

from __future__ import annotations

import logging
from contextlib import suppress

import msgspec

from antwort.api.responses import Usage
from antwort.api.wire import UNSET, replace
from antwort.engine.draft import Run
from antwort.engine.fitting import Fitted, fit
from antwort.engine.meter import Meter
from antwort.engine.plan import Plan
from antwort.engine.sizes import message_size, size_of, tools_size
from antwort.engine.translate import chat_request
from antwort.errors import ContextTooLong
from antwort.notes import note
from antwort.providers.base import ATTACHMENT_TOKENS, ChatMessage, ChatRequest, Provider

_log = logging.getLogger("antwort.engine")

_SHARE = 4
"""At most one part in so many is kept free for the answer."""
_TRIES = 5
"""How often a request is cut anew because it has more tokens than it should have by its size."""
_REFUSALS = 4
"""How often the backend is asked again after it has found a request too long."""
_LESS = 0.7
"""The share of what was sent that is taken to fit, where a refusal does not say what would."""
_FAR = 4
"""An estimate is no more than so many times the truth. There is text with long words, and text with long gaps."""
_TOKEN = 4
"""Bytes that a token of no text is weighed as."""


class Count(msgspec.Struct, frozen=True):
    tokens: int
    least: int
    """What there is for certain: pictures and estimates may be less than they count for."""

    @property
    def is_certain(self) -> bool:
        return self.least == self.tokens


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The room that one inference has. As long as a request is far from its end, nobody is asked and nothing waits."""

    meter: Meter
    length: int | None
    """Tokens of the model's context; None: nobody knows, and the backend tells."""
    reserve: int = 0
    """Tokens that the answer gets where the request names no number."""
    truncates: bool = False
    is_silent: bool = False
    """Whether nothing is said of what was left out, as nothing is sent."""
    refusals: tuple[ContextTooLong, ...] = ()
    """What the backend has said to this inference by now."""

    async def fit(self, request: ChatRequest) -> ChatRequest:
        """The request as it can be sent, with the same list of messages where none has to go. Raises `ContextTooLong`,
        in the backend's words where there are any.
        """
        if self.length is None:
            return request
        if not self.truncates:
            await self._check(request, self.length)
            return request
        try:
            return await self._fitted(request, self.length)
        except ContextTooLong as error:
            raise (self.refusals or (error,))[-1] from None

    def narrowed(self, error: Exception | None, sent: ChatRequest) -> Window | None:
        """The window in which to ask once more, when `sent` was refused for its length; None: there is none."""
        if not isinstance(error, ContextTooLong) or not self.truncates or len(self.refusals) >= _REFUSALS:
            return None
        length = error.limit
        if length is None or (self.length is not None and length >= self.length):
            length = int(_LESS * (self.meter.estimate(sent) + _wanted(sent)))
        return msgspec.structs.replace(self, length=length, refusals=(*self.refusals, error))

    def learn(self, sent: ChatRequest, usage: Usage | None) -> None:
        """The backend has told what it cost."""
        if usage is not None:
            self.meter.learn(sent, usage.input_tokens)

    # ---- nothing is left out ----

    async def _check(self, request: ChatRequest, length: int) -> None:
        if not self.meter.is_near(request, length - 1):
            return
        counted = await self._count(request)
        if counted.least >= length:
            raise _too_long(
                counted, length, "Shorten it, or let the oldest turns be left out with 'truncation': 'auto'."
            )

    # ---- the oldest is left out ----

    async def _fitted(self, request: ChatRequest, length: int) -> ChatRequest:
        reserve = self._reserve(request, length)
        if not self.meter.is_near(request, length - max(reserve, _wanted(request))):
            return request
        counted = await self._count(request)
        if counted.tokens > length - reserve:
            request, counted = await self._cut(request, counted, length, reserve)
        room = length - counted.tokens
        return _clamped(request, room if counted.is_certain else max(room, reserve))

    async def _cut(self, request: ChatRequest, counted: Count, length: int, reserve: int) -> tuple[ChatRequest, Count]:
        """Cut by weight, which costs nothing, and counted: until there are few enough tokens."""
        whole, budget = request, length - reserve
        beside = 0 if whole.tools is UNSET else tools_size(whole.tools)
        target = (beside + sum(map(weight, whole.messages))) * budget // counted.tokens - beside
        for _ in range(_TRIES):
            fitted = fit(whole.messages, target, weight)
            request = replace(whole, messages=fitted.messages)
            counted = await self._count(request)
            if counted.tokens <= budget or fitted.size > target:
                break
            target = (fitted.size - 1) * budget // counted.tokens
        if counted.least >= length or (self.refusals and counted.tokens >= length):
            raise _too_long(
                counted,
                length,
                "All that can be left out is left out. Shorten the last message, the instructions or the tools.",
            )
        if not self.is_silent:
            _tell(fitted, counted, length)
        return request, counted

    def _reserve(self, request: ChatRequest, length: int) -> int:
        return min(_wanted(request) or self.reserve, length // _SHARE)

    async def _count(self, request: ChatRequest) -> Count:
        exact = await self.meter.exact(request)
        if exact is not None:
            return Count(exact, exact - size_of(request).attachments * ATTACHMENT_TOKENS)
        estimate = self.meter.estimate(request)
        return Count(estimate, estimate // _FAR)


def window_of(plan: Plan, provider: Provider) -> Window:
    """The window of the plan's next inference, as much as is known of it now."""
    capabilities = provider.capabilities(plan.response.model)
    return Window(
        meter=plan.meter or Meter(provider),
        length=None if capabilities.more_may_fit else capabilities.context_length,
        reserve=plan.settings.reserve,
        truncates=plan.response.truncation == "auto",
    )


async def count_input(plan: Plan, provider: Provider) -> int:
    """Tokens of the plan's first inference as it would be sent. What cannot be sent is counted whole."""
    request = chat_request(Run(plan.response), plan)
    window = msgspec.structs.replace(window_of(plan, provider), is_silent=True)
    if window.truncates:
        with suppress(ContextTooLong):
            request = await window.fit(request)
    return await window.meter.count(request)


def weight(message: ChatMessage) -> int:
    """Its bytes of text; other than its tokens by what was learned, they stay the same."""
    size = message_size(message)
    return size.text + size.fixed * _TOKEN


def _wanted(request: ChatRequest) -> int:
    """Tokens that are asked for as the longest answer; 0: as many as there are."""
    return next((most for most in (request.max_tokens, request.max_completion_tokens) if most is not UNSET), 0)


def _clamped(request: ChatRequest, room: int) -> ChatRequest:
    """With an answer no longer than there is room for: there are backends that refuse what might not fit."""
    if _wanted(request) <= room:
        return request
    if request.max_tokens is not UNSET:
        return replace(request, max_tokens=max(room, 1))
    return replace(request, max_completion_tokens=max(room, 1))


def _too_long(counted: Count, length: int, advice: str) -> ContextTooLong:
    about = "" if counted.is_certain else "about "
    message = f"The input has {about}{counted.tokens:,} tokens, and the model's context has {length:,}. {advice}"
    return ContextTooLong(message, param="input", limit=length, asked=counted.tokens)


def _tell(fitted: Fitted, counted: Count, length: int) -> None:
    note(
        _log,
        logging.INFO,
        f"truncated to fit the context: {fitted.left_out} messages left out, {fitted.shortened} shortened",
        said={"event": "truncated", "left_out": fitted.left_out, "shortened": fitted.shortened},
        input_tokens=counted.tokens,
        context_length=length,
    )
