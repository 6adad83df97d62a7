"""The tools of the server to try things on."""

from __future__ import annotations

import asyncio
import base64
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext

if TYPE_CHECKING:
    from antwort.testing.mcp.server import TryServer

Context: TypeAlias = ServerRequestContext[Any, Any]
Run: TypeAlias = Callable[["TryServer", Context, Mapping[str, Any]], Awaitable[types.CallToolResult]]

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="  # a PNG
assert base64.b64decode(PIXEL)
SUM = {"type": "object", "properties": {"sum": {"type": "number"}}, "required": ["sum"]}
_NOTE = "note://today"


def text(*parts: str, is_error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=part) for part in parts], is_error=is_error)


async def _echo(_: TryServer, __: Context, given: Mapping[str, Any]) -> types.CallToolResult:
    return text(str(given["text"]))


async def _add(_: TryServer, __: Context, given: Mapping[str, Any]) -> types.CallToolResult:
    total = given["a"] + given["b"]
    return types.CallToolResult(content=[types.TextContent(text=f"{total}")], structured_content={"sum": total})


async def _image(_: TryServer, __: Context, ___: Mapping[str, Any]) -> types.CallToolResult:
    picture = types.ImageContent(data=PIXEL, mime_type="image/png")
    return types.CallToolResult(content=[types.TextContent(text="One pixel:"), picture])


async def _resource(_: TryServer, __: Context, ___: Mapping[str, Any]) -> types.CallToolResult:
    written = types.TextResourceContents(uri=_NOTE, mime_type="text/plain", text="Buy milk.")
    link = types.ResourceLink(uri="note://tomorrow", name="tomorrow", description="What is left for tomorrow")
    return types.CallToolResult(content=[types.EmbeddedResource(resource=written), link])


async def _slow(_: TryServer, __: Context, given: Mapping[str, Any]) -> types.CallToolResult:
    await anyio.sleep(given["seconds"])
    return text(f"That took {given['seconds']} s.")


async def _hold(server: TryServer, _: Context, given: Mapping[str, Any]) -> types.CallToolResult:
    await server.latch(given["name"]).wait()
    return text(f"{given['name']} was released.")


async def _release(server: TryServer, _: Context, given: Mapping[str, Any]) -> types.CallToolResult:
    server.latch(given["name"]).set()
    return text("Released.")


async def _meet(server: TryServer, _: Context, given: Mapping[str, Any]) -> types.CallToolResult:
    await server.meet(given["name"], given["party"])
    return text(f"{given.get('who', 'Somebody')} met {given['party'] - 1} others.")


async def _fail(_: TryServer, __: Context, given: Mapping[str, Any]) -> types.CallToolResult:
    return text(str(given.get("message", "It did not work.")), is_error=True)


async def _raise(_: TryServer, __: Context, ___: Mapping[str, Any]) -> types.CallToolResult:
    raise RuntimeError("the tool broke")


async def _progress(_: TryServer, context: Context, given: Mapping[str, Any]) -> types.CallToolResult:
    for step in range(1, given["steps"] + 1):
        await context.session.report_progress(step, given["steps"], f"step {step}")
    return text(f"{given['steps']} steps done.")


async def _change(server: TryServer, _: Context, given: Mapping[str, Any]) -> types.CallToolResult:
    await server.change(given["name"])
    return text(f"There is a tool {given['name']} now.")


async def _counter(server: TryServer, context: Context, ___: Mapping[str, Any]) -> types.CallToolResult:
    return text(str(server.next_count(session_of(context))))


async def _whoami(_: TryServer, context: Context, __: Mapping[str, Any]) -> types.CallToolResult:
    seen = {
        "headers": {} if context.request is None else dict(context.request.headers),
        "session": session_of(context),
        "version": context.protocol_version,
        "meta": {key: value for key, value in (context.meta or {}).items() if "/" not in key},
        "environment": sorted(os.environ),
    }
    return types.CallToolResult(content=[types.TextContent(text=str(seen["session"]))], structured_content=seen)


async def _big(_: TryServer, __: Context, given: Mapping[str, Any]) -> types.CallToolResult:
    return text("x" * given.get("bytes", 50 * 2**20))


async def _stubborn(server: TryServer, _: Context, given: Mapping[str, Any]) -> types.CallToolResult:
    with anyio.CancelScope(shield=True):
        await server.latch(given["name"]).wait()
    return text("As if nothing had happened.")


async def _block(_: TryServer, __: Context, given: Mapping[str, Any]) -> types.CallToolResult:
    time.sleep(given["seconds"])  # noqa: ASYNC251 - a server that does not answer anybody meanwhile is the point
    return text("Awake again.")


async def _die(server: TryServer, _: Context, __: Mapping[str, Any]) -> types.CallToolResult:
    if server.is_mortal:
        os._exit(3)
    return text("Only a server in a process of its own can die.", is_error=True)


async def _wait(_: TryServer, __: Context, ___: Mapping[str, Any]) -> types.CallToolResult:
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


class TryTool:
    """A tool: what is said of it, and what it does."""

    def __init__(
        self,
        name: str,
        description: str,
        run: Run,
        /,
        *,
        optional: tuple[str, ...] = (),
        output: dict[str, Any] | None = None,
        annotations: types.ToolAnnotations | None = None,
        **takes: str,
    ) -> None:
        self.name, self.run = name, run
        required = [each for each in takes if each not in optional]
        properties = {each: {"type": kind} for each, kind in takes.items()}
        schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        self.listed = types.Tool(
            name=name, description=description, input_schema=schema, output_schema=output, annotations=annotations
        )


_READS = types.ToolAnnotations(read_only_hint=True)
_AGAIN = types.ToolAnnotations(read_only_hint=False, idempotent_hint=True, destructive_hint=False)

TOOLS: tuple[TryTool, ...] = (
    TryTool("echo", "Give back the text.", _echo, text="string", annotations=_READS),
    TryTool("add", "Add two numbers.", _add, a="number", b="number", output=SUM, annotations=_READS),
    TryTool("image", "A picture of one pixel.", _image, annotations=_READS),
    TryTool("resource", "A note, and a link to another.", _resource, annotations=_READS),
    TryTool("slow", "Take that many seconds.", _slow, seconds="number", annotations=_READS),
    TryTool("hold", "Wait until `release` is called with the same name.", _hold, name="string", annotations=_READS),
    TryTool("release", "Let those go that `hold` that name.", _release, name="string", annotations=_AGAIN),
    TryTool(
        "meet",
        "Wait until that many calls wait here at the same time.",
        _meet,
        name="string",
        party="integer",
        who="string",
        optional=("who",),
        annotations=_READS,
    ),
    TryTool("wait", "Wait for ever.", _wait),
    TryTool("fail", "Say that it did not work.", _fail, message="string", optional=("message",)),
    TryTool("raise", "Break.", _raise),
    TryTool("progress", "Report that many steps.", _progress, steps="integer"),
    TryTool("change", "Add a tool of that name to the list.", _change, name="string", annotations=_AGAIN),
    TryTool("counter", "How often it was called in this session.", _counter),
    TryTool("whoami", "What the server sees of who calls.", _whoami, annotations=_READS),
    TryTool(
        "big", "An answer of that many bytes, or 50 MB.", _big, bytes="integer", optional=("bytes",), annotations=_READS
    ),
    TryTool("stubborn", "Like `hold`, and not to be cancelled.", _stubborn, name="string"),
    TryTool("block", "Let the whole server stand still for that many seconds.", _block, seconds="number"),
    TryTool("die", "End the server at once.", _die),
)


def plain(name: str) -> TryTool:
    """One of many: it says its name."""

    async def run(_: TryServer, __: Context, ___: Mapping[str, Any]) -> types.CallToolResult:
        return text(f"This is {name}.")

    return TryTool(name, f"Say that it is {name}.", run, annotations=_READS)


def session_of(context: Context) -> str | None:
    """The session that a request belongs to, over HTTP and where there are sessions."""
    request = context.request
    if request is None:
        return None
    named: str | None = request.headers.get("mcp-session-id") or request.query_params.get("session_id")
    return named
