"""Codex CLI: `codex exec` in a real folder. It always streams, and it always sends the whole conversation."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from clients.codex import Codex, Said, codex_version
from clients.ground import ITEM_MODEL, KNOWN_MODEL, MODEL, serving, settings
from clients.trying import PNG, PNG_DIGEST, Client, NotApplicable, Play, Trial

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PATCH = """\
*** Begin Patch
*** Update File: greeting.txt
@@
-good morning
+good evening
*** Add File: notes/new.txt
+a new file
*** End Patch"""
IDLE_MS = 1500
WORKING = 4
"""Seconds; longer than Codex waits for an event."""
NEVER = 3600
"""Seconds between signs of life, where there are to be none."""


@asynccontextmanager
async def codex_of(at: Trial, model: str = MODEL, url: str = "") -> AsyncIterator[Codex]:
    async with Codex(url or at.ground.url, model) as codex:
        yield codex


async def said(at: Trial, cue: str, *arguments: str, model: str = MODEL) -> Said:
    async with codex_of(at, model) as codex:
        return await codex.exec(cued(at, cue), *arguments)


def cued(at: Trial, cue: str) -> str:
    """The cue, with what tells it from all others."""
    return f"case:{cue} {at.mark}"


def command(line: str) -> str:
    """A call that runs this."""
    return f"call:exec_command{json.dumps({'cmd': line})}"


# ---- what every client is taken through ----


async def plain(at: Trial) -> None:
    answer = await said(at, "plain hello")
    assert answer.answer == f"You said: hello {at.mark}"
    assert answer.events[-1]["usage"]["input_tokens"] > 0
    reached = at.reached()[0]
    names = [tool["function"]["name"] for tool in reached["tools"]]
    assert "exec_command" in names
    assert "web_search" not in names


async def function(at: Trial) -> None:
    answer = await said(at, "function call:get_goal{}")
    assert answer.answer.startswith("The tool says: ")
    assert "goal" in answer.answer
    assert "unsupported" not in answer.answer


async def parallel(at: Trial) -> None:
    answer = await said(at, f"parallel {command('echo wal')} {command('echo rus')}")
    assert sorted(item["aggregated_output"] for item in answer.items("command_execution")) == ["rus\n", "wal\n"]
    assert re.search(r"Output:\nwal\n.*Output:\nrus\n", answer.answer, re.DOTALL)


async def structured(at: Trial) -> None:
    async with codex_of(at) as codex:
        schema = codex.work / "schema.json"
        schema.write_text(json.dumps(PERSON), encoding="utf-8")
        cue = cued(at, 'structured {"name": "Ada", "age": 36}')
        answer = await codex.exec(cue, "--output-schema", str(schema))
    assert json.loads(answer.answer) == {"name": "Ada", "age": 36}
    assert at.reached()[0]["response_format"]["json_schema"]["schema"] == PERSON


async def reasoning(at: Trial) -> None:
    answer = await said(at, f"reasoning {command('echo walrus')}")
    thoughts = [item["text"] for item in answer.items("reasoning")]
    assert thoughts == ["First I think about it: exec_command", "Now I know."]
    assert answer.answer.endswith("I had thought: First I think about it: exec_command")


async def image(at: Trial) -> None:
    async with codex_of(at) as codex:
        answer = await codex.exec(cued(at, "image"), "-i", str(_picture(codex)))
    assert answer.answer == f"I see an image, {PNG_DIGEST}."


def _picture(codex: Codex) -> Path:
    file = codex.work / "pixel.png"
    file.write_bytes(base64.b64decode(PNG.partition(",")[2]))
    return file


async def by_id(at: Trial) -> None:
    del at
    raise NotApplicable("Codex sends the whole conversation with every request and has nothing stored")


async def by_history(at: Trial) -> None:
    async with codex_of(at) as codex:
        first = await codex.exec(cued(at, "plain I am Ada."))
        second = await codex.exec("resume", first.thread, "case:remember")
    assert f"user: {cued(at, 'plain I am Ada.')} | assistant: {first.answer} | user: case:remember" in second.answer


async def tool_error(at: Trial) -> None:
    answer = await said(at, f"tool-error {command('echo the saw has an error; exit 3')}")
    assert [item["exit_code"] for item in answer.items("command_execution")] == [3]
    assert answer.answer.startswith("The tool failed: ")
    assert "exited with code 3" in answer.answer


async def unknown_model(at: Trial) -> None:
    answer = await said(at, "plain", model="nobody")
    assert answer.status != 0
    assert "'nobody' does not exist" in answer.complaint


async def bad_request(at: Trial) -> None:
    """Asked once: no retry makes it better, not even with the retries that `antwort codex` sets."""
    async with codex_of(at) as codex:
        answer = await codex.exec(cued(at, "400"), settings=_retries(request=2, stream=1))
    assert answer.status != 0
    assert "not to the model's liking" in answer.complaint
    assert len(at.reached()) == 1


def _retries(*, request: int, stream: int) -> dict[str, object]:
    provider = "model_providers.antwort"
    return {f"{provider}.request_max_retries": request, f"{provider}.stream_max_retries": stream}


async def backend_429(at: Trial) -> None:
    answer = await said(at, "429")
    assert answer.status != 0
    assert "429 Too Many Requests" in answer.complaint


async def backend_500(at: Trial) -> None:
    answer = await said(at, "500")
    assert answer.status != 0
    assert "502 Bad Gateway: The backend failed to answer." in answer.complaint


async def cut_stream(at: Trial) -> None:
    answer = await said(at, "cut")
    assert answer.status != 0
    assert "The backend's answer broke off." in answer.complaint
    crashed = await said(at, "fails")
    assert "The backend failed to answer." in crashed.complaint


# ---- what Codex alone does ----


async def shell(at: Trial) -> None:
    """Several steps, each with a command in a real folder."""
    async with codex_of(at) as codex:
        answer = await codex.exec(cued(at, f"steps {command('echo walrus > made.txt')} {command('cat made.txt')}"))
        assert (codex.work / "made.txt").read_text(encoding="utf-8") == "walrus\n"
    outputs = [item["aggregated_output"] for item in answer.items("command_execution")]
    assert outputs == ["", "walrus\n"]
    assert "Output:\nwalrus\n" in answer.answer
    assert len(at.reached()) == 3


async def _patched(at: Trial, *patches: str) -> Said:
    """A file is edited and one made by the last of the patches."""
    async with codex_of(at, KNOWN_MODEL) as codex:
        greeting = codex.work / "greeting.txt"
        greeting.write_text("good morning\nwalrus\n", encoding="utf-8")
        texts = "\n".join(f"<<<\n{patch}\n>>>" for patch in patches)
        answer = await codex.exec(cued(at, f"custom call:apply_patch\n{texts}\n"))
        assert answer.answer.startswith("The tool says: "), answer.answer
        assert greeting.read_text(encoding="utf-8") == "good evening\nwalrus\n"
        assert (codex.work / "notes" / "new.txt").read_text(encoding="utf-8") == "a new file\n"
        return answer


async def apply_patch(at: Trial) -> None:
    answer = await _patched(at, PATCH)
    [change] = answer.items("file_change")
    assert sorted(each["kind"] for each in change["changes"]) == ["add", "update"]
    assert "notes/new.txt" in answer.answer


async def custom_tool(at: Trial) -> None:
    """The model's first patch breaks the grammar: it is told so, Codex never sees it, and the second one is applied."""
    answer = await _patched(at, PATCH.replace("*** End Patch", "that is all"), PATCH)
    assert len(list(answer.items("file_change"))) == 1
    _, corrected, last = at.reached()
    assert "does not match the grammar" in corrected["messages"][-1]["content"]
    assert "Success" in last["messages"][-1]["content"]


async def additional_tools(at: Trial) -> None:
    """For some models Codex sends no tools, and an item that declares them: a namespace with one that runs programs."""
    program = 'const made = await tools.exec_command({cmd: "echo wal" + "rus"}); text(made.output);'
    async with codex_of(at, ITEM_MODEL) as codex:
        first = await codex.exec(cued(at, f"custom call:functions__exec <<<{program}>>>"))
        second = await codex.exec("resume", first.thread, "case:remember")
    assert first.answer.startswith("The tool says: "), first.answer
    assert "walrus" in first.answer
    assert first.answer in second.answer
    for reached in at.reached():
        names = [tool["function"]["name"] for tool in reached["tools"]]
        assert {"functions__exec", "functions__wait", "collaboration__spawn_agent"} <= {*names}
        assert not [message for message in reached["messages"] if "additional_tools" in json.dumps(message)]


async def namespace(at: Trial) -> None:
    call = json.dumps({"message": "case:plain I am the second."})
    answer = await said(at, f"function call:spawn_agent{call}")
    assert "unsupported" not in answer.answer
    assert "agent_id" in answer.answer


async def tool_image(at: Trial) -> None:
    async with codex_of(at) as codex:
        call = json.dumps({"path": str(_picture(codex))})
        answer = await codex.exec(cued(at, f"function call:view_image{call}"))
    assert answer.answer.endswith(f"I see an image, {PNG_DIGEST}.")


async def sealed_reasoning(at: Trial) -> None:
    """What was thought in one session is there when it goes on; nothing is stored on the way."""
    async with codex_of(at.bared()) as codex:
        first = await codex.exec(cued(at, "reasoning walrus"))
        second = await codex.exec("resume", first.thread, "case:remember")
    assert f"assistant thought: First I think about it: walrus {at.mark}" in second.answer


async def slow_tool(at: Trial) -> None:
    """A tool of the server's that takes the place of Codex's web search works longer than Codex waits for events."""
    answer = await _searched(at, progress_interval=0.3)
    assert answer.answer == f"The tool says: worked for {WORKING} s."
    silent = await _searched(at, progress_interval=NEVER)
    assert "idle timeout" in silent.complaint


async def _searched(at: Trial, progress_interval: float) -> Said:
    given = settings(at.ground.backend.url)
    given["loop"] = {"progress_interval": progress_interval}
    given["tools"] = {**_mapping(given["tools"]), "hosted": {"web_search": {"do": "run", "toolset": "workshop"}}}
    with TemporaryDirectory() as name:
        config = Path(name) / "antwort.yaml"
        config.write_text(json.dumps(given), encoding="utf-8")
        with serving(config, Path(name)) as url:
            async with codex_of(at, url=url) as codex:
                idle = {"model_providers.antwort.stream_idle_timeout_ms": IDLE_MS}
                return await codex.exec(cued(at, f'slow-tool call:slow{{"seconds": {WORKING}}}'), settings=idle)


def _mapping(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return value


# ---- all of them ----


def streamed(play: Callable[[Trial], Awaitable[None]]) -> Play:
    async def only_streamed(at: Trial) -> None:
        if not at.streamed:
            raise NotApplicable("Codex always streams")
        await play(at)

    return only_streamed


class CodexClient(Client):
    @property
    def version(self) -> str:
        return codex_version()


PLAYS = (
    *(plain, function, parallel, structured, reasoning, image, by_id, by_history, tool_error, unknown_model),
    *(bad_request, backend_429, backend_500, cut_stream),
)
OWN = (shell, apply_patch, custom_tool, additional_tools, namespace, tool_image, sealed_reasoning, slow_tool)
