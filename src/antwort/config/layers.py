"""What the environment and the command line set, as tables in the shape of the file's, and one laid over another."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.inspect import CustomType, DictType, StructType, Type, VarTupleType

from antwort.config.documents import NotYaml, parse
from antwort.config.files import FILE_VARIABLE
from antwort.config.flags import BACKEND_VARIABLE, FLAGS, KEY_VARIABLE, is_gguf
from antwort.config.hints import hint_for_variable
from antwort.config.nodes import Items, Node, Origin, Table, Text, is_nothing, node_of, put, split
from antwort.config.problems import BadSettings, Problem
from antwort.config.repeating import plausible
from antwort.config.shape import PREFIX, fields, leaves, root, variable_of, without_none

FlagValues = Mapping[str, object]
"""By the flags' keys: a text, a list of texts, or True for a switch."""

_ASSIGNMENT = re.compile(r"""((?:"[^"]*"|'[^']*'|[^="'])+)=(.*)""", re.DOTALL)
_DEEPEST = 16
_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]*)=(.*)", re.DOTALL)
_INJECTED = re.compile(r"ANTWORT(_\w+)?_(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_INJECTED_ADDRESS = re.compile(r"(tcp|udp|sctp)://")

CLIENT_VARIABLES = ("ANTWORT_URL", "ANTWORT_API_KEY")
"""What those who speak to a server take from the environment: no settings, and nothing wrong either."""
PROGRAM = "the program"
"""The origin of what a program sets."""


class Layer(NamedTuple):
    """What one source sets. The key is for the one backend there is, or the one that has none."""

    table: Table
    key: Node | None = None


# ---- the environment ----


def from_environment(environment: Mapping[str, str]) -> Layer:
    """A variable that is set to nothing counts as not set. Raises `BadSettings`."""
    entries: dict[str, Node] = {}
    for path, leaf in leaves().items():
        if text := _value_of(environment, leaf.variable):
            put(entries, split(path), given(text, leaf.kind, path, Origin(leaf.variable)))
        if leaf.is_secret and (file := _value_of(environment, f"{leaf.variable}_FILE")):
            put(entries, split(path), _file(file, f"{leaf.variable}_FILE"))
    if url := _value_of(environment, BACKEND_VARIABLE):
        if "backends" in entries:
            raise BadSettings([Problem(BACKEND_VARIABLE, f"and {variable_of('backends')} cannot both be set")])
        entries["backends"] = _backends([url], BACKEND_VARIABLE)
    return Layer(exclusive(Table(entries, Origin("the environment"))), _key(environment))


def _value_of(environment: Mapping[str, str], name: str) -> str:
    text = environment.get(name, "")
    return "" if _is_injected(name, text) else _utf8(text, name, name)


def _utf8(text: str, path: str, origin: str) -> str:
    """Bytes that are no text come as surrogates, which nothing can be done with."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise BadSettings([Problem(path, "is not UTF-8 text", origin=origin)])
    return text


def _key(environment: Mapping[str, str]) -> Node | None:
    if file := environment.get(f"{KEY_VARIABLE}_FILE"):
        return _file(file, f"{KEY_VARIABLE}_FILE")
    key = environment.get(KEY_VARIABLE, "").strip()
    return Text(key, Origin(KEY_VARIABLE), quoted=True) if key else None


def unknown_variables(environment: Mapping[str, str], used: set[str]) -> Iterator[Problem]:
    """Those that look like settings and are none; `used` are those that secrets are taken from. They keep no server
    from starting: another version may know them, or a script of the operator's own.
    """
    known = variables()
    for name in sorted(environment.keys() - set(CLIENT_VARIABLES)):
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


def current_flags(flags: FlagValues) -> tuple[FlagValues, tuple[str, ...]]:
    """Return the flags with those of earlier versions replaced, and a warning for each of them."""
    model = flags.get("model")
    if not isinstance(model, str) or not is_gguf(model):
        return flags, ()
    others = {name: value for name, value in flags.items() if name != "model"}
    return {"gguf": model, **others}, ("--model takes a model's name; for a file, use --gguf FILE.",)


def from_flags(flags: FlagValues) -> Layer:
    """Raises `BadSettings`."""
    entries: dict[str, Node] = {}
    for flag in FLAGS:
        if flag.path and flag.key in flags:
            _utf8(str(flags[flag.key]), flag.path, flag.name)
            put(entries, split(flag.path), node_of(flags[flag.key], Origin(flag.name)))
    if urls := _texts(flags.get("backend")):
        entries["backends"] = _backends(urls, "--backend")
    table = Table(entries, Origin("the flags"))
    for assignment in _texts(flags.get("set")):
        table = overlay(table, _assigned(assignment), root())  # the later goes over the earlier, and keeps the rest
    file = flags.get("backend_key_file")
    return Layer(
        exclusive(table),
        _file(file, "--backend-key-file") if isinstance(file, str) else None,
    )


def _texts(value: object) -> Sequence[str]:
    return [str(entry) for entry in value] if isinstance(value, list | tuple) else []


def _assigned(assignment: str) -> Table:
    found = _ASSIGNMENT.fullmatch(_utf8(assignment, "--set", "--set"))
    if found is None:
        head = plausible(assignment)
        what = f"must be PATH=VALUE{f', and there is no `=` after {head}' if head else ''}"
        raise BadSettings([Problem("--set", what, "such as --set server.linger=5", "--set")])
    path, text = found.groups()
    names = names_in(path, "--set")
    kind = kind_of(names)
    if isinstance(kind, CustomType) and text.startswith("{"):  # a secret had better not stand on a command line
        kind = root()
    entries: dict[str, Node] = {}
    put(entries, names, Text(text, Origin("--set")) if kind is None else given(text, kind, path, Origin("--set")))
    return Table(entries, Origin("the flags"))


def names_in(path: str, origin: str) -> list[str]:
    """Raises `BadSettings` where there are more than any setting has."""
    names = split(path)
    if len(names) > _DEEPEST:
        raise BadSettings([Problem(f"{plausible(path)}…", "is not a setting", origin=origin)])
    return names


def kind_of(names: Sequence[str]) -> Type | None:
    """The type of the setting, or the table of settings, at a path."""
    kind: Type = root()
    for name in names:
        if isinstance(kind, DictType):
            kind = kind.value_type
            continue
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
    for place in ("data", "database"):
        if place in entries and "memory" not in entries:
            entries["memory"] = Text("false", entries[place].origin)
    if _is_on(entries.get("scripted")) and "backends" not in entries:
        entries["backends"] = Items((), entries["scripted"].origin)
    return Table(entries, table.origin)


def _is_on(node: Node | None) -> bool:
    return isinstance(node, Text) and node.text.strip().lower() in ("true", "yes", "on", "1")


def overlay(lower: Table, upper: Table, kind: StructType) -> Table:
    """Tables of settings are merged; values, lists and maps are replaced as a whole. An entry of a map that was set by
    its own path joins the others.
    """
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
        is_joining = isinstance(node, Table) and node.is_part and isinstance(inner, DictType)
        entries[key] = _joined(below, node) if is_joining else node
    return Table(entries, upper.origin)


def _joined(below: Node | None, node: Node) -> Node:
    if not isinstance(below, Table) or not isinstance(node, Table):
        return node
    entries = dict(below.entries)
    for key, entry in node.entries.items():
        is_joining = isinstance(entry, Table) and entry.is_part  # a part of an entry leaves the rest of it
        entries[key] = _joined(entries.get(key), entry) if is_joining else entry
    return Table(entries, node.origin, below.is_part)


def with_key(table: Table, key: Node | None) -> Table:
    """The settings with the key given to the one backend there is, or the one that has none. Raises `BadSettings`."""
    backends = table.entries.get("backends")
    items = backends.items if isinstance(backends, Items) else ()
    if key is None or not (items or key.origin.name.startswith("--")):
        return table  # a key in the environment may be there for another day
    if len(items) == 1 and (own := _key_of(items[0])) is not None and _rank(own) != _rank(key):
        return table if _rank(own) > _rank(key) else _keyed(table, items, 0, key)
    keyless = [at for at, entry in enumerate(items) if isinstance(entry, Table) and _key_of(entry) is None]
    if len(keyless) != 1:
        count = (
            f"{len(keyless)} of the {len(items)} backends have none" if keyless else "none of the backends lacks one"
        )
        what = f"is for one backend without a key, and {count if items else 'there is no backend'}"
        hint = "give each its own as `api_key` in the configuration file" if items else "name one with --backend"
        raise BadSettings([Problem(key.origin.name, what, hint, key.origin.name)])
    return _keyed(table, items, keyless[0], key)


def _key_of(backend: Node) -> Node | None:
    return backend.entries.get("api_key") if isinstance(backend, Table) else None


def _rank(node: Node) -> int:
    """Of the layer that a value came from: a higher one goes before a lower one."""
    if node.origin.is_file:
        return 0
    return 2 if node.origin.name.startswith("--") else 3 if node.origin.name == PROGRAM else 1


def _keyed(table: Table, items: Sequence[Node], at: int, key: Node) -> Table:
    backend = items[at]
    assert isinstance(backend, Table)
    keyed = Table({**backend.entries, "api_key": key}, backend.origin)
    backends = Items((*items[:at], keyed, *items[at + 1 :]), backend.origin)
    return Table({**table.entries, "backends": backends}, table.origin)
