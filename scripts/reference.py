"""Write what follows from the code into the pages of docs/reference. With --check: say where it does not stand yet."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec

from antwort import errors
from antwort.api import events
from antwort.cli.commands import COMMANDS, Command
from antwort.config.reference import reference
from antwort.telemetry.reference import markdown

PAGES = Path(__file__).resolve().parent.parent / "docs" / "reference"
_MADE = re.compile(r"(<!-- made by scripts/reference.py -->).*?(<!-- end -->)", re.DOTALL)

# ---- events ----

WHEN = {
    "response.created": "first of all; held back until the backend has answered",
    "response.queued": "a background response waits for its turn (not sent by this version)",
    "response.in_progress": "right after; again as a sign of life under `loop.keepalive: in_progress`",
    "response.completed": "the end: `completed`, or `requires_action` when the client has calls to run",
    "response.failed": "the end: something failed after the first event had gone out",
    "response.incomplete": "the end: a limit, a deadline or a cancellation; `incomplete_details.reason` says which",
    "response.requires_action": "the end, instead of `response.completed`, under `loop.requires_action: event`",
    "error": "not sent by this version: a failure before the first event is an HTTP error",
    "response.output_item.added": "an item begins",
    "response.output_item.done": "the item is finished and never changes again",
    "response.content_part.added": "a part of a message or of reasoning begins",
    "response.content_part.done": "the part is finished",
    "response.output_text.delta": "a piece of text",
    "response.output_text.done": "the text, whole",
    "response.output_text.annotation.added": "an annotation of a text (not sent by this version)",
    "response.refusal.delta": "a piece of a refusal",
    "response.refusal.done": "the refusal, whole",
    "response.reasoning_text.delta": "a piece of reasoning",
    "response.reasoning_text.done": "the reasoning, whole",
    "response.reasoning.delta": "the same under `loop.strict`, by the standard's name",
    "response.reasoning.done": "the same under `loop.strict`, by the standard's name",
    "response.reasoning_summary_part.added": "with `reasoning.summary`: a part of the summary begins",
    "response.reasoning_summary_part.done": "with `reasoning.summary`: the part is finished",
    "response.reasoning_summary_text.delta": "with `reasoning.summary`: a piece of it",
    "response.reasoning_summary_text.done": "with `reasoning.summary`: its text, whole",
    "response.function_call_arguments.delta": "a piece of a call's arguments, as the model writes them",
    "response.function_call_arguments.done": "the arguments, whole",
    "response.mcp_call_arguments.delta": "a piece of the arguments of a call that the server runs",
    "response.mcp_call_arguments.done": "the arguments, whole",
    "response.mcp_call.in_progress": "the server runs the call",
    "response.mcp_call.completed": "the call has its output",
    "response.mcp_call.failed": "the call ended in an error, which the model is told",
    "response.mcp_list_tools.in_progress": "a tool server that the request names is listed",
    "response.mcp_list_tools.completed": "its tools are in the item",
    "response.mcp_list_tools.failed": "it could not be asked; the response goes on without its tools",
}


def event_table() -> str:
    rows = [f"| `{tag}` | {_fields(event)} | {WHEN[tag]} |" for tag, event in _events()]
    return "\n".join(["| event | carries | when |", "|---|---|---|", *rows])


def _events() -> Iterator[tuple[str, type[msgspec.Struct]]]:
    for event in typing.get_args(events.StreamEvent):
        tag = event.__struct_config__.tag
        assert isinstance(tag, str)
        yield tag, event


def _fields(event: type[msgspec.Struct]) -> str:
    return ", ".join(f"`{name}`" for name in event.__struct_fields__)


# ---- errors ----

MEANING = {
    "RequestError": "the request is wrong, or asks for what is not there",
    "InvalidField": "a field is missing or has a value that cannot be; `param` is its path",
    "UnsupportedFeature": "understood, but not offered here",
    "ContextTooLong": "more than the model can read",
    "BackendRefused": "the backend found fault with the request; its words are passed on, shortened",
    "NotFound": "there is nothing at this address",
    "ResponseNotFound": "no such response of yours; `previous_response_not_found` where a request continues it",
    "ItemNotFound": "an `item_reference` to an item that is not there, or not yours",
    "ModelNotFound": "no backend has that model",
    "MethodNotAllowed": "the address is right, the method is not; `Allow` lists those that are",
    "RequestTooSlow": "the request took too long to come in",
    "Conflict": "it cannot be done in the state things are in",
    "BodyTooLarge": "the body is larger than `server.body_limit`",
    "WrongMediaType": "the body is not `application/json`",
    "HeadTooLarge": "the address and headers are larger than `server.head_limit`",
    "NotAuthenticated": "no API key, or one that is not known",
    "NotPermitted": "the key does not allow it",
    "RateLimited": "a limit of the key, or of the backend; `Retry-After` says when to come back, where that is known",
    "ServerFault": "something of ours went wrong",
    "StoreFault": "the record could not be read or written",
    "ShuttingDown": "the server is about to stop; come back in a moment",
    "BackendError": "an inference failed",
    "BackendUnavailable": "the backend cannot be reached, or is not ready",
    "BackendTimeout": "the backend took too long",
    "BackendCut": "the backend's answer broke off",
}


def error_table() -> str:
    rows = [f"| {kind.status} | `{kind.type}` | `{kind.code}` | {MEANING[kind.__name__]} |" for kind in _errors()]
    return "\n".join(["| status | type | code | it means |", "|---|---|---|---|", *rows])


def _errors() -> Iterator[type[errors.AntwortError]]:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.AntwortError)]
    ours = (kind for kind in kinds if kind is not errors.AntwortError)
    return iter(sorted(ours, key=lambda kind: (kind.status, kind.code)))


# ---- the command line ----


def command_lines() -> str:
    """The help of every command, as it is printed on a terminal of a hundred columns."""
    return "\n\n".join(
        f"## {words}\n\n```text\n{_help(words)}\n```" for words in ("antwort", *_commands("antwort", COMMANDS))
    )


def _commands(prog: str, choice: Sequence[Command]) -> Iterator[str]:
    for command in choice:
        yield f"{prog} {command.name}"
        yield from _commands(f"{prog} {command.name}", command.commands)


def _help(words: str) -> str:
    arguments = [sys.executable, "-m", *words.split(), "--help"]
    done = subprocess.run(arguments, env={**os.environ, "COLUMNS": "100"}, capture_output=True, text=True, check=True)
    return done.stdout.strip()


# ---- all pages ----


def parts() -> dict[str, Callable[[], str]]:
    """What follows from the code, by the page that it stands in."""
    return {
        "events.md": event_table,
        "errors.md": error_table,
        "configuration.md": lambda: reference().strip(),
        "metrics.md": lambda: markdown().strip(),
        "command-line.md": command_lines,
    }


def _put(text: str, found: re.Match[str]) -> str:
    return f"{found[1]}\n\n{text}\n\n{found[2]}"


def main(arguments: list[str]) -> int:
    is_check = "--check" in arguments
    stale = []
    for name, part in parts().items():
        file = PAGES / name
        before = file.read_text(encoding="utf-8")
        after = _MADE.sub(partial(_put, part()), before)
        if after != before:
            stale.append(name)
            if not is_check:
                file.write_text(after, encoding="utf-8")
    print(f"{'not as the code says' if is_check else 'written'}: {', '.join(stale) or 'none'}")
    return 1 if stale and is_check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
