"""What the environment and the command line set, as tables in the shape of the file's, and one laid over another."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.inspect import CustomType, DictType, StructType, Type, VarTupleType

from antwort.config.documents import NotYaml, parse
from antwort.config.files import FILE_VARIABLE
from antwort.config.flags import BACKEND_VARIABLE, FLAGS, KEY_VARIABLE
from antwort.config.hints import hint_for_variable
from antwort.config.nodes import Items, Node, Origin, Table, Text, is_nothing, node_of, put
from antwort.config.problems import BadSettings, Problem
from antwort.config.shape import PREFIX, fields, leaves, root, variable_of, without_none

FlagValues = Mapping[str, object]
"""By the flags' keys: a text, a list of texts, or True for a switch."""

_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]*)=(.*)", re.DOTALL)
_INJECTED = re.compile(r"ANTWORT(_\w+)?_(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_INJECTED_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


class Layer(NamedTuple):
    """What one source sets. The key is for the one backend that has none."""

    table: Table
    key: Node | None = None


# ---- the environment ----


def from_environment(environment: Mapping[str, str]) -> Layer:
    """A variable that is set to nothing counts as not set. Raises `BadSettings`."""
    entries: dict[str, Node] = {}
    for path, leaf in leaves().items():
        if text := _value_of(environment, leaf.variable):
            put(entries, path, given(text, leaf.kind, path, Origin(leaf.variable)))
        if leaf.is_secret and (file := _value_of(environment, f"{leaf.variable}_FILE")):
            put(entries, path, _file(file, f"{leaf.variable}_FILE"))
    if url := _value_of(environment, BACKEND_VARIABLE):
        if "backends" in entries:
            raise BadSettings([Problem(BACKEND_VARIABLE, f"and {variable_of('backends')} cannot both be set")])
        entries["backends"] = _backends([url], BACKEND_VARIABLE)
    return Layer(exclusive(Table(entries, Origin("the environment"))), _key(environment))


def _value_of(environment: Mapping[str, str], name: str) -> str:
    text = environment.get(name, "")
    return "" if _is_injected(name, text) else text


def _key(environment: Mapping[str, str]) -> Node | None:
    if file := environment.get(f"{KEY_VARIABLE}_FILE"):
        return _file(file, f"{KEY_VARIABLE}_FILE")
    key = environment.get(KEY_VARIABLE, "").strip()
    return Text(key, Origin(KEY_VARIABLE), quoted=True) if key else None


def unknown_variables(environment: Mapping[str, str], used: set[str]) -> Iterator[Problem]:
    """Those that look like settings and are none; `used` are those that secrets are taken from."""
    known = variables()
    for name in sorted(environment):
        is_ours = name.startswith(PREFIX) and not _is_injected(name, environment[name])
        if is_ours and name not in known and name not in used:
            yield Problem(name, "is not a setting", hint_for_variable(name, known))


def variables() -> list[str]:
    """All that are read."""
    own = [FILE_VARIABLE, BACKEND_VARIABLE, KEY_VARIABLE, f"{KEY_VARIABLE}_FILE"]
    by_path = [leaf.variable for leaf in leaves().values()]
    return own + by_path + [f"{leaf.variable}_FILE" for leaf in leaves().values() if leaf.is_secret]


def _is_injected(name: str, value: str) -> bool:
    """Kubernetes and Docker set these for services whose names begin with antwort; they are not meant for us."""
    if name.endswith("_PORT") and _INJECTED_ADDRESS.match(value):
        return True
    return name not in variables() and _INJECTED.fullmatch(name) is not None


# ---- the command line ----


def from_flags(flags: FlagValues) -> Layer:
    """Raises `BadSettings`."""
    entries: dict[str, Node] = {}
    for flag in FLAGS:
        if flag.path and flag.key in flags:
            put(entries, flag.path, node_of(flags[flag.key], Origin(flag.name)))
    if urls := _texts(flags.get("backend")):
        entries["backends"] = _backends(urls, "--backend")
    for assignment in _texts(flags.get("set")):
        _assign(entries, assignment)
    file = flags.get("backend_key_file")
    return Layer(
        exclusive(Table(entries, Origin("the flags"))),
        _file(file, "--backend-key-file") if isinstance(file, str) else None,
    )


def _texts(value: object) -> Sequence[str]:
    return [str(entry) for entry in value] if isinstance(value, list | tuple) else []


def _assign(entries: dict[str, Node], assignment: str) -> None:
    path, equals, text = assignment.partition("=")
    if not (path and equals):
        raise BadSettings([Problem("--set", f"must be PATH=VALUE, not {assignment!r}", origin="--set")])
    kind = kind_of(path)
    if isinstance(kind, CustomType) and text.startswith("{"):  # a secret had better not stand on a command line
        kind = root()
    put(entries, path, Text(text, Origin("--set")) if kind is None else given(text, kind, path, Origin("--set")))


def kind_of(path: str) -> Type | None:
    """The type of the setting, or the table of settings, at a path."""
    kind: Type = root()
    for name in path.split("."):
        known = fields(kind) if isinstance(kind, StructType) else {}
        if name not in known:
            return None
        kind = without_none(known[name].type)
    return kind


def _backends(given: Sequence[str], origin: str) -> Items:
    return Items(tuple(_backend(text, at, Origin(origin)) for at, text in enumerate(given)), Origin(origin))


def _backend(text: str, at: int, origin: Origin) -> Table:
    """`name=URL`, or a URL alone, which is called `default` or, from the second on, by its place."""
    named = _NAMED.fullmatch(text)
    name, url = named.groups() if named else (f"default{at + 1}" if at else "default", text)
    return Table({"name": Text(name, origin, quoted=True), "url": Text(url, origin, quoted=True)}, origin)


def _file(name: str, origin: str) -> Table:
    place = Origin(origin)
    return Table({"file": Text(name, place, quoted=True)}, place)


# ---- values as text ----


def given(text: str, kind: Type, path: str, origin: Origin) -> Node:
    """A value that came as text: lists and maps are YAML or JSON, lists of texts may be separated by commas."""
    if isinstance(kind, VarTupleType) and not text.lstrip().startswith("["):
        if isinstance(kind.item_type, StructType):
            example = '[{"name": …}]'
            raise BadSettings([Problem(path, f"must be a list such as {example}", origin=origin.name)])
        return node_of([part.strip() for part in text.split(",") if part.strip()], origin)
    if not isinstance(kind, VarTupleType | DictType | StructType):
        return Text(text, origin)
    try:
        return parse(text, origin.name) or Text("", origin)
    except NotYaml as exc:
        raise BadSettings([Problem(path, f"is not valid: {exc.problem}", origin=origin.name)]) from exc


# ---- one over another ----


def exclusive(table: Table) -> Table:
    """Settings that exclude each other are chosen by the layer that sets one of them last."""
    entries = dict(table.entries)
    if "data" in entries and "memory" not in entries:
        entries["memory"] = Text("false", entries["data"].origin)
    elif _is_on(entries.get("memory")) and "data" not in entries:
        entries["data"] = Text("", entries["memory"].origin)
    if _is_on(entries.get("scripted")) and "backends" not in entries:
        entries["backends"] = Items((), entries["scripted"].origin)
    return Table(entries, table.origin)


def _is_on(node: Node | None) -> bool:
    return isinstance(node, Text) and node.text.strip().lower() in ("true", "yes", "on", "1")


def overlay(lower: Table, upper: Table, kind: StructType) -> Table:
    """Tables of settings are merged; values, lists and maps are replaced as a whole."""
    known = fields(kind)
    entries = dict(lower.entries)
    for key, node in upper.entries.items():
        below = entries.get(key)
        inner = known[key].type if key in known else None
        if isinstance(inner, StructType) and isinstance(below, Table):
            if isinstance(node, Table):
                entries[key] = overlay(below, node, inner)
                continue
            if is_nothing(node):
                continue
        entries[key] = node
    return Table(entries, upper.origin)


def with_key(table: Table, key: Node | None) -> Table:
    """The settings with the key given to the one backend that has none. Raises `BadSettings`."""
    backends = table.entries.get("backends")
    items = backends.items if isinstance(backends, Items) else ()
    if key is None or not (items or key.origin.name.startswith("--")):
        return table  # a key in the environment may be there for another day
    keyless = [at for at, entry in enumerate(items) if isinstance(entry, Table) and "api_key" not in entry.entries]
    if len(keyless) != 1:
        count = (
            f"{len(keyless)} of the {len(items)} backends have none" if keyless else "none of the backends lacks one"
        )
        what = f"is for one backend without a key, and {count if items else 'there is no backend'}"
        hint = "give each its own as `api_key` in the configuration file" if items else "name one with --backend"
        raise BadSettings([Problem(key.origin.name, what, hint, key.origin.name)])
    return Table({**table.entries, "backends": _keyed(items, keyless[0], key)}, table.origin)


def _keyed(items: Sequence[Node], at: int, key: Node) -> Items:
    backend = items[at]
    assert isinstance(backend, Table)
    keyed = Table({**backend.entries, "api_key": key}, backend.origin)
    return Items((*items[:at], keyed, *items[at + 1 :]), backend.origin)
