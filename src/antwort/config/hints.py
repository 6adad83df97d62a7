"""What somebody may have meant by a name that there is not."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from antwort.config.shape import PREFIX, all_leaves, leaves
from antwort.suggestions import did_you_mean, nearest

_VERY_CLOSE = 0.75


def hint_for_key(key: str, prefix: str, siblings: Collection[str]) -> str:
    """For a key that is not a setting where it stands: below `prefix`, which ends in a dot or is empty."""
    if key in leaves() and "." in key:
        table, _, last = key.rpartition(".")
        return f"write {last} on a line of its own below {table}"
    if close := nearest(key, siblings, cutoff=_VERY_CLOSE):
        return did_you_mean([prefix + close[0]])
    elsewhere = _by_last_name()
    if key in elsewhere:
        return did_you_mean(elsewhere[key])
    if close := nearest(key, siblings):
        return did_you_mean([prefix + close[0]])
    return did_you_mean([path for name in nearest(key, elsewhere, cutoff=_VERY_CLOSE) for path in elsewhere[name]])


def hint_for_variable(name: str, known: Collection[str]) -> str:
    """`ANTWORT_MAX_TURNS` means the one that ends so; a slip of the finger, the nearest."""
    rest = name.removeprefix(PREFIX)
    by_end = [other for other in known if other.endswith(f"_{rest}")]
    return did_you_mean(by_end or [PREFIX + close for close in nearest(rest, (each[len(PREFIX) :] for each in known))])


def _by_last_name() -> Mapping[str, list[str]]:
    """The paths of all settings, and of the tables they stand in."""
    found: dict[str, list[str]] = {}
    for path in dict.fromkeys(path for leaf in all_leaves() for path in _with_tables(leaf.path)):
        found.setdefault(path.rpartition(".")[2], []).append(path)
    return found


def _with_tables(path: str) -> Iterator[str]:
    if "." in path:
        yield from _with_tables(path.rpartition(".")[0].removesuffix("[]"))
    yield path
