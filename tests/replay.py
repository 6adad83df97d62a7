"""Engines that answer from recordings: a question gets the answer that the engine gave to one of its kind.

async with playing(LLAMA_CPP) as engine:
    ...  # engine.url, engine.requests
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

from replay_backend import CASES, Answer, Backend, Seen, recorded, whole

Script: TypeAlias = Mapping[str, Answer]
"""Answers by the kind of question, or by `GET` and the path."""

_OWN = Path(__file__).parent / "doctor" / "recorded"
NOT_THERE = whole(b'{"error":{"message":"Not Found","type":"not_found_error","code":404}}', 404)


def kind_of(request: Seen) -> str:
    """What sort of question it is: `text`, `auto`, `required`, `named`, `parallel`, `schema`, `image` or `malformed`;
    with ` whole` behind it where it is not to be streamed.
    """
    if request.method == "GET":
        return f"GET {request.path}"
    try:
        body: dict[str, Any] = json.loads(request.body)
    except ValueError:
        return "malformed"
    return _kind(body) + ("" if body.get("stream") else " whole")


def _kind(body: dict[str, Any]) -> str:
    if "tools" in body:
        choice = body.get("tool_choice", "auto")
        return "parallel" if body.get("parallel_tool_calls") else choice if isinstance(choice, str) else "named"
    if "response_format" in body:
        return "schema"
    return "image" if isinstance(body["messages"][0]["content"], list) else "text"


class ReplayedEngine(Backend):
    def __init__(self, answer: Callable[[Seen], Answer]) -> None:
        super().__init__((Answer(),))
        self._choose = answer

    @property
    def kinds(self) -> list[str]:
        """What was asked, in this order."""
        return [kind_of(request) for request in self.requests]

    def chosen(self) -> Answer:
        return self._choose(self.requests[-1])


@asynccontextmanager
async def answering(choose: Callable[[Seen], Answer]) -> AsyncGenerator[ReplayedEngine, None]:
    """An engine that answers as `choose` says."""
    engine = ReplayedEngine(choose)
    server = await asyncio.start_server(engine.accept, "127.0.0.1", 0)
    engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield engine
    finally:
        server.close()
        await engine.close()


@asynccontextmanager
async def playing(script: Script, **more: Answer) -> AsyncGenerator[ReplayedEngine, None]:
    """An engine that answers by the script, and with 404 where there is nothing in it; `more` goes over it."""
    answers = {**script, **more}
    async with answering(lambda request: answers.get(kind_of(request), NOT_THERE)) as engine:
        yield engine


# ---- the engines ----


def _case(name: str) -> Answer:
    return recorded(CASES[name])


def _own(name: str, status: int = 200, server: str = "llama.cpp") -> Answer:
    return whole((_OWN / name).read_bytes(), status, {"server": server})


LLAMA_CPP: Script = {
    "GET /v1/models": _own("llama.cpp/models.json"),
    "GET /props": _own("llama.cpp/props_tools.json"),
    "text": _case("llama.cpp/text_stream_usage"),
    "auto": _case("llama.cpp/tool_auto_stream"),
    "required": _case("llama.cpp/tool_required_stream"),
    "named": Answer(
        (CASES["llama.cpp/err_tool_choice_object"].body,),
        headers={"content-type": "application/json", "server": "llama.cpp"},
        framing="length",
    ),
    "parallel": _case("llama.cpp/tool_parallel_stream"),
    "schema": _case("llama.cpp/json_schema_stream"),
    "image": _own("llama.cpp/image.json", 500),
    "malformed": _case("llama.cpp/err_bad_json"),
}
"""With a chat template that offers tools."""

LLAMA_CPP_WITHOUT_TOOLS: Script = {
    **LLAMA_CPP,
    "GET /props": _own("llama.cpp/props.json"),
    **dict.fromkeys(("auto", "required", "named", "parallel"), _case("llama.cpp/tool_required_ignored_stream")),
}
"""Its template drops the tools without a word."""

LLAMA_CPP_THINKING: Script = {**LLAMA_CPP, "text": _case("llama.cpp/reasoning_stream")}

LLAMA_CPP_LOADING: Script = dict.fromkeys(("GET /v1/models", "GET /models"), _case("llama.cpp/err_loading"))

VLLM: Script = {
    "GET /v1/models": _own("vllm/models.json", server="uvicorn"),
    "GET /version": _own("vllm/version.json", server="uvicorn"),
    "text": _case("vllm/text_stream_usage"),
    "auto": _case("vllm/tool_auto_stream"),
    "required": _case("vllm/tool_required_stream"),
    "named": _case("vllm/tool_named_stream"),
    "parallel": _case("vllm/tool_required_stream"),
    "schema": _case("vllm/json_schema_stream"),
    "image": _own("vllm/image.json", 400, server="uvicorn"),
    "malformed": _case("vllm/err_bad_json"),
}
"""With the hermes parser."""


WITH_TOOLS = ("auto", "required", "named", "parallel", "required whole")


def refusing_tools(script: Script, message: str, kinds: Sequence[str] = WITH_TOOLS) -> Script:
    """The engine refuses whoever offers it tools. vLLM without a tool parser does so for `auto` alone."""
    refusal = whole(json.dumps({"error": {"message": message, "type": "BadRequestError", "code": 400}}).encode(), 400)
    return {**script, **dict.fromkeys(kinds, refusal)}
