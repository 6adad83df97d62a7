"""`antwort doctor`: the table, the JSON, the exit status, and what it writes."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pexpect
import pyte
import pytest

from antwort.api.wire import decode
from antwort.cli import main
from antwort.config import load
from antwort.doctor.findings import PROBES, Report
from bare_machine import forget_this_machine
from live_server import start
from replay import LLAMA_CPP, LLAMA_CPP_LOADING, LLAMA_CPP_WITHOUT_TOOLS, VLLM, ReplayedEngine, playing
from replay_backend import whole

KEY = "sk-doctor-0123456789"


@pytest.fixture(autouse=True)
def nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget_this_machine(monkeypatch, tmp_path)


@pytest.fixture
async def vllm() -> AsyncIterator[ReplayedEngine]:
    async with playing(VLLM) as engine:
        yield engine


FILE = Path("antwort.yaml")


def put(text: str, file: Path = FILE) -> None:
    file.write_text(text)
    file.chmod(0o600)


def kept() -> str:
    return FILE.read_text()


def rights() -> int:
    return FILE.stat().st_mode & 0o777


async def doctor(*arguments: str) -> int:
    return await asyncio.to_thread(main, ["doctor", *arguments])


def settled(text: str, engine: ReplayedEngine) -> str:
    """Without what differs from run to run."""
    return re.sub(r"\b\d+ ms", "N ms", text.replace(engine.url, "http://backend"))


WITHOUT_TOOLS = """\
http://backend/v1 · llama.cpp b0-unknown · smollm2-135m

✓  reachable             answers in N ms at http://backend/v1
✓  models                1: smollm2-135m
✓  streaming             7 pieces
✓  length limit          takes max_tokens
✓  usage in streams      35 tokens in, 8 out
–  tool calls, auto      its chat template does not tell the model of tools
                         → antwort makes up for it once `tool_calling` is
                           constrained: --write records it; or give llama.cpp a
                           template that offers tools: --chat-template-file FILE
–  tool calls, required  its chat template does not tell the model of tools
                         → antwort asks again with constrained decoding
                           (tool_calling: auto)
–  tool calls, named     its chat template does not tell the model of tools
                         → antwort asks again with constrained decoding
                           (tool_calling: auto)
–  tool calls, parallel  its chat template does not tell the model of tools
                         → antwort asks again with constrained decoding
                           (tool_calling: auto)
?  tool calls, streamed  no call came that could be looked at
✓  JSON schema           { "city": "Paris", "country": "FRANCE" }
?  reasoning field       the model did not think aloud
–  images                it answers with status 500: image input is not
                         supported - hint: if this is unexpected, you may need
                         to provide the mmproj
                         → antwort refuses images for it once `vision` is off:
                           --write records it; with a model that sees, start
                           llama.cpp with --mmproj FILE
✓  context length        2048 tokens, by /props
                         → that is little for tools and long talks; llama.cpp
                           takes -c N
?  token counts          it has no tokenizer that can be asked
                         → antwort estimates, and learns from the usage
✓  errors well-formed    status 400 with an error object
✓  time to first token   N ms
?  tokens/s              the answer came at once, or not at all

Not fit as it is: tool calls, auto, which --write mends.
--write records: tool_calling: constrained, capabilities.vision: false.
"""  # noqa: RUF001 - the mark of what does not work is a dash


async def test_the_table_says_what_works_and_what_to_do_about_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    async with playing(LLAMA_CPP_WITHOUT_TOOLS) as engine:
        assert await doctor(engine.url) == 1
        assert settled(capsys.readouterr().out, engine) == WITHOUT_TOOLS


async def test_a_narrow_terminal_gets_what_was_seen_below_its_title(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, vllm: ReplayedEngine
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert await doctor(vllm.url) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[1:])) <= 42
    at = lines.index("✓  errors well-formed")
    assert lines[at + 1] == "   status 400 with an error object"


async def test_a_terminal_sees_what_is_looked_at_and_keeps_the_table(vllm: ReplayedEngine) -> None:
    def watched() -> tuple[str, int]:
        child = pexpect.spawn(
            sys.executable, ["-m", "antwort", "doctor", vllm.url], encoding="utf-8", dimensions=(60, 90), timeout=30
        )
        child.expect(pexpect.EOF)
        child.close()
        return child.before or "", child.exitstatus

    raw, status = await asyncio.to_thread(watched)
    screen = pyte.Screen(90, 60)
    pyte.Stream(screen).feed(raw)
    lines = [line.rstrip() for line in screen.display]
    assert status == 0
    assert "tool calls, parallel …" in raw  # while it is asked
    assert not any(line.endswith(" …") for line in lines)  # and gone afterwards
    assert "✓  errors well-formed    status 400 with an error object" in lines
    assert "\x1b[32m✓" in raw


async def test_a_terminal_without_such_marks_gets_words(vllm: ReplayedEngine) -> None:
    process = await start("doctor", vllm.url, environment={"PYTHONIOENCODING": "ascii"})
    output, _ = await process.communicate()
    assert b"ok  errors well-formed    status 400 with an error object\n" in output
    assert b"no  images" in output


async def test_json_has_a_line_for_every_probe_and_nothing_else_is_printed(
    capsys: pytest.CaptureFixture[str], vllm: ReplayedEngine
) -> None:
    assert await doctor(vllm.url, "--json") == 0
    told = capsys.readouterr()
    report = decode(told.out, Report)
    [backend] = report.backends
    assert (report.version, backend.outcome, backend.engine.name, backend.model) == (1, "fine", "vllm", "smollm2")
    assert [finding.probe for finding in backend.findings] == [probe for probe in PROBES if probe != "kind"]
    assert told.err == ""
    assert set(json.loads(told.out)["backends"][0]["findings"][0]) == {
        "probe",
        "verdict",
        "seen",
        "remedy",
        "blocks",
        "settings",
    }


async def test_what_is_out_of_reach_is_one_line_and_an_exit_status_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with playing(LLAMA_CPP_LOADING) as engine:
        assert await doctor(engine.url) == 3
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"antwort: The backend at {engine.url}/v1 is not ready: Loading model (try again in a moment).\n"
    assert await doctor(engine.url, "--json") == 3
    [backend] = decode(capsys.readouterr().out, Report).backends
    assert (backend.outcome, backend.problem) == ("unreachable", "cannot be reached: nothing listens there")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["http://u:p@x/v1"], "must not carry a name or password"),
        (["http://"], "is not a URL"),
        (["http://x", "--timeout", "0"], "--timeout must be a number of seconds"),
        (["http://x", "--timeout", "soon"], "--timeout must be a number of seconds"),
    ],
)
async def test_a_command_line_that_makes_no_sense_is_told_so(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await doctor(*arguments) == 2
    assert said in capsys.readouterr().err


async def test_a_key_comes_from_a_file_or_the_environment_and_is_never_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refusal = whole(json.dumps({"error": {"message": f"Bearer {KEY} is tired"}}).encode(), 429)
    put(f"{KEY}\n", Path("key"))
    async with playing(VLLM, auto=refusal) as engine:
        await doctor(engine.url, "--backend-key-file", "key", "--write")
        monkeypatch.setenv("ANTWORT_BACKEND_API_KEY", KEY)
        await doctor(engine.url, "--json")
        assert {request.headers["authorization"] for request in engine.requests} == {f"Bearer {KEY}"}
    told = capsys.readouterr()
    assert KEY not in told.out + told.err
    assert "[removed] is tired" in told.out
    assert f"api_key: {{file: {tmp_path}/key}}" in kept()


# ---- configured backends ----


async def test_without_an_address_all_configured_backends_are_looked_at(
    capsys: pytest.CaptureFixture[str], vllm: ReplayedEngine
) -> None:
    async with playing(LLAMA_CPP) as other:
        put(f"backends:\n- {{name: a, url: {vllm.url}/v1}}\n- {{name: b, url: {other.url}/v1, models: [mine]}}\n")
        assert await doctor("--json") == 0
    backends = decode(capsys.readouterr().out, Report).backends
    assert [(each.name, each.engine.name, each.model) for each in backends] == [
        ("a", "vllm", "smollm2"),
        ("b", "llama.cpp", "mine"),
    ]


async def test_a_broken_one_counts_for_more_than_one_out_of_reach(vllm: ReplayedEngine) -> None:
    async with playing(LLAMA_CPP_WITHOUT_TOOLS) as broken:
        put(
            f"backends:\n- {{name: a, url: {vllm.url}/v1}}\n- {{name: b, url: {broken.url}/v1}}\n"
            "- {name: c, url: 'http://127.0.0.1:1/v1'}\n"
        )
        assert await doctor("--json") == 1
    put(f"backends:\n- {{name: a, url: {vllm.url}/v1}}\n- {{name: c, url: 'http://127.0.0.1:1/v1'}}\n")
    assert await doctor("--json") == 3


async def test_a_stand_in_is_not_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    put("scripted: true\n")
    assert await doctor() == 1
    assert "There is no backend to examine" in capsys.readouterr().err


async def test_a_file_that_cannot_be_read_does_not_matter_to_an_address(
    capsys: pytest.CaptureFixture[str], vllm: ReplayedEngine
) -> None:
    put("nonsense: true\n")
    assert await doctor(vllm.url) == 0
    assert "That does not matter here" in capsys.readouterr().err
    assert await doctor(vllm.url, "--write") == 1


# ---- what it writes ----


async def test_write_makes_a_file_that_passes_the_check_and_a_second_time_changes_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with playing(LLAMA_CPP_WITHOUT_TOOLS) as engine:
        assert await doctor(engine.url, "--write") == 0  # what blocked it is mended
        told = settled(capsys.readouterr().out, engine)
        text = kept()
        assert await doctor(engine.url, "--write") == 0
    again = capsys.readouterr().out
    assert text.replace(engine.url, "http://backend") == (
        "backends:\n  - name: llama.cpp\n    url: http://backend/v1\n    tool_calling: constrained\n"
        "    capabilities:\n      vision: false\n"
    )
    assert "+    tool_calling: constrained\n" in told
    assert "antwort.yaml says so already." in again
    assert kept() == text
    assert main(["config", "check"]) == 0


async def test_write_keeps_comments_and_order_and_the_rights_of_the_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with playing(LLAMA_CPP_WITHOUT_TOOLS) as engine:
        before = (
            "# mine\nmemory: true\nbackends:\n  # the one\n  - name: x\n"
            f"    url: {engine.url}/v1  # here\n    api_key: {KEY}\n    capabilities: {{vision: yes}}  # eyes\n# end\n"
        )
        put(before)
        assert await doctor("--write") == 0
    after = kept()
    assert after == before.replace(
        "{vision: yes}  # eyes\n", "{vision: false}  # eyes\n    tool_calling: constrained\n"
    )
    assert rights() == 0o600
    assert KEY not in capsys.readouterr().out
    assert load("antwort.yaml").backends[0].tool_calling == "constrained"


async def test_a_file_that_cannot_be_changed_safely_is_left_and_what_to_paste_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with playing(LLAMA_CPP_WITHOUT_TOOLS) as engine:
        text = f"backends: [{{name: x, url: '{engine.url}/v1', api_key: {KEY}}}]\n"
        put(text)
        assert await doctor("--write") == 1
    told = capsys.readouterr().err
    assert "antwort.yaml is left as it is: the list of backends is written in braces or brackets." in told
    assert "  - name: x\n    tool_calling: constrained\n    capabilities:\n      vision: false\n" in told
    assert KEY not in told
    assert kept() == text


async def test_an_address_that_lacks_its_version_is_set_right() -> None:
    async with playing(VLLM) as engine:
        put(f"backends:\n  - name: x\n    url: {engine.url}/\n")
        assert await doctor("--write") == 0
        assert load("antwort.yaml").backends[0].url == f"{engine.url}/v1"


async def test_a_second_backend_of_the_same_engine_gets_a_name_of_its_own(vllm: ReplayedEngine) -> None:
    async with playing(VLLM) as other:
        assert await doctor(vllm.url, "--write") == 0
        assert await doctor(other.url, "--write") == 0
    assert [backend.name for backend in load("antwort.yaml").backends] == ["vllm", "vllm-2"]


async def test_with_json_the_diff_goes_beside_it(capsys: pytest.CaptureFixture[str], vllm: ReplayedEngine) -> None:
    assert await doctor(vllm.url, "--json", "--write") == 0
    told = capsys.readouterr()
    assert decode(told.out, Report).backends[0].outcome == "fine"
    assert "+backends:\n" in told.err
