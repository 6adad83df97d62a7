"""What an operator says about tools that only OpenAI runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from antwort.app import build
from antwort.config import CannotStart, Settings
from antwort.config.checks import check_toolsets
from antwort.config.settings import HostedPolicy, ToolSettings
from config_kit import Operator

RUN = HostedPolicy(do="run", toolset="search")


def test_each_type_has_its_own_policy(operator: Operator) -> None:
    text = """
tools:
  hosted:
    "web_search*": {do: run, toolset: search, tools: [find]}
    computer*: {do: refuse}
    image_generation: {}
"""
    settings = operator.gets(text)
    assert settings.tools.hosted == {
        "web_search*": HostedPolicy(do="run", toolset="search", tools=("find",)),
        "computer*": HostedPolicy(do="refuse"),
        "image_generation": HostedPolicy(do="drop"),
    }
    assert settings.engine().hosted == settings.tools.hosted


def test_a_policy_may_be_set_by_its_parts(operator: Operator) -> None:
    text = "tools: {hosted: {web_search: {do: run, toolset: search}, computer: {do: refuse}}}"
    parts = ["tools.hosted.web_search.tools=find,fetch", "tools.hosted.tool_search.do=refuse"]
    assert operator.gets(text, set=parts).tools.hosted == {
        "web_search": HostedPolicy(do="run", toolset="search", tools=("find", "fetch")),
        "computer": HostedPolicy(do="refuse"),
        "tool_search": HostedPolicy(do="refuse"),
    }


@pytest.mark.parametrize(
    ("policies", "said"),
    [
        (
            "{web_search: {do: run}}",
            "tools.hosted.web_search.toolset is missing: `do: run` needs the label of a toolset (antwort.yaml:1).",
        ),
        (
            "{web_search: {do: run, toolset: s, tools: []}}",
            "tools.hosted.web_search.tools names no tool (antwort.yaml:1); leave it out for all of the toolset's.",
        ),
        (
            "{web_search: {toolset: s}}",
            (
                "tools.hosted.web_search.toolset means nothing without `do: run` (antwort.yaml:1); "
                "leave it out, or write `do: run`."
            ),
        ),
        (
            "{web_search: {do: refuse, tools: [a]}}",
            (
                "tools.hosted.web_search.tools means nothing without `do: run` (antwort.yaml:1); "
                "leave it out, or write `do: run`."
            ),
        ),
        (
            "{web*search: {do: drop}}",
            (
                "tools.hosted['web*search'] has a `*` before its end, which stands for nothing (antwort.yaml:1); "
                "write `*` at the end only."
            ),
        ),
        (
            "{function: {do: refuse}}",
            "tools.hosted.function is a type of tools that every request may have (antwort.yaml:1); leave it out.",
        ),
        (
            "{'func*': {do: refuse}}",
            (
                "tools.hosted['func*'] means 'function' too, a type of tools that every request may have "
                "(antwort.yaml:1); write more of the type, or `*` for all that nobody runs."
            ),
        ),
        (
            "{'mcp*': {do: refuse}}",
            "tools.hosted['mcp*'] means 'mcp' too, a type of tools that every request may have (antwort.yaml:1);",
        ),
        (
            "{'': {do: refuse}}",
            "tools.hosted[''] is no type of tools (antwort.yaml:1); name one, or write `*` for all.",
        ),
        ("{web_search: {do: fly}}", "tools.hosted.web_search.do must be one of drop, refuse, run, not 'fly'"),
        ("web_search", "tools.hosted must be a mapping of names to settings, not text (antwort.yaml:1)."),
    ],
)
def test_a_policy_that_means_nothing_is_told(operator: Operator, policies: str, said: str) -> None:
    [problem] = operator.is_told(f"tools: {{hosted: {policies}}}")
    assert problem.startswith(said)


@pytest.mark.parametrize("kind", ["*", "mcp_*", "custom_search*", "computer*"])
def test_a_beginning_that_means_none_of_the_types_that_are_ours_is_right(operator: Operator, kind: str) -> None:
    settings = operator.gets(f"tools: {{hosted: {{'{kind}': {{do: refuse}}}}}}")
    assert settings.tools.hosted == {kind: HostedPolicy(do="refuse")}


# ---- toolsets that are not there ----


@pytest.mark.parametrize(
    ("toolsets", "known"),
    [
        ({}, "there is none at all: tools.modules names what toolsets are taken from"),
        ({"calc": ("add",)}, "there is calc"),
        ({"demo": None, "calc": ("add",)}, "there are calc, demo"),
    ],
)
def test_a_toolset_that_is_not_there_is_told_with_those_that_are(
    toolsets: dict[str, tuple[str, ...] | None], known: str
) -> None:
    with pytest.raises(CannotStart) as caught:
        check_toolsets({"web*": RUN}, toolsets)
    said = "tools.hosted['web*'].toolset names 'search', and there is no toolset of that name"
    assert str(caught.value) == f"{said}; {known}."


def test_a_tool_that_the_toolset_does_not_have_is_told() -> None:
    policy = HostedPolicy(do="run", toolset="search", tools=("find", "fetch"))
    check_toolsets({"web_search": policy}, {"search": None})
    check_toolsets({"web_search": policy}, {"search": ("fetch", "find")})
    with pytest.raises(CannotStart) as caught:
        check_toolsets({"web_search": policy}, {"search": ("find", "page")})
    said = "tools.hosted.web_search.tools names 'fetch', and the toolset 'search' has no tool of that name"
    assert str(caught.value) == f"{said}; it has find, page."


async def test_a_server_does_not_start_with_a_policy_that_nobody_can_run() -> None:
    tools = ToolSettings(hosted={"web_search": RUN}, demo=True)
    with pytest.raises(CannotStart, match=r"^tools\.hosted\.web_search\.toolset names 'search', .* there is demo\.$"):
        await build(Settings(scripted=True, memory=True, tools=tools))


async def test_a_server_starts_with_a_policy_for_any_labelled_executor(tmp_path: Path) -> None:
    module = tmp_path / "finding.py"
    module.write_text(
        "from antwort.testing import ToolServerFake\n"
        "class Search(ToolServerFake):\n"
        "    label = 'search'\n"
        "server = Search('search')\n"
    )
    tools = ToolSettings(hosted={"web_search": RUN}, modules=(str(module),))
    app = await build(Settings(scripted=True, memory=True, tools=tools))
    await app.stop()
