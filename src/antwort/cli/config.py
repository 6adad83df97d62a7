"""`antwort config`: the settings shown, checked and described."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from antwort.cli.say import complain, say
from antwort.config.problems import BadSettings, CannotStart


def show(given: Mapping[str, object]) -> int:
    from antwort.config.reading import read
    from antwort.config.shown import as_json, as_yaml

    try:
        loaded = read(given)
    except CannotStart as exc:
        return complain(exc)
    if given.get("json"):
        say(as_json(loaded))
        return 0
    everything = bool(given.get("all"))
    source = "no file" if loaded.file is None else str(loaded.file)
    lines = as_yaml(loaded, everything=everything)
    rest = "all else has its default" if lines else "everything has its default"
    more = "" if everything else f"; {rest}, which --all shows"
    say(f"# {source}{more}", *([lines] if lines else []))
    return 0


def check(given: Mapping[str, object]) -> int:
    from antwort.config.checks import check_ready
    from antwort.config.reading import read

    try:
        loaded = read(given)
        check_ready(loaded.settings)
    except BadSettings as exc:
        for problem in exc.problems:
            print(f"antwort: {problem}", file=sys.stderr)
        return 2 if exc.problems[0].is_usage else 1
    except CannotStart as exc:
        return complain(exc)
    for warning in loaded.warnings:
        print(f"antwort: {warning}", file=sys.stderr)
    say(f"The settings are right ({'no file' if loaded.file is None else loaded.file}).")
    return 0


def schema(_: Mapping[str, object]) -> int:
    from antwort.config.schema import schema as made

    say(json.dumps(made(), indent=2, ensure_ascii=False))
    return 0


def reference(_: Mapping[str, object]) -> int:
    from antwort.config.reference import reference as made

    say(made().rstrip())
    return 0
