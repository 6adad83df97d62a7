"""A Chat Completions backend to try things on: the stand-in of `demo.py`, spoken to over HTTP.

python -m antwort.testing.backend --port 8000 --model my-model

It lists the models it is told to have, answers `POST /v1/chat/completions` whole or streamed, and understands nothing.
With `--context N` it says, as vLLM does, how many tokens it takes, counts them at `/tokenize`, and refuses what is
longer; a token is a word there. With `--reasoning` it thinks aloud before it answers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from typing import Any, TypeAlias

import msgspec

from antwort.api.responses import Usage
from antwort.api.wire import UNSET, encode
from antwort.ids import new_id
from antwort.providers.base import CallDelta, ChatRequest, Delta, Finished, ReasoningDelta, TextDelta
from antwort.testing.demo import DEMO_MODEL, DemoProvider, words_in

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_JSON, _EVENTS = b"application/json", b"text/event-stream"


class DemoBackend:
    """An ASGI application that speaks Chat Completions. `context` is how many words a request and its answer may have
    together; None: any number. Without a tokenizer it has the limit, and no `/tokenize`. With `reasons`, it thinks
    aloud before it answers.
    """

    def __init__(
        self,
        models: Sequence[str] = (DEMO_MODEL,),
        *,
        context: int | None = None,
        has_tokenizer: bool = True,
        reasons: bool = False,
    ) -> None:
        self._models = tuple(models)
        self._provider = DemoProvider(reasons=reasons)
        self._context = context
        self._has_tokenizer = has_tokenizer and context is not None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(f"{scope['type']} is not spoken here")
        match scope["method"], scope["path"]:
            case "GET", "/v1/models":
                await _answer(send, 200, {"object": "list", "data": [self._listed(name) for name in self._models]})
            case "POST", "/v1/chat/completions":
                await self._complete(await _body(receive), send)
            case "POST", "/tokenize" if self._has_tokenizer:
                await self._tokenize(await _body(receive), send)
            case _:
                await _answer(send, 404, _error("There is nothing here.", "not_found"))

    def _listed(self, name: str) -> dict[str, Any]:
        told = {"id": name, "object": "model", "created": 0, "owned_by": "demo"}
        return told if self._context is None else {**told, "max_model_len": self._context}

    async def _complete(self, body: bytes, send: Send) -> None:
        request = await self._read(body, send)
        if request is None:
            return
        if problem := self._overflow(request):
            await _answer(send, 400, problem)
        elif request.stream is True:
            await self._stream(request, send)
        else:
            deltas = [delta async for batch in self._provider.infer(request) for delta in batch]
            await _answer(send, 200, _whole(request.model, deltas))

    async def _tokenize(self, body: bytes, send: Send) -> None:
        if (request := await self._read(body, send)) is not None:
            count = words_in(request)
            told = {"count": count, "max_model_len": self._context, "tokens": list(range(count)), "token_strs": None}
            await _answer(send, 200, told)

    async def _read(self, body: bytes, send: Send) -> ChatRequest | None:
        """The request; None: it is refused."""
        try:
            request = msgspec.json.decode(body, type=ChatRequest)
        except msgspec.MsgspecError as exc:
            await _answer(send, 400, _error(str(exc), "invalid_request_error"))
            return None
        if request.model not in self._models:
            await _answer(send, 404, _error(f"The model {request.model!r} does not exist.", "not_found"))
            return None
        return request

    def _overflow(self, request: ChatRequest) -> dict[str, Any] | None:
        """The refusal of what does not fit, in vLLM's words."""
        context, asked = self._context, words_in(request)
        wanted = max(each for each in (request.max_tokens, request.max_completion_tokens, 1) if each is not UNSET)
        if context is None or asked + wanted <= context:
            return None
        limit = f"maximum context length is {context} tokens"
        too_much = f"'max_tokens' or 'max_completion_tokens' is too large: {wanted}. This model's {limit} and your "
        message = f"{too_much}request has {asked} input tokens ({wanted} > {context} - {asked})."
        if asked >= context:
            message = f"This model's {limit}. However, your prompt contains {asked} input tokens."
        return {"error": {"message": message, "type": "BadRequestError", "param": "input_tokens", "code": 400}}

    async def _stream(self, request: ChatRequest, send: Send) -> None:
        await _start(send, 200, _EVENTS)
        async for frame in self._frames(request):
            await send({"type": "http.response.body", "body": b"data: " + frame + b"\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})

    async def _frames(self, request: ChatRequest) -> AsyncIterator[bytes]:
        head = {"id": new_id("chatcmpl"), "object": "chat.completion.chunk", "created": 0, "model": request.model}
        async for batch in self._provider.infer(request):
            for delta in batch:
                yield encode({**head, **_chunk(delta)})


def _chunk(delta: Delta) -> dict[str, Any]:
    if isinstance(delta, Finished):
        return {"choices": [_choice({}, delta.finish)], "usage": _usage(delta.usage)}
    return {"choices": [_choice(_piece(delta), None)]}


def _choice(delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish}


def _piece(delta: Delta) -> dict[str, Any]:
    if isinstance(delta, CallDelta):
        return {"role": "assistant", "tool_calls": [_call(delta)]}
    if isinstance(delta, ReasoningDelta):
        return {"role": "assistant", "reasoning_content": delta.text}
    return {"role": "assistant", "content": delta.text if isinstance(delta, TextDelta) else ""}


def _call(delta: CallDelta) -> dict[str, Any]:
    function = {"name": delta.name, "arguments": delta.arguments}
    return {"index": delta.index, "id": new_id("call"), "type": "function", "function": function}


def _whole(model: str, deltas: Sequence[Delta]) -> dict[str, Any]:
    calls = [_call(delta) for delta in deltas if isinstance(delta, CallDelta)]
    message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": calls}
    if not calls:
        text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
        message = {"role": "assistant", "content": text}
    if thoughts := "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)):
        message["reasoning_content"] = thoughts
    end = deltas[-1]
    assert isinstance(end, Finished)
    choice = {"index": 0, "message": message, "finish_reason": end.finish}
    head = {"id": new_id("chatcmpl"), "object": "chat.completion", "created": 0, "model": model}
    return {**head, "choices": [choice], "usage": _usage(end.usage)}


def _usage(usage: Usage | None) -> dict[str, int] | None:
    if usage is None:
        return None
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
    }


# ---- HTTP ----


async def _body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return bytes(body)


def _error(message: str, kind: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


async def _answer(send: Send, status: int, content: dict[str, Any]) -> None:
    await _start(send, status, _JSON)
    await send({"type": "http.response.body", "body": encode(content), "more_body": False})


async def _start(send: Send, status: int, kind: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until interrupted."""
    import uvicorn

    parser = argparse.ArgumentParser(
        prog="python -m antwort.testing.backend", description="A backend to try things on."
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model", action="append", metavar="NAME", help="a model it has; may be given again")
    parser.add_argument("--context", type=int, metavar="N", help="words that a request and its answer may have")
    parser.add_argument("--no-tokenizer", action="store_true", help="have a context, and no /tokenize")
    parser.add_argument("--reasoning", action="store_true", help="think aloud before each answer")
    chosen = parser.parse_args(arguments)
    try:
        sock = socket.create_server((chosen.host, chosen.port))
    except OSError as exc:
        raise SystemExit(f"Cannot listen on {chosen.host}, port {chosen.port}: {exc.strerror}.") from exc
    with sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # pieces of a stream go out as they come
        host, port = sock.getsockname()
        print(f"a stand-in for a model answers on http://{host}:{port}/v1", flush=True)  # noqa: T201 - a program
        app = DemoBackend(
            chosen.model or (DEMO_MODEL,),
            context=chosen.context,
            has_tokenizer=not chosen.no_tokenizer,
            reasons=chosen.reasoning,
        )
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="warning"))
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn has ended in order by then
            asyncio.run(server.serve(sockets=[sock]))


if __name__ == "__main__":
    main()
