"""Ask the model for summaries. What is too long for its context is summarized piece by piece, each with the last."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from antwort.api.responses import Usage
from antwort.api.wire import UNSET, UnsetType
from antwort.engine.context.message_text import short_text
from antwort.engine.context.summary_prompt import PromptEntry, piece_steps, summary_messages
from antwort.engine.context.token_counter import text_size
from antwort.engine.context.window import Window
from antwort.engine.plan import Plan
from antwort.errors import AntwortError, BackendCut, BackendError, ContextTooLong
from antwort.event_loop import in_turns
from antwort.providers.base import CUT, ChatMessage, ChatRequest, Finished, Provider, TextDelta

if TYPE_CHECKING:
    from antwort.engine.runs.live import LiveRun

_SHARE = 4
"""A summary takes a quarter of the context at most."""
_GUIDANCE_SHARE, _MIN_GUIDED_CONTEXT = 8, 512
"""The instructions of the request take an eighth of the context, where it is no smaller than this."""
_SHORT_CONTEXT = 1536
"""Tokens of a context below which the question is a short one."""
_MIN_CONTEXT = 192
"""Tokens of a context in which something can be summarized."""
_MARGIN = 0.9
"""The share of the context that is used, because sizes are estimated."""
_MIN_SIZE = 16
"""Tokens of a piece or an answer, and words of a summary, in any case."""
_TOKENS_PER_WORD, _TOKENS_PER_WORD_SHORT = 4, 2
"""Tokens of the maximum for each word that is asked for: many models reason first. In a short context there is no room
for that."""
_THRESHOLD_PER_WORD = 8
"""Tokens of the threshold for each word: the summary must stay well below it."""
_CUT_SHORT = "[The summary breaks off here: it became too long.]"
_THINK, _THINK_END = "<think>", "</think>"
"""What stands around reasoning that the backend does not parse."""


def max_summary_tokens(plan: Plan, context: int | None = None) -> int:
    """Return the most tokens of a summary, where the model that writes it has this context."""
    contexts = (context, plan.capabilities.context_length)
    known = (size // _SHARE for size in contexts if size is not None)
    return max(1, min(plan.settings.compaction_summary, *known, 2**31))


class Summarizer:
    """Write the summary of one compaction."""

    def __init__(self, live: LiveRun, provider: Provider) -> None:
        self._live, self._provider, self._plan = live, provider, live.plan
        self._model = live.plan.settings.compaction_model or live.plan.response.model
        capabilities = provider.capabilities(self._model)
        self._window = Window(estimator=self._plan.estimator, length=capabilities.context_length, truncates=True)
        """Narrowed by each refusal."""
        self._max_tokens_field = capabilities.max_tokens_field
        self._max_words: int | None = None
        self.usage: Usage | UnsetType = UNSET
        self._estimate = 0

    @property
    def estimate(self) -> int | UnsetType:
        """The tokens of inferences whose usage the backend has not reported."""
        return self._estimate or UNSET

    async def summarize(self, entries: Sequence[PromptEntry], earlier: str, budget: int | None = None) -> str:
        """Return one summary of the entries and of the earlier summary, which stands alone if there are no entries and
        it is not far too long. `budget`: the tokens for it where it will stand.

        Where the context turns out smaller than expected, everything in it is shortened.
        """
        self._max_words = None if budget is None else max(_MIN_SIZE, budget // _TOKENS_PER_WORD_SHORT)
        summary, left, first = earlier, [*entries], PromptEntry(role="summary", text=earlier)
        if not left and self._tokens(earlier) > 2 * self._longest:
            summary, left = "", [first]
        while left:
            if summary is earlier and self._shortened(earlier) != earlier:
                summary, left = "", [first, *left]
            folded = self._shortened(summary)
            most = self._piece_budget(folded)
            piece_budget = None if most is None else max(_MIN_SIZE, most)
            lines, rest = await in_turns(piece_steps(left, piece_budget, self._tokens))
            written = await self._written(lines, folded)
            if written is not None:
                summary, left = written, rest
        return summary

    # ---- sizes ----

    @property
    def _context(self) -> int | None:
        """The estimated tokens of the question and the summary that fit, as far as known by now."""
        length = self._window.length
        return None if length is None else max(_MIN_CONTEXT, int(length / self._window.scale))

    @property
    def _longest(self) -> int:
        return max_summary_tokens(self._plan, self._context)

    @property
    def _words(self) -> int:
        words = self._longest // (_TOKENS_PER_WORD_SHORT if self._is_short else _TOKENS_PER_WORD)
        threshold, most = self._plan.compact_threshold, self._max_words
        if threshold is not None:
            words = min(words, max(_MIN_SIZE, threshold // _THRESHOLD_PER_WORD))
        return max(1, words if most is None else min(words, most))

    @property
    def _is_short(self) -> bool:
        return self._context is not None and self._context < _SHORT_CONTEXT

    def _piece_budget(self, earlier: str) -> int | None:
        """Return the tokens for a conversation after that summary, or None if the context is unknown."""
        if self._context is None:
            return None
        return int((self._context - self._longest) * _MARGIN) - self._size(self._question((), earlier))

    def _shortened(self, summary: str) -> str:
        """Return a summary that takes at most half of the tokens for it and the conversation."""
        most = self._piece_budget("")
        return summary if most is None else self._within(summary, max(_MIN_SIZE, most // 2))

    def _within(self, text: str, most: int) -> str:
        size = self._tokens(text)
        return text if size <= most else short_text(text, len(text) * most // size)

    def _tokens(self, text: str) -> int:
        return math.ceil(text_size(text) * self._plan.estimator.tokens_per_byte(self._model))

    def _size(self, messages: Sequence[ChatMessage]) -> int:
        return sum(self._tokens(str(message.content)) for message in messages)

    # ---- inferences ----

    def _question(self, lines: Sequence[str], earlier: str, words: int | None = None) -> list[ChatMessage]:
        guidance, context = self._plan.request.instructions, self._context
        if guidance and context is not None:
            has_space = context >= _MIN_GUIDED_CONTEXT
            guidance = self._within(guidance, context // _GUIDANCE_SHARE) if has_space else None
        return summary_messages(
            lines, earlier=earlier, guidance=guidance, words=words or self._words, is_short=self._is_short
        )

    async def _written(self, lines: Sequence[str], earlier: str) -> str | None:
        """Return the summary of both, or None where they are too long for the context as it is known now.

        A summary that is cut is asked for once more, shorter. Raises `BackendError`.
        """
        asked = self._request(self._question(lines, earlier))
        try:
            text, is_cut = await self._ask(asked)
            if is_cut:
                asked = self._request(self._question(lines, earlier, max(1, self._words // 2)))
                again, is_cut_again = await self._ask(asked)
                if again:
                    text, is_cut = again, is_cut_again
        except ContextTooLong as error:
            narrowed = self._window.narrowed(error, asked, asked)
            if narrowed is None or (self._context is not None and self._context <= _MIN_CONTEXT):
                raise
            self._window = narrowed
            return None
        if not text:
            raise BackendError("The model wrote no summary of the conversation.")
        return f"{text}\n{_CUT_SHORT}" if is_cut else text

    def _request(self, messages: list[ChatMessage]) -> ChatRequest:
        request, most = self._plan.request, self._longest
        if self._context is not None:
            most = max(_MIN_SIZE, min(most, self._context - self._size(messages)))
        is_total = self._max_tokens_field == "max_completion_tokens"
        return ChatRequest(
            model=self._model,
            messages=messages,
            stream=True if request.stream else UNSET,
            max_tokens=UNSET if is_total else most,
            max_completion_tokens=most if is_total else UNSET,
            user=UNSET if request.user is None else request.user,
        )

    async def _ask(self, asked: ChatRequest) -> tuple[str, bool]:
        """Return the text of one inference, and whether it was cut for its length."""
        text, finished = await self._infer(asked)
        usage = finished.usage
        if usage is None:
            self._estimate += self._size(asked.messages) + self._tokens(text)
        else:
            self.usage = usage if self.usage is UNSET else self.usage + usage
            self._plan.estimator.learn(asked, usage.input_tokens, asked)
        if finished.finish == "content_filter":
            raise BackendError("A filter of the backend kept back the summary of the conversation.")
        return without_reasoning(text), finished.finish in CUT

    async def _infer(self, request: ChatRequest) -> tuple[str, Finished]:
        live, stats = self._live, self._live.stats
        texts: list[str] = []
        finished: Finished | None = None
        stats.is_asking, is_answered = True, False
        async with aclosing(self._provider.infer(request)) as answer:
            try:
                while (deltas := await live.signal.race(partial(anext, answer, None))) is not None:
                    is_answered = True
                    live.answered.set(None)
                    texts += (delta.text for delta in deltas if isinstance(delta, TextDelta))
                    finished = next((delta for delta in deltas if isinstance(delta, Finished)), finished)
            except AntwortError:
                stats.is_asking = is_answered
                raise
        if finished is None:
            raise BackendCut("The backend's answer broke off.")
        stats.is_asking = False
        return "".join(texts), finished


def without_reasoning(text: str) -> str:
    """Return what a model says after its reasoning; nothing, where the reasoning does not end.

    Some templates begin the reasoning themselves: then only its end is there, on a line of its own.
    """
    text = text.strip()
    reasoning, end, rest = text.partition(_THINK_END)
    if text.startswith(_THINK):
        return rest.strip()
    is_end = bool(end) and reasoning.endswith("\n") and rest.startswith("\n") and _THINK not in reasoning
    return rest.strip() if is_end else text
