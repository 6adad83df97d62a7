"""Load the settings: the file, under environment variables, under flags, under what a program sets."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from msgspec.inspect import CustomType, DictType, StructType, Type, VarTupleType

from antwort.config.checks import find_problems, tidied
from antwort.config.conversion import Converter
from antwort.config.files import (
    FILE_VARIABLE,
    Node,
    NotYaml,
    Source,
    find_file,
    others_can_read,
    parse_yaml,
    read_file,
    text_node,
)
from antwort.config.flags import BACKEND_VARIABLE, FLAGS, KEY_VARIABLE, is_gguf
from antwort.config.problems import BadSettings, Problem, plausible
from antwort.config.schema import PREFIX, fields, leaves, root, without_none
from antwort.config.secrets import Secret
from antwort.config.settings import Settings
from antwort.suggestions import did_you_mean, nearest

FlagValues: TypeAlias = Mapping[str, object]
"""By the flags' keys: a text, a list of texts, or True for a switch."""

CLIENT_VARIABLES = ("ANTWORT_URL", "ANTWORT_API_KEY")
"""Variables of clients of a server, which are no settings."""
DEFAULT = "default"
FILE, ENVIRONMENT, FLAGS_RANK, PROGRAM = range(4)
"""The layers, the lowest first."""

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
    """Return the settings of this file, or of the one that `antwort serve` would find, under environment variables.

    `overrides` go last, by their paths: `{"server.port": 9000}`. Warnings, as of a variable that means nothing, are
    logged. Raises `CannotStart`.
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
    """Return the settings that the command line asks for. Raises `CannotStart`; as `BadSettings` with all problems."""
    environment = os.environ if environment is None else environment
    flags, warnings = _current_flags(flags)
    named = flags.get("config")
    file = find_file(named if isinstance(named, str) else None, environment)
    by_variable, variable_key = _read_environment(environment)
    by_flag, flag_key = _read_flags(flags)
    by_file = Node({}, Source(DEFAULT)) if file is None else _exclusive(read_file(file, FILE))
    tree, *upper = layers = (by_file, by_variable, by_flag, _read_overrides(overrides or {}))
    for layer in upper:
        tree = _overlay(tree, layer, root())
    tree = _with_key(tree, flag_key or variable_key)
    converter = Converter(environment)
    settings = converter.convert(tree, root(), "")
    unknown = list(_unknown_variables(environment, {name for layer in layers for name in _variables_in(layer)}))
    problems = converter.problems
    if isinstance(settings, Settings):
        problems += [placed(problem, converter.origins) for problem in find_problems(settings)]
    if problems:
        raise BadSettings([*problems, *unknown])
    assert isinstance(settings, Settings)
    warnings += [f"{problem} It is ignored." for problem in unknown]
    if file is not None and converter.has_secrets_in_file and others_can_read(file):
        warnings.append(
            f"{file} holds secrets and can be read by other users; `chmod 600 {file}` keeps them to yourself."
        )
    return Loaded(tidied(settings), converter.origins, file, tuple(warnings))


def placed(problem: Problem, origins: Mapping[str, str]) -> Problem:
    """Return the problem with the origin of its setting, or else of the nearest table around it that was given."""
    path = problem.path
    while path and path not in origins:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return problem._replace(origin=origins.get(path, ""))


# ---- the environment ----

_INJECTED = re.compile(r"ANTWORT(_\w+)?_(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_INJECTED_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


def variables() -> list[str]:
    """Return the names of all variables that are read."""
    own = [FILE_VARIABLE, BACKEND_VARIABLE, KEY_VARIABLE, f"{KEY_VARIABLE}_FILE"]
    files = [f"{leaf.variable}_FILE" for leaf in leaves().values() if leaf.is_secret]
    return own + [leaf.variable for leaf in leaves().values()] + files


def _read_environment(environment: Mapping[str, str]) -> tuple[Node, Node | None]:
    """Return the settings, and the key of a backend. A variable that is set to nothing counts as not set."""
    entries: dict[str, Node] = {}

    def value_of(name: str) -> str:
        text = environment.get(name, "")
        return "" if _is_injected(name, text) else _utf8(text, name, name)

    for path, leaf in leaves().items():
        if value := value_of(leaf.variable):
            _put(entries, _names_in(path), _node_of_text(value, leaf.kind, path, Source(leaf.variable, ENVIRONMENT)))
        if leaf.is_secret and (file := value_of(f"{leaf.variable}_FILE")):
            _put(entries, _names_in(path), _file(file, Source(f"{leaf.variable}_FILE", ENVIRONMENT)))
    if url := value_of(BACKEND_VARIABLE):
        if "backends" in entries:
            raise BadSettings([Problem(BACKEND_VARIABLE, f"and {leaves()['backends'].variable} cannot both be set")])
        entries["backends"] = _backends([url], Source(BACKEND_VARIABLE, ENVIRONMENT))
    key = None
    if key_file := environment.get(f"{KEY_VARIABLE}_FILE"):
        key = _file(key_file, Source(f"{KEY_VARIABLE}_FILE", ENVIRONMENT))
    elif text := environment.get(KEY_VARIABLE, "").strip():
        key = Node(text, Source(KEY_VARIABLE, ENVIRONMENT))
    return _exclusive(Node(entries, Source("the environment", ENVIRONMENT))), key


def _unknown_variables(environment: Mapping[str, str], used: Collection[str]) -> Iterator[Problem]:
    """Yield the variables that look like settings and are none; `used` are those that secrets refer to. They are
    warnings only: another version may know them, or a script of the operator.
    """
    known = variables()
    for name in sorted(environment.keys() - {*CLIENT_VARIABLES, *used, *known}):
        if name.startswith(PREFIX) and not _is_injected(name, environment[name]):
            rest = name.removeprefix(PREFIX)
            meant = [other for other in known if other.endswith(f"_{rest}")]  # `ANTWORT_MAX_TURNS`
            close = nearest(rest, [other.removeprefix(PREFIX) for other in known])
            yield Problem(name, "is not a setting", did_you_mean(meant or [PREFIX + each for each in close]))


def _is_injected(name: str, value: str) -> bool:
    """Return whether Kubernetes or Docker has set the variable for a service whose name begins with antwort."""
    if name.endswith("_PORT") and _INJECTED_ADDRESS.match(value):
        return True
    return _INJECTED.fullmatch(name) is not None and name not in variables()


def _variables_in(node: Node) -> Iterator[str]:
    """Yield the variables that secrets refer to by `{env: NAME}`."""
    if isinstance(node.value, list):
        for item in node.value:
            yield from _variables_in(item)
    elif isinstance(node.value, dict):
        for key, entry in node.value.items():
            if key == "env" and isinstance(entry.value, str):
                yield entry.value
            yield from _variables_in(entry)


# ---- the command line, and programs ----

_ASSIGNMENT = re.compile(r"""((?:"[^"]*"|'[^']*'|[^="'])+)=(.*)""", re.DOTALL)
_NAMED_BACKEND = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]*)=(.*)", re.DOTALL)


def _current_flags(flags: FlagValues) -> tuple[FlagValues, list[str]]:
    """Return the flags with those of earlier versions replaced, and a warning for each of them."""
    model = flags.get("model")
    warnings = ["--default-model is now called --model."] if "default_model" in flags else []
    if not isinstance(model, str) or not is_gguf(model):
        return flags, warnings
    others = {name: value for name, value in flags.items() if name != "model"}
    return {"gguf": model, **others}, ["--model takes a model's name; for a file, use --gguf FILE.", *warnings]


def _read_flags(flags: FlagValues) -> tuple[Node, Node | None]:
    """Return the settings, and the key of a backend."""
    entries: dict[str, Node] = {}
    for flag in FLAGS:
        if flag.path and flag.key in flags:
            _utf8(str(flags[flag.key]), flag.path, flag.name)
            _put(entries, _names_in(flag.path), _node_of(flags[flag.key], Source(flag.name, FLAGS_RANK)))
    if urls := flags.get("backend"):
        entries["backends"] = _backends(_texts(urls), Source("--backend", FLAGS_RANK))
    table = Node(entries, Source("the flags", FLAGS_RANK))
    for assignment in _texts(flags.get("set")):
        table = _overlay(table, _assigned(assignment), root())  # the later one overrides, and keeps the rest
    file = flags.get("backend_key_file")
    key = _file(file, Source("--backend-key-file", FLAGS_RANK)) if isinstance(file, str) else None
    return _exclusive(table), key


def _texts(value: object) -> list[str]:
    return [str(entry) for entry in value] if isinstance(value, list | tuple) else []


def _assigned(assignment: str) -> Node:
    """Return what `PATH=VALUE` sets."""
    source = Source("--set", FLAGS_RANK)
    found = _ASSIGNMENT.fullmatch(_utf8(assignment, "--set", "--set"))
    if found is None:
        head = plausible(assignment)
        what = f"must be PATH=VALUE{f', and there is no `=` after {head}' if head else ''}"
        raise BadSettings([Problem("--set", what, "such as --set server.linger=5", "--set")])
    path, text = found.groups()
    names = _names_in(path, "--set")
    kind = _kind_of(names)
    if isinstance(kind, CustomType) and text.startswith("{"):  # a secret by a reference
        kind = root()
    entries: dict[str, Node] = {}
    _put(entries, names, text_node(text, source) if kind is None else _node_of_text(text, kind, path, source))
    return Node(entries, source)


def _read_overrides(overrides: Mapping[str, object]) -> Node:
    source = Source("the program", PROGRAM)
    table = Node({}, source)
    for path, value in overrides.items():
        entries: dict[str, Node] = {}
        _put(entries, _names_in(path, source.name), _node_of(value, source))
        table = _overlay(table, Node(entries, source), root())
    return _exclusive(table)


def _kind_of(names: Sequence[str]) -> Type | None:
    """Return the type of the setting, or the table of settings, at a path; None if there is none."""
    kind: Type = root()
    for name in names:
        if isinstance(kind, DictType):
            kind = kind.value_type
        elif isinstance(kind, StructType) and name in (known := fields(kind)):
            kind = without_none(known[name].type)
        else:
            return None
    return kind


def _backends(given: Sequence[str], source: Source) -> Node:
    """Return a list of backends from `name=URL`, or a URL alone, which is called `default` or, from the second on, by
    its place.
    """
    backends = []
    for at, text in enumerate(given):
        named = _NAMED_BACKEND.fullmatch(text)
        name, url = named.groups() if named else (f"default{at + 1}" if at else "default", text)
        backends.append(Node({"name": Node(name, source), "url": Node(url, source)}, source))
    return Node(backends, source)


# ---- values and paths ----

_MAX_PATH_DEPTH = 16
_QUOTES = ("'", '"')
_PATH_NAMES = re.compile(r"""(?:^|(?<=\.))("[^"]*"|'[^']*'|[^.]*)(?:$|(?=\.))""")


def _utf8(text: str, path: str, origin: str) -> str:
    """Return the text. Bytes that are no text come as surrogates, and are refused."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise BadSettings([Problem(path, "is not UTF-8 text", origin=origin)])
    return text


def _names_in(path: str, origin: str = "") -> list[str]:
    """Return the names in a path such as `server.port`. One with a dot is in quotes: `routing.aliases."gpt-4.1"`."""
    found = _PATH_NAMES.findall(path)
    if len(found) > _MAX_PATH_DEPTH:
        raise BadSettings([Problem(f"{plausible(path)}…", "is not a setting", origin=origin)])
    return [name[1:-1] if len(name) > 1 and name[0] == name[-1] in _QUOTES else name for name in found]


def _put(entries: dict[str, Node], names: Sequence[str], node: Node) -> None:
    """Put `node` at a path, and make the tables on the way."""
    first, *rest = names
    if not rest:
        entries[first] = node
        return
    there = entries.get(first)
    below = dict(there.value) if there is not None and isinstance(there.value, dict) else {}
    _put(below, rest, node)
    entries[first] = Node(below, node.source, there.is_part if there is not None and below else True)


def _file(name: str, source: Source) -> Node:
    return Node({"file": Node(name, source)}, source)


def _node_of(value: object, source: Source) -> Node:
    """Return the node of a Python value, as a program or the parser of flags gives it."""
    match value:
        case Mapping():
            return Node({str(key): _node_of(entry, source) for key, entry in value.items()}, source)
        case list() | tuple():
            return Node([_node_of(entry, source) for entry in value], source)
        case Secret():
            return Node(value.reveal(), source)
        case bool():
            return Node(str(value).lower(), source)
        case _:
            return Node(None if value is None else str(value), source)


def _node_of_text(text: str, kind: Type, path: str, source: Source) -> Node:
    """Return the node of a value that came as text: lists and maps are YAML or JSON; lists of texts may be separated by
    commas.
    """
    if isinstance(kind, VarTupleType) and not text.lstrip().startswith("["):
        if isinstance(kind.item_type, StructType):
            raise BadSettings([Problem(path, 'must be a list such as [{"name": …}]', origin=source.name)])
        return Node([Node(part.strip(), source) for part in text.split(",") if part.strip()], source)
    if not isinstance(kind, VarTupleType | DictType | StructType):
        return text_node(text, source)
    try:
        return parse_yaml(text, source)
    except NotYaml as exc:
        raise BadSettings([Problem(path, f"is not valid: {exc.problem}", origin=source.name)]) from exc


# ---- one layer over another ----


def _exclusive(table: Node) -> Node:
    """Return the table with settings that exclude each other decided: the layer that sets one of them last wins."""
    assert isinstance(table.value, dict)
    entries = dict(table.value)
    for place in ("data", "database"):
        if place in entries:
            entries.setdefault("memory", Node("false", entries[place].source))
    scripted = entries.get("scripted")
    if scripted is not None and str(scripted.value).strip().lower() in ("true", "yes", "on", "1"):
        entries.setdefault("backends", Node([], scripted.source))
    return table._replace(value=entries)


def _overlay(lower: Node, upper: Node, kind: StructType) -> Node:
    """Merge tables of settings; values, lists and maps are replaced as a whole. An entry of a map that was set by its
    own path joins the others.
    """
    assert isinstance(lower.value, dict)
    assert isinstance(upper.value, dict)
    known, entries = fields(kind), dict(lower.value)
    for key, node in upper.value.items():
        below = entries.get(key)
        inner = known[key].type if key in known else None
        if isinstance(inner, StructType) and below is not None and isinstance(below.value, dict):
            if node.value is None:
                continue
            entries[key] = _overlay(below, node, inner) if isinstance(node.value, dict) else node
        else:
            entries[key] = _joined(below, node) if isinstance(inner, DictType) and node.is_part else node
    return Node(entries, upper.source)


def _joined(below: Node | None, node: Node) -> Node:
    if below is None or not isinstance(below.value, dict) or not isinstance(node.value, dict):
        return node
    entries = dict(below.value)
    for key, entry in node.value.items():
        entries[key] = _joined(entries.get(key), entry) if entry.is_part else entry
    return Node(entries, node.source, below.is_part)


def _with_key(table: Node, key: Node | None) -> Node:
    """Return the settings with the key given to the only backend, or the only one without a key."""
    assert isinstance(table.value, dict)
    backends = table.value.get("backends")
    items = backends.value if backends is not None and isinstance(backends.value, list) else []
    if key is None or not (items or key.source.rank == FLAGS_RANK):
        return table  # a key in the environment may be there for another day
    own = [entry.value.get("api_key") if isinstance(entry.value, dict) else entry for entry in items]
    free = [at for at, entry in enumerate(own) if entry is None]
    if len(items) == 1 and own[0] is not None and own[0].source.rank != key.source.rank:
        if own[0].source.rank > key.source.rank:
            return table
        free = [0]
    if len(free) != 1:
        count = f"{len(free)} of the {len(items)} backends have none" if free else "none of the backends lacks one"
        what = f"is for one backend without a key, and {count if items else 'there is no backend'}"
        hint = "give each its own as `api_key` in the configuration file" if items else "name one with --backend"
        raise BadSettings([Problem(key.source.name, what, hint, key.source.name)])
    backend = items[free[0]]
    if backends is None or not isinstance(backend.value, dict):
        return table  # it is refused when it is read
    keyed = backend._replace(value={**backend.value, "api_key": key})
    all_keyed = backends._replace(value=[*items[: free[0]], keyed, *items[free[0] + 1 :]])
    return table._replace(value={**table.value, "backends": all_keyed})
