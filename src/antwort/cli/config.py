"""`antwort config`: the settings shown, checked and described."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from antwort.cli.say import complain, tell
from antwort.config.problems import BadSettings, CannotStart

if TYPE_CHECKING:
    from antwort.config.settings import Settings


def show(given: Mapping[str, object]) -> int:
    from antwort.config.reading import read
    from antwort.config.shown import as_json, as_yaml

    try:
        loaded = read(given)
    except CannotStart as exc:
        return complain(exc)
    if given.get("json"):
        return tell(as_json(loaded))
    everything = bool(given.get("all"))
    source = "no file" if loaded.file is None else str(loaded.file)
    lines = as_yaml(loaded, everything=everything)
    rest = "all else has its default" if lines else "everything has its default"
    more = "" if everything else f"; {rest}, which --all shows"
    return tell(f"# {source}{more}", *([lines] if lines else []))


def check(given: Mapping[str, object]) -> int:
    from antwort.config.reading import read

    try:
        loaded = read(given)
    except BadSettings as exc:
        for problem in exc.problems:
            print(f"antwort: {problem}", file=sys.stderr)
        return 2 if exc.problems[0].is_usage else 1
    except CannotStart as exc:
        return complain(exc)
    for warning in loaded.warnings:
        print(f"antwort: {warning}", file=sys.stderr)
    faults = list(_faults(loaded.settings))
    for fault in faults:
        complain(fault)
    if faults:
        return 1
    return tell(f"The settings are right ({'no file' if loaded.file is None else loaded.file}).")


def _faults(settings: Settings) -> Iterator[CannotStart]:
    """What would keep a server from starting, as far as it can be known without listening and without a backend."""
    from antwort.backends import make_fleet
    from antwort.config.checks import check_ready
    from antwort.config.hosted import check_toolsets
    from antwort.mcpservers import make_mcp
    from antwort.toolsets import load_tools

    def check_tools() -> None:
        tools = settings.tools
        loaded = load_tools(tools.modules, entry_points=tools.entry_points, demo=tools.demo)
        check_toolsets(tools.hosted, {**loaded.labels, **{server.label: None for server in settings.mcp_servers}})

    for part in (
        lambda: check_ready(settings),
        check_tools,
        lambda: make_fleet(settings),
        lambda: make_mcp(settings),
    ):
        try:
            part()
        except CannotStart as exc:
            yield exc


def schema(_: Mapping[str, object]) -> int:
    from antwort.config.schema import schema as made

    return tell(json.dumps(made(), indent=2, ensure_ascii=False))


def reference(_: Mapping[str, object]) -> int:
    from antwort.config.reference import reference as made

    return tell(made().rstrip())
