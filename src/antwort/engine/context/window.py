"""Fit each inference into the context of its model, before the backend is asked and when it refuses.

With `truncation: auto` the oldest messages are left out; otherwise a request that is certainly too long is refused.
"""

from __future__ import annotations

import logging
import math
from contextlib import suppress

import msgspec

from antwort.api.responses import Usage
from antwort.api.wire import UNSET, replace
from antwort.engine.context.token_counter import (
    PER_REQUEST,
    Size,
    TokenEstimator,
    message_size,
    min_token_steps,
    size_of,
    size_steps,
    tools_size,
)
from antwort.engine.context.truncation import truncation_steps
from antwort.engine.loop.fold import Run
from antwort.engine.plan import Plan
from antwort.engine.prompt.chat_request import Prompt
from antwort.errors import ContextTooLong
from antwort.event_loop import in_turns
from antwort.notes import note
from antwort.providers.base import ATTACHMENT_TOKENS, ChatMessage, ChatRequest, Provider

_log = logging.getLogger("antwort.engine")

_MAX_RESERVE_SHARE = 4
"""At most one part in so many is reserved for the answer."""
_MAX_CUTS = 5
"""How often a request is cut anew because it has more tokens than expected by its size."""
_MAX_REFUSALS = 8
"""How often the backend is asked again after it has refused a request for its length."""
_FIRST_SHARE, _NEXT_SHARE = 0.7, 0.25
"""The share of a refused request that is taken to fit where the refusal names no limit: at first, and then."""
_REFUSED_SHARE = 1.25
"""The size of a refused request, relative to the limit that the refusal names."""
_SLACK = 32
"""One part in so many is left free when a request is cut: the rest may have denser text than the whole."""
_LONG = 4096
"""Tokens from which on a conversation counts as long where the length of the context is unknown."""
_TOKEN_BYTES = 4
"""Bytes that a token which is not text weighs."""


class Count(msgspec.Struct, frozen=True):
    tokens: int
    minimum: int
    """A lower bound: estimates and pictures may have fewer tokens than they count for."""

    @property
    def is_exact(self) -> bool:
        return self.minimum == self.tokens


class Window(msgspec.Struct, kw_only=True, eq=False):
    """The context of one inference. Far from its end no token is counted and nothing waits."""

    estimator: TokenEstimator
    length: int | None
    """Tokens of the model's context; None: unknown until the backend refuses a request."""
    reserve: int = 0
    """Tokens reserved for the answer where the request sets no maximum."""
    truncates: bool = False
    is_silent: bool = False
    """Whether truncation is not logged, because nothing is sent."""
    compacts_from: int | None = None
    """Tokens from which on the conversation is compacted."""
    refusals: int = 0
    refusal: ContextTooLong | None = None
    """The last one."""
    refused: int = 0
    """The weight of the request that was refused last: as much is not sent again."""
    scale: float = 1.0
    """How many times the counted tokens the request has, by these refusals."""
    too_much: int | None = None
    """Tokens that were refused, where `length` is a guess because the refusal named no limit."""
    is_length_learned: bool = False
    """Whether the length was unknown before the refusals. Else a refusal may be that of one small backend of several,
    and holds for this inference only."""

    def is_far(self, request: ChatRequest) -> bool:
        """Return whether the request can be sent as it is, without waiting for a count."""
        if self.truncates:
            return False
        return self.length is None or not self.estimator.is_near(request, size_of(request), self.length - 1)

    async def fit(self, request: ChatRequest) -> ChatRequest:
        """Return the request as it can be sent, with the same list of messages where all fit.

        Raises `ContextTooLong`, in the backend's words where it has refused the request.
        """
        length = self.length
        if self.truncates and not self.refusals and (learned := self.estimator.learned_limit(request)):
            length = learned.next if length is None else min(learned.next, length)
        if length is None:
            return request
        size = await in_turns(size_steps(request))
        if not self.truncates:
            counted = await self._count(request, request, size)
            if counted.minimum >= length:
                advice = "Shorten it, or let the oldest turns be left out with 'truncation': 'auto'."
                raise _too_long(counted, length, advice)
            return request
        try:
            fitted = await self._fitted(request, size, length)
        except ContextTooLong as error:
            raise (self.refusal or error) from None
        if self.refusal is not None and _total_weight(fitted, size_of(fitted)) >= self.refused:
            raise self.refusal
        return fitted

    # ---- what the backend reports ----

    def narrow(self, error: Exception, sent: ChatRequest, whole: ChatRequest) -> bool:
        """Take what the refusal of a request tells, which was made from the `whole` one. Return whether to ask again
        with less.
        """
        if not isinstance(error, ContextTooLong) or not self.truncates or self.refusals >= _MAX_REFUSALS:
            return False
        size, wanted = size_of(sent), max_answer(sent)
        estimate = self.estimator.estimate_size(whole, size) + PER_REQUEST
        self.is_length_learned = self.is_length_learned or self.length is None
        if error.limit is None:
            self.too_much = int(estimate * self.scale) + wanted
            self.length = int(self.too_much * (_NEXT_SHARE if self.refusals else _FIRST_SHARE))
            learned = self.estimator.learned_limit(whole)
            if learned is not None and learned.fits < self.too_much:
                self.length = learned.fits
        else:
            self.too_much = None
            self.length = error.limit if self.length is None else min(error.limit, self.length)
            had = error.asked if error.asked is not None and not wanted else _REFUSED_SHARE * (error.limit - wanted)
            self.scale = max(self.scale, had / estimate)
        self.refusal, self.refused = error, _total_weight(sent, size)
        self.refusals += 1
        return True

    def learn(self, whole: ChatRequest, sent: ChatRequest, usage: Usage | None) -> None:
        """Take what an answered inference tells: its usage, where the backend reports it, and that it did fit."""
        estimator, is_whole = self.estimator, sent is whole and not self.refusals
        if usage is not None:
            length = self.length or _LONG * 2
            is_long = usage.input_tokens * 2 >= min(length, self.compacts_from or length)
            estimator.learn(sent, usage.input_tokens, whole, is_long=is_long or not is_whole)
        if is_whole:
            return
        learned = estimator.learned_limit(whole)
        if self.length is not None and (self.too_much is not None or self.is_length_learned):
            estimator.learn_limit(whole, self.length, self.too_much)
        elif sent.messages is not whole.messages and learned is not None and learned.next > learned.fits:
            estimator.learn_limit(whole, learned.next, learned.refused)

    # ---- truncation ----

    async def _fitted(self, request: ChatRequest, size: Size, length: int) -> ChatRequest:
        reserve = min(max_answer(request) or self.reserve, length // _MAX_RESERVE_SHARE)
        free = length - max(reserve, max_answer(request))
        if not self.refusals and not self.estimator.is_near(request, size, free):
            return request
        counted = await self._count(request, request, size)
        if counted.tokens > length - reserve:
            target = _weight(size) * (length - reserve) // counted.tokens - tools_size(request)
            request, counted = await self._cut(request, target, length, reserve)
        left = length - counted.tokens
        return _with_max_answer(request, left if counted.is_exact else max(left, reserve))

    async def _cut(self, whole: ChatRequest, target: int, length: int, reserve: int) -> tuple[ChatRequest, Count]:
        """Cut to the weight of `target` and count, until there are few enough tokens."""
        budget = length - reserve
        for _ in range(_MAX_CUTS):
            target -= target // _SLACK
            truncated = await in_turns(truncation_steps(whole.messages, target, weight))
            request = replace(whole, messages=truncated.messages)
            counted = await self._count(request, whole, await in_turns(size_steps(request)))
            if counted.tokens <= budget or truncated.size > target:
                break
            target = truncated.size * budget // counted.tokens
        if counted.minimum >= length == self.length and self.too_much is None:
            advice = "All that can be left out is left out. Shorten the last message, the instructions or the tools."
            raise _too_long(counted, length, advice)
        if not self.is_silent:
            left_out, shortened = truncated.left_out, truncated.shortened
            note(
                _log,
                logging.INFO,
                f"truncated to fit the context: {left_out} messages left out, {shortened} shortened",
                said={"event": "truncated", "left_out": left_out, "shortened": shortened},
                input_tokens=counted.tokens,
                context_length=length,
            )
        return request, counted

    async def _count(self, request: ChatRequest, whole: ChatRequest, size: Size) -> Count:
        """Count a request of this size that was made from the `whole` one."""
        exact = await self.estimator.exact(request, whole)
        if exact is not None:
            return Count(math.ceil(exact * self.scale), exact - size.attachments * ATTACHMENT_TOKENS)
        estimate = self.estimator.estimate_size(whole, size) + PER_REQUEST
        return Count(math.ceil(estimate * self.scale), await in_turns(min_token_steps(request)))


def window_of(plan: Plan, provider: Provider) -> Window:
    """Return the window of the plan's next inference."""
    capabilities = provider.capabilities(plan.response.model)
    return Window(
        estimator=plan.estimator,
        length=None if capabilities.more_may_fit else capabilities.context_length,
        reserve=plan.settings.reserve,
        truncates=plan.response.truncation == "auto",
        compacts_from=plan.compact_threshold,
    )


async def count_input(plan: Plan, provider: Provider) -> int:
    """Return the tokens of the plan's first inference as it would be sent; all of them if it cannot be sent."""
    request = await in_turns(Prompt(plan).request_steps(Run(plan.response)))
    window = window_of(plan, provider)
    window.is_silent = True
    if window.truncates:
        with suppress(ContextTooLong):
            request = await window.fit(request)
    return await window.estimator.count(request)


def weight(message: ChatMessage) -> int:
    """Return the bytes of a message: unlike estimated tokens, they stay the same."""
    return _weight(message_size(message))


def _weight(size: Size) -> int:
    return size.text + size.fixed * _TOKEN_BYTES


def _total_weight(request: ChatRequest, size: Size) -> int:
    """Return the weight of the request and of the answer that it asks for."""
    return _weight(size) + max_answer(request) * _TOKEN_BYTES


def max_answer(request: ChatRequest) -> int:
    """Return the maximum of tokens that is set for the answer; 0: none."""
    return next((most for most in (request.max_tokens, request.max_completion_tokens) if most is not UNSET), 0)


def _with_max_answer(request: ChatRequest, left: int) -> ChatRequest:
    """Lower the maximum for the answer to what is left for it: some backends refuse what might not fit."""
    if max_answer(request) <= left:
        return request
    field = "max_completion_tokens" if request.max_tokens is UNSET else "max_tokens"
    return replace(request, **{field: max(left, 1)})


def _too_long(counted: Count, length: int, advice: str) -> ContextTooLong:
    about = "" if counted.is_exact else "about "
    message = f"The input has {about}{counted.tokens:,} tokens, and the model's context has {length:,}. {advice}"
    return ContextTooLong(message, param="input", limit=length, asked=counted.tokens)
