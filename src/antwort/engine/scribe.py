"""Asks the model for summaries. What is too long for its context is summed up piece by piece, each with the last."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import aclosing

from antwort.api.responses import Usage
from antwort.api.wire import UNSET, UnsetType
from antwort.engine.control import Control
from antwort.engine.plan import Plan
from antwort.engine.sizes import text_size
from antwort.engine.summary import Entry, question, take_piece
from antwort.errors import AntwortError, BackendCut, BackendError, ContextTooLong
from antwort.providers.base import ChatMessage, ChatRequest, Finished, Provider, TextDelta

_SHARE = 4
"""A summary takes a quarter of the context at most."""
_MARGIN = 0.9
"""So much of the room is used: how much there is, is estimated."""
_LEAST_ROOM = 64
"""Tokens of a conversation that are summed up at a time, at least."""
_PER_WORD = 4
"""Tokens of the longest summary for each word that is asked for: many models think first, and that counts."""
_SAMPLE = "x" * 4096
_DENSE = 0.3
"""Tokens of a byte, where nobody knows."""
_THOUGHT = "</think>"
"""What ends the reasoning of models that nobody parses it of."""


class Scribe:
    """Writes the summaries of one compaction."""

    def __init__(self, plan: Plan, provider: Provider, control: Control) -> None:
        self._plan, self._provider, self._control = plan, provider, control
        self._model = plan.settings.compaction_model or plan.response.model
        capabilities = provider.capabilities(self._model)
        self._context = capabilities.context_length
        self._is_whole = capabilities.max_tokens_field == "max_completion_tokens"
        bounds = (plan.settings.compaction_summary, plan.request.max_output_tokens)
        contexts = (self._context, plan.capabilities.context_length)
        known = [bound for bound in bounds if bound is not None]
        self._longest = max(1, min(*known, *(size // _SHARE for size in contexts if size is not None), 2**31))
        self.usage: Usage | UnsetType = UNSET
        """What it took so far, as far as the backend tells."""

    @property
    def rate(self) -> float:
        """Tokens of a byte, about."""
        meter = self._plan.meter
        if meter is None:
            return _DENSE
        return meter.estimate_message(self._model, ChatMessage(role="user", content=_SAMPLE)) / len(_SAMPLE)

    async def sum_up(self, entries: Sequence[Entry], earlier: str) -> str:
        """One summary of the entries and of what was summed up earlier. Without entries, the earlier one stands."""
        summary, left = earlier, [*entries]
        room = self._room(summary)
        while left:
            piece, rest = take_piece(left, room, self._tokens)
            try:
                summary = await self._ask(self._question(piece, summary))
            except ContextTooLong:
                room = (room or sum(self._tokens(entry.line) for entry in left)) // 2
                if room < _LEAST_ROOM:
                    raise
                continue
            left = rest
            bound = self._room(summary)
            room = bound if room is None or bound is None else min(room, bound)
        return summary

    def _tokens(self, text: str) -> int:
        return math.ceil(text_size(text) * self.rate)

    def _room(self, earlier: str) -> int | None:
        """Tokens that there are for a piece of the conversation; None: nobody knows."""
        if self._context is None:
            return None
        around = sum(self._tokens(str(message.content)) for message in self._question((), earlier))
        return max(_LEAST_ROOM, int((self._context - self._longest) * _MARGIN) - around)

    def _question(self, piece: Sequence[Entry], earlier: str) -> list[ChatMessage]:
        words = max(1, self._longest // _PER_WORD)
        return question(piece, earlier=earlier, guidance=self._plan.request.instructions, words=words)

    async def _ask(self, messages: list[ChatMessage]) -> str:
        """One inference, without tools. Raises `BackendError` where nothing is said in it."""
        request = self._plan.request
        asked = ChatRequest(
            model=self._model,
            messages=messages,
            stream=True if request.stream else UNSET,
            max_tokens=UNSET if self._is_whole else self._longest,
            max_completion_tokens=self._longest if self._is_whole else UNSET,
            user=UNSET if request.user is None else request.user,
        )
        said = (await self._said(asked)).rpartition(_THOUGHT)[2].strip()
        if not said:
            raise BackendError("The model wrote no summary of the conversation.")
        return said

    async def _said(self, request: ChatRequest) -> str:
        texts: list[str] = []
        finished: Finished | None = None
        control = self._control
        control.is_asking, is_answered = True, False
        async with aclosing(self._provider.infer(request)) as stream:
            while True:
                try:
                    read = await control.signal.race(stream.__anext__)
                except StopAsyncIteration:
                    break
                except AntwortError:
                    control.is_asking = is_answered
                    raise
                is_answered = True
                control.on_answer()
                for delta in read:
                    if isinstance(delta, TextDelta):
                        texts.append(delta.text)
                    elif isinstance(delta, Finished):
                        finished = delta
        if finished is None:
            raise BackendCut("The backend's answer broke off.")
        control.is_asking = False
        self._account(request, finished.usage)
        return "".join(texts)

    def _account(self, request: ChatRequest, usage: Usage | None) -> None:
        if usage is None:
            return
        self.usage = usage if self.usage is UNSET else self.usage + usage
        if self._plan.meter is not None:
            self._plan.meter.learn(request, usage.input_tokens)
