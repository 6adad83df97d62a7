"""`antwort config`: the settings shown, checked and described."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from antwort.cli.say import complain, tell
from antwort.config.problems import BadSettings, CannotStart, Problem

if TYPE_CHECKING:
    from antwort.config.loading import Loaded


def show(given: Mapping[str, object]) -> int:
    from antwort.config.loading import read
    from antwort.config.shown import as_json, as_yaml

    try:
        loaded = read(given)
    except CannotStart as exc:
        return complain(exc)
    _warn(loaded)
    if given.get("json"):
        return tell(as_json(loaded))
    everything = bool(given.get("all"))
    source = "no file" if loaded.file is None else str(loaded.file)
    lines = as_yaml(loaded, everything=everything)
    rest = "all else has its default" if lines else "everything has its default"
    more = "" if everything else f"; {rest}, which --all shows"
    return tell(f"# {source}{more}", *([lines] if lines else []))


def check(given: Mapping[str, object]) -> int:
    from antwort.config.loading import read

    try:
        loaded = read(given)
    except BadSettings as exc:
        for problem in exc.problems:
            print(f"antwort: {problem}", file=sys.stderr)
        return 2 if exc.problems[0].is_usage else 1
    except CannotStart as exc:
        return complain(exc)
    _warn(loaded)
    faults = list(_faults(loaded))
    for fault in faults:
        complain(fault)
    if faults:
        return 1
    return tell(f"The settings are right ({'no file' if loaded.file is None else loaded.file}).")


def _warn(loaded: Loaded) -> None:
    for warning in loaded.warnings:
        print(f"antwort: {warning}", file=sys.stderr)


def _faults(loaded: Loaded) -> Iterator[CannotStart]:
    """What would keep a server from starting, as far as it can be known without listening and without a backend."""
    from antwort.backends import make_fleet
    from antwort.config.checks import check_ready
    from antwort.toolsets import find_network_problems

    settings = loaded.settings
    yield from _placed(find_network_problems(settings), loaded)

    try:
        check_ready(settings)
    except CannotStart as exc:
        yield exc
    yield from _about_tools(loaded)
    try:
        make_fleet(settings)
    except CannotStart as exc:
        yield exc


def _about_tools(loaded: Loaded) -> Iterator[CannotStart]:
    from antwort.config.checks import check_toolsets
    from antwort.toolsets import find_label_problems, load_tools

    settings, tools = loaded.settings, loaded.settings.tools
    try:
        labels = load_tools(tools.modules, entry_points=tools.entry_points, demo=tools.demo).labels
        check_toolsets(tools.hosted, {**labels, **{server.label: None for server in settings.mcp_servers}})
    except CannotStart as exc:
        yield exc
    else:
        yield from _placed(find_label_problems(settings, labels), loaded)


def _placed(problems: Iterable[Problem], loaded: Loaded) -> Iterator[CannotStart]:
    """Each with the line that it is about."""
    from antwort.config.loading import placed

    return (BadSettings([placed(problem, loaded.origins)]) for problem in problems)


def schema(_: Mapping[str, object]) -> int:
    from antwort.config.schema import schema as made

    return tell(json.dumps(made(), indent=2, ensure_ascii=False))


def reference(_: Mapping[str, object]) -> int:
    from antwort.config.schema import reference as made

    return tell(made().rstrip())
