"""Which call does a piece belong to? Backends leave out index or id, or give index 0 to every call. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from antwort.providers.base import CallDelta, Delta
from antwort.providers.reading import CALL_BYTES, Tally, size_of


class Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: Any = None


class CallPiece(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | int | None = None
    function: Function | None = None


class _Call:
    """A call under way. It is numbered, and shown, when its arguments begin and its name is known: a name may come in
    pieces before them, and arguments are held until there is one.
    """

    __slots__ = ("chunk", "held", "id", "name", "number")

    def __init__(self, call_id: str | int | None) -> None:
        self.id = call_id
        self.name = ""
        self.chunk = 0
        """The chunk that brought the name, or the last piece of it."""
        self.number = -1
        self.held: list[str] = []


class Calls:
    """Tells which call a piece belongs to. Backends may leave out index or id, or give index 0 to every call."""

    __slots__ = ("_all", "_by_id", "_by_index", "_chunk", "_count", "_last", "_tally", "named")

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._all: list[_Call] = []
        self._by_id: dict[str | int, _Call] = {}
        self._by_index: dict[int, _Call] = {}
        self._last: _Call | None = None
        self.named: _Call | None = None
        """The call that has a name, and no arguments yet."""
        self._chunk = self._count = 0

    @property
    def is_empty(self) -> bool:
        return not self._all

    def read(self, pieces: list[CallPiece], out: list[Delta]) -> None:
        """Those of one chunk."""
        self._chunk += 1
        for piece in pieces:
            function = piece.function or _NOTHING
            name = function.name or ""
            self._add(self._call_of(piece, name, out), name, _arguments(function.arguments), out)

    def read_whole(self, calls: list[CallPiece], out: list[Delta]) -> None:
        """In a whole answer every entry is a call of its own, whatever its index and id say."""
        for at, call in enumerate(calls):
            call.index = at
        self.read(calls, out)

    def show_named(self, out: list[Delta]) -> None:
        """Something else begins: the name of the last call is all there is of it."""
        if (call := self.named) is not None:
            self._show(call, out)

    def end(self, out: list[Delta]) -> None:
        """A call that never got a name is shown without one, so that whoever made it hears of it."""
        self.show_named(out)
        for call in self._all:
            if call.number < 0 and call.held:
                self._show(call, out)

    def _add(self, call: _Call, name: str, arguments: str, out: list[Delta]) -> None:
        if arguments:
            self._tally.size += size_of(arguments)
        if call.number >= 0:
            if arguments:
                out.append(CallDelta(call.number, "", arguments))
            return
        if name and name != call.name:  # there are backends that repeat the whole of it with every piece
            call.name += name
            call.chunk = self._chunk
            self._tally.size += size_of(name)
        if arguments:
            call.held.append(arguments)
        if call.name:
            self.named = call
            if call.held:
                self._show(call, out)

    def _show(self, call: _Call, out: list[Delta]) -> None:
        if call is self.named:
            self.named = None
        self._tally.size += CALL_BYTES
        call.number, self._count = self._count, self._count + 1
        out.append(CallDelta(call.number, call.name, "".join(call.held)))
        call.held = []

    def _call_of(self, piece: CallPiece, name: str, out: list[Delta]) -> _Call:
        known = self._without_index(piece.id, name) if piece.index is None else self._by_index.get(piece.index)
        if known is None or (piece.index is not None and self._is_another(known, piece.id, name)):
            self.show_named(out)
            known = _Call(piece.id)
            self._all.append(known)
        if piece.index is not None:
            self._by_index[piece.index] = known
        known.id = known.id or piece.id
        if known.id:
            self._by_id.setdefault(known.id, known)
        self._last = known
        return known

    def _without_index(self, call_id: str | int | None, name: str) -> _Call | None:
        """The call with that id, else a new one where a name comes, else the last."""
        if call_id and (known := self._by_id.get(call_id)):
            return known
        return None if name else self._last

    def _is_another(self, known: _Call, call_id: str | int | None, name: str) -> bool:
        """Whether a piece under a known index starts a new call: a second name, with another id or without any. Before
        the arguments begin, a name without an id that comes with a later chunk is the rest of the first.
        """
        if not name or not known.name:
            return False
        if call_id:
            return call_id != known.id
        return name != known.name and not (known is self.named and known.chunk < self._chunk)


_NOTHING = Function()


def _arguments(value: object) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()
