"""What of an inference fits into the model's context: found out before the backend is asked, and when it refuses."""

from __future__ import annotations

import logging
import math
from contextlib import suppress

import msgspec
from msgspec import structs

from antwort.api.responses import Usage
from antwort.api.wire import UNSET, replace
from antwort.engine.context.remembered import Room
from antwort.engine.context.text_sizes import least_tokens, message_size, size_of, tools_size
from antwort.engine.context.token_counter import Meter
from antwort.engine.context.truncation import Fitted, fit
from antwort.engine.loop.fold import Run
from antwort.engine.plan import Plan
from antwort.engine.prompt.messages import chat_request
from antwort.errors import ContextTooLong
from antwort.notes import note
from antwort.providers.base import ATTACHMENT_TOKENS, ChatMessage, ChatRequest, Provider

_log = logging.getLogger("antwort.engine")

_SHARE = 4
"""At most one part in so many is kept free for the answer."""
_TRIES = 5
"""How often a request is cut anew because it has more tokens than it should have by its size."""
_REFUSALS = 8
"""How often the backend is asked again after it has found a request too long, each time with less."""
_LESS, _MUCH_LESS = 0.7, 0.25
"""The share of what was sent that is taken to fit where a refusal does not say what would: at first, and then."""
_MORE = 1.25
"""How many times the tokens that there were room for were in a request that was refused."""
_SLACK = 32
"""One part in so many is left free when it is cut, as what is left has other words than all."""
_LONG = 4096
"""Tokens from which on a conversation is remembered where nobody knows how much fits. Else it is so from half of
that on: what is far from its end does not need to be known well."""
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
    who: str = ""
    """The client whose conversation it is."""
    refusals: tuple[ContextTooLong, ...] = ()
    """What the backend has said to this inference by now."""
    refused: int | None = None
    """The weight of what it has refused last: there is no use in sending as much again."""
    scale: float = 1.0
    """How many times the tokens it has that it was thought to have, by these refusals."""
    too_much: int | None = None
    """Tokens that do not fit, where the length was only guessed for want of a number in the refusal."""
    compacts_from: int | None = None
    """Tokens from which on it is summed up what was said."""
    is_found_out: bool = False
    """Whether nobody knew the length before. Else a number may be that of one backend of several, and for now."""

    def is_far(self, request: ChatRequest) -> bool:
        """Whether it can be sent as it is for certain, or nobody knows better, so that there is nothing to wait for."""
        return not self.truncates and (self.length is None or not self.meter.is_near(request, self.length - 1))

    async def fit(self, request: ChatRequest) -> ChatRequest:
        """The request as it can be sent, with the same list of messages where none has to go. Raises `ContextTooLong`,
        in the backend's words where there are any.
        """
        length = self._length(request)
        if length is None:
            return request
        if not self.truncates:
            await self._check(request, length)
            return request
        try:
            fitted = await self._fitted(request, length)
        except ContextTooLong as error:
            raise (self.refusals or (error,))[-1] from None
        if self.refused is not None and _total(fitted) >= self.refused:
            raise self.refusals[-1]
        return fitted

    def _length(self, request: ChatRequest) -> int | None:
        room = self._room(request) if self.truncates and not self.refusals else None
        if room is None:
            return self.length
        return room.next if self.length is None else min(room.next, self.length)

    def _room(self, whole: ChatRequest) -> Room | None:
        """What went through in this conversation, and what did not."""
        return self.meter.remembered.talk(whole, self.who).room

    # ---- what the backend says to it ----

    def narrowed(self, error: Exception | None, sent: ChatRequest, whole: ChatRequest) -> Window | None:
        """The window in which to ask once more, when `sent` was refused for its length; None: there is none."""
        if not isinstance(error, ContextTooLong) or not self.truncates or len(self.refusals) >= _REFUSALS:
            return None
        is_found_out = self.is_found_out or self.length is None
        refused = {"refusals": (*self.refusals, error), "refused": _total(sent), "is_found_out": is_found_out}
        estimate, wanted = self.meter.estimate(sent, self.meter.factor(whole, self.who)), _wanted(sent)
        if error.limit is None:
            tokens = int(estimate * self.scale) + wanted
            return structs.replace(self, length=self._less(tokens, whole), too_much=tokens, **refused)
        length = error.limit if self.length is None else min(error.limit, self.length)
        had = error.asked if error.asked is not None and not wanted else _MORE * (error.limit - wanted)
        return structs.replace(self, length=length, too_much=None, scale=max(self.scale, had / estimate), **refused)

    def _less(self, refused: int, whole: ChatRequest) -> int:
        """A length that may be right, where so much is too long and nobody says more: not less than was answered."""
        room = self._room(whole)
        if room is not None and room.fits < refused:
            return room.fits
        answered = self.meter.remembered.most(whole.model)
        guess = int(refused * (_MUCH_LESS if self.refusals else _LESS))
        return max(guess, answered) if answered < refused else guess

    def learn(self, whole: ChatRequest, sent: ChatRequest, usage: Usage | None) -> None:
        """The backend has answered. `usage` is what that cost; None: nobody knows."""
        is_whole = sent is whole and not self.refusals  # as it mostly is
        if usage is not None:
            meter, tokens = self.meter, usage.input_tokens
            if (is_whole or self._is_uncut(sent, whole)) and not self._is_long(tokens):
                meter.hear(sent, tokens, whole, self.who)
            else:
                meter.learn(sent, tokens, whole, self.who)
            meter.remembered.went_through(sent.model, tokens)
        if not is_whole:
            self._keep_room(whole, is_cut=sent.messages is not whole.messages)

    def _is_uncut(self, sent: ChatRequest, whole: ChatRequest) -> bool:
        return not self.refusals and sent.messages is whole.messages

    def _is_long(self, tokens: int) -> bool:
        length, compacts_from = self.length or _LONG * 2, self.compacts_from
        return tokens * 2 >= (min(length, compacts_from) if compacts_from else length)

    def _keep_room(self, whole: ChatRequest, *, is_cut: bool) -> None:
        remembered = self.meter.remembered
        if self.length is not None and (self.too_much is not None or self.is_found_out):
            remembered.keep_room(whole, self.who, self.length, self.too_much)
        elif is_cut and (room := self._room(whole)) is not None and room.next > room.fits:
            remembered.keep_room(whole, self.who, room.next, room.refused)

    # ---- nothing is left out ----

    async def _check(self, request: ChatRequest, length: int) -> None:
        if not self.meter.is_near(request, length - 1):
            return
        counted = await self._count(request, request)
        if counted.least >= length:
            raise _too_long(
                counted, length, "Shorten it, or let the oldest turns be left out with 'truncation': 'auto'."
            )

    # ---- the oldest is left out ----

    async def _fitted(self, request: ChatRequest, length: int) -> ChatRequest:
        reserve = self._reserve(request, length)
        if not self._is_near(request, length - max(reserve, _wanted(request))):
            return request
        counted = await self._count(request, request)
        if counted.tokens > length - reserve:
            request, counted = await self._cut(request, counted, length, reserve)
        room = length - counted.tokens
        return _clamped(request, room if counted.is_certain else max(room, reserve))

    def _is_near(self, request: ChatRequest, limit: int) -> bool:
        if self.refusals or self.meter.is_near(request, limit):
            return True
        factor = self.meter.factor(request, self.who)
        return factor > 1 and self.meter.estimate(request, factor) > limit

    async def _cut(self, whole: ChatRequest, counted: Count, length: int, reserve: int) -> tuple[ChatRequest, Count]:
        """Cut by weight, which costs nothing, and counted: until there are few enough tokens."""
        request, budget = whole, length - reserve
        beside = 0 if whole.tools is UNSET else tools_size(whole.tools)
        target = (beside + sum(map(weight, whole.messages))) * budget // counted.tokens - beside
        for _ in range(_TRIES):
            target -= target // _SLACK
            fitted = fit(whole.messages, target, weight)
            request = replace(whole, messages=fitted.messages)
            counted = await self._count(request, whole)
            if counted.tokens <= budget or fitted.size > target:
                break
            target = fitted.size * budget // counted.tokens
        if counted.least >= length == self.length and self.too_much is None:
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

    async def _count(self, request: ChatRequest, whole: ChatRequest) -> Count:
        """Of a request that is what is left of the whole."""
        exact = await self.meter.exact(request, whole, self.who)
        if exact is not None:
            least = exact - size_of(request).attachments * ATTACHMENT_TOKENS
            return Count(math.ceil(exact * self.scale), least)
        estimate = math.ceil(self.meter.estimate(request, self.meter.factor(whole, self.who)) * self.scale)
        return Count(estimate, least_tokens(request))


def window_of(plan: Plan, provider: Provider) -> Window:
    """Return the window of the plan's next inference, as much as is known of it now."""
    capabilities = provider.capabilities(plan.response.model)
    return Window(
        meter=plan.meter or Meter(provider),
        length=None if capabilities.more_may_fit else capabilities.context_length,
        reserve=plan.settings.reserve,
        truncates=plan.response.truncation == "auto",
        who=plan.identity.tenant,
        compacts_from=plan.compact_threshold,
    )


async def count_input(plan: Plan, provider: Provider) -> int:
    """Tokens of the plan's first inference as it would be sent. What cannot be sent is counted whole."""
    request = chat_request(Run(plan.response), plan)
    window = structs.replace(window_of(plan, provider), is_silent=True)
    if window.truncates:
        with suppress(ContextTooLong):
            request = await window.fit(request)
    return await window.meter.count(request, window.who)


def weight(message: ChatMessage) -> int:
    """Its bytes of text; other than its tokens by what was learned, they stay the same."""
    size = message_size(message)
    return size.text + size.fixed * _TOKEN


def _total(request: ChatRequest) -> int:
    """The weight of all of it, and of the answer that it asks for."""
    beside = 0 if request.tools is UNSET else tools_size(request.tools)
    return beside + sum(map(weight, request.messages)) + _wanted(request) * _TOKEN


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
