"""Asks the model for summaries. What is too long for its context is summed up piece by piece, each with the last."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from antwort.api.responses import Usage
from antwort.api.wire import UNSET, UnsetType
from antwort.engine.context.shortening import short_text
from antwort.engine.context.summary_prompt import Entry, question, take_piece
from antwort.engine.context.text_sizes import text_size
from antwort.engine.plan import Plan
from antwort.errors import AntwortError, BackendCut, BackendError, ContextTooLong
from antwort.providers.base import CUT, ChatMessage, ChatRequest, Finished, TextDelta

if TYPE_CHECKING:
    from antwort.engine.runs.live import LiveRun

_SHARE = 4
"""A summary takes a quarter of the context at most."""
_GUIDANCE_SHARE, _LEAST_GUIDED = 8, 512
"""The instructions of the request take an eighth of it, where it is no smaller than this."""
_SHORT = 1536
"""Tokens of a context below which the question is a short one."""
_LEAST_CONTEXT = 192
"""Tokens of a context in which something can be summed up."""
_MARGIN = 0.9
"""So much of the room is used: how much there is, is estimated."""
_LEAST_ROOM, _LEAST_ANSWER, _LEAST_WORDS = 16, 16, 16
_PER_WORD, _PER_SHORT_WORD = 4, 2
"""Tokens of the longest summary for each word that is asked for: many models think first, and that counts. In a short
context there is no room to think."""
_PER_THRESHOLD = 8
"""Tokens of the threshold for each word: the summary has to stay well below it."""
_SAMPLE = "x" * 4096
_DENSE = 0.3
"""Tokens of a byte, where nobody knows."""
_THOUGHT, _THOUGHT_END = "<think>", "</think>"
"""What stands around the reasoning of models that nobody parses it of."""
_CUT = "[The summary breaks off here: it became too long.]"


def rate_of(plan: Plan, model: str) -> float:
    """Tokens of a byte for the model, about."""
    if plan.meter is None:
        return _DENSE
    return plan.meter.estimate_message(model, ChatMessage(role="user", content=_SAMPLE)) / len(_SAMPLE)


def longest_summary(plan: Plan, context: int | None = None) -> int:
    """Tokens that a summary may take, where the model that writes it has this context."""
    contexts = (context, plan.capabilities.context_length)
    known = (size // _SHARE for size in contexts if size is not None)
    return max(1, min(plan.settings.compaction_summary, *known, 2**31))


class Scribe:
    """Writes the summaries of one compaction."""

    def __init__(self, live: LiveRun) -> None:
        plan, provider = live.plan, live.provider
        self._plan, self._provider, self._live = plan, provider, live
        self._model = plan.settings.compaction_model or plan.response.model
        capabilities = provider.capabilities(self._model)
        self._context = capabilities.context_length
        """Tokens that there are for the question and the summary, as far as is known by now."""
        self._is_whole = capabilities.max_tokens_field == "max_completion_tokens"
        self._most_words: int | None = None
        self.usage: Usage | UnsetType = UNSET
        """What it took so far, as far as the backend tells."""
        self._untold = 0

    @property
    def estimate(self) -> int | UnsetType:
        """Tokens that it may have taken beside the usage."""
        return self._untold or UNSET

    async def sum_up(self, entries: Sequence[Entry], earlier: str, room: int | None = None) -> str:
        """One summary of the entries and of what was summed up earlier. Without entries, the earlier one stands, unless
        it is far too long. `room`: tokens that there are for it where it will stand.

        Where the context is smaller than it was thought to be, all that is in it gives way.
        """
        self._most_words = None if room is None else max(_LEAST_WORDS, room // _PER_SHORT_WORD)
        summary, left, told = earlier, [*entries], Entry(role="summary", text=earlier)
        if not left and self._tokens(earlier) > 2 * self._longest:
            summary, left = "", [told]
        while left:
            if summary is earlier and self._shortened(earlier) != earlier:
                summary, left = "", [told, *left]
            folded = self._shortened(summary)
            piece, rest = take_piece(left, self._room(folded), self._tokens)
            try:
                summary = await self._written(piece, folded)
            except ContextTooLong as error:
                self._narrow(error, self._size(self._question(piece, folded)) + self._longest)
            else:
                left = rest
        return summary

    # ---- how much of what ----

    @property
    def _longest(self) -> int:
        return longest_summary(self._plan, self._context)

    @property
    def _words(self) -> int:
        words = self._longest // (_PER_SHORT_WORD if self._is_short else _PER_WORD)
        threshold, most = self._plan.compact_threshold, self._most_words
        if threshold is not None:
            words = min(words, max(_LEAST_WORDS, threshold // _PER_THRESHOLD))
        return max(1, words if most is None else min(words, most))

    @property
    def _is_short(self) -> bool:
        return self._context is not None and self._context < _SHORT

    @property
    def _guidance(self) -> str | None:
        """The instructions of the request, as far as there is room for them."""
        guidance, context = self._plan.request.instructions, self._context
        if not guidance or context is None:
            return guidance
        return self._within(guidance, context // _GUIDANCE_SHARE) if context >= _LEAST_GUIDED else None

    def _inside(self, earlier: str) -> int | None:
        """Tokens that there are for a conversation after that summary; None: nobody knows."""
        if self._context is None:
            return None
        return int((self._context - self._longest) * _MARGIN) - self._size(self._question((), earlier))

    def _room(self, earlier: str) -> int | None:
        inside = self._inside(earlier)
        return None if inside is None else max(_LEAST_ROOM, inside)

    def _shortened(self, summary: str) -> str:
        """A summary that takes half of what there is for it and the conversation, at most."""
        inside = self._inside("")
        return summary if inside is None else self._within(summary, max(_LEAST_ROOM, inside // 2))

    def _within(self, text: str, most: int) -> str:
        """The text with at most so many tokens, about."""
        size = self._tokens(text)
        return text if size <= most else short_text(text, len(text) * most // size)

    def _narrow(self, error: ContextTooLong, sent: int) -> None:
        """What was refused had so many tokens, about: there are less. Raises the error where that is hopeless."""
        known, told = self._context, error.limit
        if known is not None and known <= _LEAST_CONTEXT:
            raise error
        if told is None or (known is not None and told >= known):
            told = sent // 2
        self._context = max(_LEAST_CONTEXT, told if known is None else min(told, known - 1))

    def _tokens(self, text: str) -> int:
        return math.ceil(text_size(text) * rate_of(self._plan, self._model))

    def _size(self, messages: Sequence[ChatMessage]) -> int:
        return sum(self._tokens(str(message.content)) for message in messages)

    # ---- asking ----

    def _question(self, piece: Sequence[Entry], earlier: str, words: int | None = None) -> list[ChatMessage]:
        return question(
            piece, earlier=earlier, guidance=self._guidance, words=words or self._words, is_short=self._is_short
        )

    async def _written(self, piece: Sequence[Entry], earlier: str) -> str:
        """The summary of both. One that is cut is asked for once more, shorter. Raises `BackendError` where there is
        none.
        """
        said, is_cut = await self._ask(self._question(piece, earlier))
        if is_cut:
            again, is_cut_again = await self._ask(self._question(piece, earlier, max(1, self._words // 2)))
            if again:
                said, is_cut = again, is_cut_again
        if not said:
            raise BackendError("The model wrote no summary of the conversation.")
        return f"{said}\n{_CUT}" if is_cut else said

    async def _ask(self, messages: list[ChatMessage]) -> tuple[str, bool]:
        """One inference, without tools: what is said in it, and whether it was cut for its length."""
        request, most = self._plan.request, self._longest
        if self._context is not None:
            most = max(_LEAST_ANSWER, min(most, self._context - self._size(messages)))
        asked = ChatRequest(
            model=self._model,
            messages=messages,
            stream=True if request.stream else UNSET,
            max_tokens=UNSET if self._is_whole else most,
            max_completion_tokens=most if self._is_whole else UNSET,
            user=UNSET if request.user is None else request.user,
        )
        said, finish = await self._said(asked)
        if finish == "content_filter":
            raise BackendError("A filter of the backend kept back the summary of the conversation.")
        return without_thoughts(said), finish in CUT

    async def _said(self, request: ChatRequest) -> tuple[str, str]:
        """What is said, and why it ended."""
        texts: list[str] = []
        finished: Finished | None = None
        live = self._live
        live.is_asking, is_answered = True, False
        async with aclosing(self._provider.infer(request)) as stream:
            while True:
                try:
                    read = await live.signal.race(stream.__anext__)
                except StopAsyncIteration:
                    break
                except AntwortError:
                    live.is_asking = is_answered
                    raise
                is_answered = True
                live.on_answer()
                for delta in read:
                    if isinstance(delta, TextDelta):
                        texts.append(delta.text)
                    elif isinstance(delta, Finished):
                        finished = delta
        if finished is None:
            raise BackendCut("The backend's answer broke off.")
        live.is_asking = False
        said = "".join(texts)
        self._account(request, said, finished.usage)
        return said, finished.finish

    def _account(self, request: ChatRequest, said: str, usage: Usage | None) -> None:
        if usage is None:
            self._untold += self._size(request.messages) + self._tokens(said)
            return
        self.usage = usage if self.usage is UNSET else self.usage + usage
        if self._plan.meter is not None:
            self._plan.meter.learn(request, usage.input_tokens)


def without_thoughts(said: str) -> str:
    """What a model says after it has thought; nothing, where it has not come to the end of that.

    There are templates that begin the thought themselves: then only its end is said, on a line of its own.
    """
    said = said.strip()
    thought, end, rest = said.partition(_THOUGHT_END)
    if said.startswith(_THOUGHT):
        return rest.strip()
    is_end = bool(end) and thought.endswith("\n") and rest.startswith("\n") and _THOUGHT not in thought
    return rest.strip() if is_end else said
