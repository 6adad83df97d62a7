"""`antwort config`, `key` and `openapi`: settings, a key for them, and the document of the API."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from antwort.cli.output import UsageError, note, print_result, report
from antwort.config.problems import BadSettings, CannotStart, Problem

if TYPE_CHECKING:
    from antwort.config.loading import Loaded

_KEY_PREFIX = "sk-antwort-"
_DEFAULT_URL = "http://127.0.0.1:8080"
"""Where `antwort serve` listens by default."""


def show(given: Mapping[str, object]) -> int:
    """`antwort config show`."""
    from antwort.config.loading import read
    from antwort.config.shown import as_json, as_yaml

    loaded = read(given)
    _print_warnings(loaded)
    if given.get("json"):
        return print_result(as_json(loaded))
    everything = bool(given.get("all"))
    source = "no file" if loaded.file is None else str(loaded.file)
    lines = as_yaml(loaded, everything=everything)
    rest = "all else has its default" if lines else "everything has its default"
    more = "" if everything else f"; {rest}, which --all shows"
    return print_result(f"# {source}{more}", *([lines] if lines else []))


def check(given: Mapping[str, object]) -> int:
    """`antwort config check`."""
    from antwort.config.loading import read

    try:
        loaded = read(given)
    except BadSettings as exc:
        for problem in exc.problems:
            note(f"antwort: {problem}")
        return 2 if exc.problems[0].is_usage else 1
    _print_warnings(loaded)
    problems = list(_find_problems(loaded))
    for each in problems:
        report(each)
    if problems:
        return 1
    return print_result(f"The settings are right ({'no file' if loaded.file is None else loaded.file}).")


def _print_warnings(loaded: Loaded) -> None:
    for warning in loaded.warnings:
        note(f"antwort: {warning}")


def _find_problems(loaded: Loaded) -> Iterator[CannotStart]:
    """Yield what would keep a server from starting, as far as that shows without a port and a backend."""
    from antwort.backends import make_fleet
    from antwort.config.checks import check_ready, check_toolsets
    from antwort.config.loading import placed
    from antwort.toolsets import find_label_problems, find_network_problems, load_tools

    def with_lines(problems: Iterable[Problem]) -> Iterator[CannotStart]:
        return (BadSettings([placed(problem, loaded.origins)]) for problem in problems)

    settings, tools = loaded.settings, loaded.settings.tools
    yield from with_lines(find_network_problems(settings))
    try:
        check_ready(settings)
    except CannotStart as exc:
        yield exc
    try:
        labels = load_tools(tools.modules, entry_points=tools.entry_points, demo=tools.demo).labels
        check_toolsets(tools.hosted, {**labels, **{server.label: None for server in settings.mcp_servers}})
    except CannotStart as exc:
        yield exc
    else:
        yield from with_lines(find_label_problems(settings, labels))
    try:
        make_fleet(settings)
    except CannotStart as exc:
        yield exc


def schema(_: Mapping[str, object]) -> int:
    """`antwort config schema`."""
    from antwort.config.schema import schema as make_schema

    return print_result(json.dumps(make_schema(), indent=2, ensure_ascii=False))


def reference(_: Mapping[str, object]) -> int:
    """`antwort config reference`."""
    from antwort.config.schema import reference as make_reference

    return print_result(make_reference().rstrip())


def key(given: Mapping[str, object]) -> int:
    """`antwort key`."""
    import hashlib
    import secrets

    from antwort.config.settings import NAME_IN_WORDS, is_name
    from antwort.config.shown import written

    name = str(given.get("name", "default"))
    if not is_name(name):
        raise UsageError(f"--name must be {NAME_IN_WORDS}.")
    made = _KEY_PREFIX + secrets.token_urlsafe(32)
    return print_result(
        made,
        "",
        "This is the only time that the key is shown. The server needs only its hash, in antwort.yaml:",
        "",
        "auth:",
        "  keys:",
        f"    - name: {written(name)}",
        f"      sha256: {hashlib.sha256(made.encode()).hexdigest()}",
    )


def openapi(_: Mapping[str, object]) -> int:
    """`antwort openapi`."""
    from antwort.server.openapi import document, servers

    return print_result(json.dumps({**document(), "servers": servers(_DEFAULT_URL)}, indent=2, ensure_ascii=False))
