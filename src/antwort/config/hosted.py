"""What can be wrong with the settings for tools that only OpenAI runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from antwort.config.problems import CannotStart, Problem
from antwort.config.typed import below
from antwort.engine.settings import HostedPolicy

_OURS = ("function", "custom", "namespace", "mcp")


def about_hosted(hosted: Mapping[str, HostedPolicy]) -> Iterator[Problem]:
    for kind, policy in hosted.items():
        path = below("tools.hosted", kind)
        yield from _about_kind(kind, path)
        if policy.do == "run":
            yield from _about_run(policy, path)
        elif policy.toolset is not None or policy.tools is not None:
            field = "tools" if policy.toolset is None else "toolset"
            yield Problem(f"{path}.{field}", "means nothing without `do: run`", "leave it out, or write `do: run`")


def _about_kind(kind: str, path: str) -> Iterator[Problem]:
    if not kind:
        yield Problem(path, "is no type of tools", "name one, or write `*` for all")
    if kind in _OURS:
        yield Problem(path, "is a type of tools that every request may have", "leave it out")
    elif "*" in kind[:-1]:
        yield Problem(path, "has a `*` before its end, which stands for nothing", "write `*` at the end only")
    elif len(kind) > 1 and kind.endswith("*") and (ours := [each for each in _OURS if each.startswith(kind[:-1])]):
        what = f"means {ours[0]!r} too, a type of tools that every request may have"
        yield Problem(path, what, "write more of the type, or `*` for all that nobody runs")


def _about_run(policy: HostedPolicy, path: str) -> Iterator[Problem]:
    if policy.toolset is None:
        yield Problem(f"{path}.toolset", "is missing: `do: run` needs the label of a toolset")
    if policy.tools == ():
        yield Problem(f"{path}.tools", "names no tool", "leave it out for all of the toolset's")


def check_toolsets(hosted: Mapping[str, HostedPolicy], toolsets: Mapping[str, Sequence[str] | None]) -> None:
    """Raises `CannotStart` where a toolset, or one of its tools, is not there.

    `toolsets` are the labels that there are, each with the names of its tools, None where they are not known yet.
    """
    for kind, policy in hosted.items():
        if policy.do != "run" or policy.toolset is None:
            continue
        path = below("tools.hosted", kind)
        if policy.toolset not in toolsets:
            raise CannotStart(str(Problem(f"{path}.toolset", _no_toolset(policy.toolset), _known(toolsets))))
        tools = toolsets[policy.toolset]
        for name in policy.tools or ():
            if tools is not None and name not in tools:
                what = f"names {name!r}, and the toolset {policy.toolset!r} has no tool of that name"
                raise CannotStart(str(Problem(f"{path}.tools", what, f"it has {', '.join(tools)}")))


def _no_toolset(label: str) -> str:
    return f"names {label!r}, and there is no toolset of that name"


def _known(toolsets: Mapping[str, object]) -> str:
    if not toolsets:
        return "there is none at all: tools.modules names what toolsets are taken from"
    return f"there are {', '.join(sorted(toolsets))}" if len(toolsets) > 1 else f"there is {next(iter(toolsets))}"
