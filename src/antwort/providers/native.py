"""A backend that speaks the Responses API itself, over HTTP."""

from __future__ import annotations

from antwort.api.steps import Steps
from antwort.api.wire import encode
from antwort.providers.answer_parser import AnswerParser
from antwort.providers.base import Capabilities, ChatRequest
from antwort.providers.errors import Asked
from antwort.providers.native_request import native_request
from antwort.providers.remote import Pool, Remote, Timeouts, written_steps
from antwort.providers.responses_parser import ResponsesBodyParser, ResponsesStreamParser
from antwort.providers.token_counter import by_native_input_tokens

__all__ = ["Pool", "ResponsesProvider", "Timeouts"]


class ResponsesProvider(Remote):
    path = "/responses"
    ways = (by_native_input_tokens,)
    usual = Capabilities(files=True, developer_role=True, allowed_tools=True, prompt_cache_key=True, verbosity=True)

    def _body(self, request: ChatRequest) -> bytes:
        return encode(native_request(request))

    def _body_steps(self, request: ChatRequest) -> Steps[bytes]:
        native = native_request(request)
        return encode({**native, "input": (yield from written_steps(native["input"]))})

    def _parser(self, asked: Asked, *, is_streamed: bool) -> AnswerParser:
        return (ResponsesStreamParser if is_streamed else ResponsesBodyParser)(asked, self._most)
