"""The settings in force: defaults, under the file, under the environment, under the flags."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from antwort.config.addresses import checked_backend
from antwort.config.checks import find_problems
from antwort.config.files import find_file, others_can_read, read_file
from antwort.config.layers import (
    FlagValues,
    exclusive,
    from_environment,
    from_flags,
    overlay,
    unknown_variables,
    with_key,
)
from antwort.config.nodes import Node, Origin, Table, node_of, put
from antwort.config.problems import BadSettings, Problem
from antwort.config.settings import Settings
from antwort.config.shape import root
from antwort.config.typed import Reading

DEFAULT = "default"


class Loaded(NamedTuple):
    """The settings, and where they came from."""

    settings: Settings
    origins: Mapping[str, str]
    """Of every value that was given, by its path: `antwort.yaml:12`, `ANTWORT_SERVER_PORT`, `--port`."""
    file: Path | None
    warnings: tuple[str, ...] = ()

    def origin(self, path: str) -> str:
        return self.origins.get(path, DEFAULT)


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Settings:
    """The settings of this file, or of the one that `antwort serve` would find, with the environment laid over them.

    `overrides` go last, by their paths: `{"server.port": 9000}`. Raises `CannotStart`.
    """
    flags = {} if path is None else {"config": os.fspath(path)}
    return read(flags, environment=environment, overrides=overrides).settings


def read(
    flags: FlagValues,
    *,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Loaded:
    """Raises `CannotStart`; as `BadSettings` it knows every problem."""
    environment = os.environ if environment is None else environment
    named = flags.get("config")
    file = find_file(named if isinstance(named, str) else None, environment)
    tree = _tree(file, environment, flags, overrides or {})
    reading = Reading(environment)
    settings = reading.read(tree, root(), "")
    problems = [*reading.problems, *unknown_variables(environment, reading.variables)]
    if isinstance(settings, Settings):
        problems += [_placed(problem, reading.origins) for problem in find_problems(settings)]
    if problems:
        raise BadSettings(problems)
    assert isinstance(settings, Settings)
    return Loaded(_tidied(settings), reading.origins, file, _warnings(file, reading))


def _tree(
    file: Path | None, environment: Mapping[str, str], flags: FlagValues, overrides: Mapping[str, object]
) -> Table:
    by_variable, by_flag = from_environment(environment), from_flags(flags)
    tree = Table({}, Origin(DEFAULT)) if file is None else exclusive(read_file(file))
    for layer in (by_variable.table, by_flag.table, _from_program(overrides)):
        tree = overlay(tree, layer, root())
    return with_key(tree, by_flag.key or by_variable.key)


def _from_program(overrides: Mapping[str, object]) -> Table:
    entries: dict[str, Node] = {}
    for path, value in overrides.items():
        put(entries, path, node_of(value, Origin("the program")))
    return exclusive(Table(entries, Origin("the program")))


def _placed(problem: Problem, origins: Mapping[str, str]) -> Problem:
    """With the place of the setting, or else of the nearest thing around it that was given."""
    path = problem.path
    while path and path not in origins:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return problem._replace(origin=origins.get(path, ""))


def _tidied(settings: Settings) -> Settings:
    backends = tuple(replace(backend, url=checked_backend(backend.url)) for backend in settings.backends)
    return replace(settings, backends=backends)


def _warnings(file: Path | None, reading: Reading) -> tuple[str, ...]:
    if file is None or not reading.has_secrets_in_file or not others_can_read(file):
        return ()
    return (f"{file} holds secrets and can be read by other users; `chmod 600 {file}` keeps them to yourself.",)
