"""The settings in force: defaults, under the file, under the environment, under the flags."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from antwort.config.checks import find_problems, tidied
from antwort.config.files import find_file, others_can_read, read_file
from antwort.config.layers import (
    PROGRAM,
    FlagValues,
    Layer,
    current_flags,
    exclusive,
    from_environment,
    from_flags,
    names_in,
    overlay,
    unknown_variables,
    with_key,
)
from antwort.config.nodes import Node, Origin, Table, node_of, put, variables_in
from antwort.config.problems import BadSettings, Problem
from antwort.config.settings import Settings
from antwort.config.shape import root
from antwort.config.typed import Reading

DEFAULT = "default"

_log = logging.getLogger("antwort.config")


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

    `overrides` go last, by their paths: `{"server.port": 9000}`. What looks wrong and does no harm, such as a variable
    that means nothing, is logged. Raises `CannotStart`.
    """
    flags = {} if path is None else {"config": os.fspath(path)}
    loaded = read(flags, environment=environment, overrides=overrides)
    for warning in loaded.warnings:
        _log.warning(warning)
    return loaded.settings


def read(
    flags: FlagValues,
    *,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Loaded:
    """Raises `CannotStart`; as `BadSettings` it knows every problem."""
    environment = os.environ if environment is None else environment
    flags, replaced = current_flags(flags)
    named = flags.get("config")
    file = find_file(named if isinstance(named, str) else None, environment)
    layers = _layers(file, environment, flags, overrides or {})
    reading = Reading(environment)
    settings = reading.read(_tree(layers), root(), "")
    used = {name for layer in layers for name in variables_in(layer.table)}
    problems, unknown = list(reading.problems), list(unknown_variables(environment, used))
    if isinstance(settings, Settings):
        problems += [placed(problem, reading.origins) for problem in find_problems(settings)]
    if problems:
        raise BadSettings([*problems, *unknown])
    assert isinstance(settings, Settings)
    warnings = (*replaced, *(f"{problem} It is ignored." for problem in unknown), *_about_file(file, reading))
    return Loaded(tidied(settings), reading.origins, file, warnings)


def _layers(
    file: Path | None, environment: Mapping[str, str], flags: FlagValues, overrides: Mapping[str, object]
) -> tuple[Layer, ...]:
    """The lowest one first."""
    by_variable, by_flag = from_environment(environment), from_flags(flags)
    by_file = Table({}, Origin(DEFAULT)) if file is None else exclusive(read_file(file))
    return Layer(by_file), by_variable, by_flag, Layer(_from_program(overrides))


def _tree(layers: Sequence[Layer]) -> Table:
    tree, key = layers[0]
    for layer in layers[1:]:
        tree, key = overlay(tree, layer.table, root()), layer.key or key
    return with_key(tree, key)


def _from_program(overrides: Mapping[str, object]) -> Table:
    table = Table({}, Origin(PROGRAM))
    for path, value in overrides.items():
        entries: dict[str, Node] = {}
        put(entries, names_in(path, PROGRAM), node_of(value, Origin(PROGRAM)))
        table = overlay(table, Table(entries, Origin(PROGRAM)), root())
    return exclusive(table)


def placed(problem: Problem, origins: Mapping[str, str]) -> Problem:
    """With the place of the setting, or else of the nearest thing around it that was given."""
    path = problem.path
    while path and path not in origins:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return problem._replace(origin=origins.get(path, ""))


def _about_file(file: Path | None, reading: Reading) -> tuple[str, ...]:
    if file is None or not reading.has_secrets_in_file or not others_can_read(file):
        return ()
    return (f"{file} holds secrets and can be read by other users; `chmod 600 {file}` keeps them to yourself.",)
