"""Which call does a piece belong to? Backends leave out index or id, or give index 0 to every call. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from antwort.providers.base import CallDelta, Delta


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: Any = None


class CallPiece(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | int | None = None
    function: _Function | None = None


class _Call:
    """A call under way. It is numbered, and shown, when its name is known; until then its arguments are held."""

    __slots__ = ("held", "id", "name", "number")

    def __init__(self, call_id: str | int | None) -> None:
        self.id = call_id
        self.name = ""
        self.number = -1
        self.held = ""


class Calls:
    """Tells which call a piece belongs to. Backends may leave out index or id, or give index 0 to every call."""

    __slots__ = ("_all", "_by_index", "_count", "_last")

    def __init__(self) -> None:
        self._all: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._last: _Call | None = None
        self._count = 0

    def read(self, pieces: list[CallPiece], out: list[Delta]) -> None:
        for piece in pieces:
            function = piece.function or _Function()
            call = self._call_of(piece, function.name or "")
            self._add(call, function.name or "", _arguments(function.arguments), out)

    def read_whole(self, calls: list[CallPiece], out: list[Delta]) -> None:
        """In a whole answer every entry is a call of its own, whatever its index and id say."""
        for at, call in enumerate(calls):
            call.index = at
        self.read(calls, out)

    def end(self, out: list[Delta]) -> None:
        """A call that never got a name is shown without one, so that whoever made it hears of it."""
        for call in self._all:
            if call.number < 0 and call.held:
                self._show(call, "", out)

    def _add(self, call: _Call, name: str, arguments: str, out: list[Delta]) -> None:
        if call.number >= 0:
            if arguments:
                out.append(CallDelta(call.number, "", arguments))
            return
        call.name, call.held = name, call.held + arguments
        if name:
            self._show(call, name, out)

    def _show(self, call: _Call, name: str, out: list[Delta]) -> None:
        call.number, self._count = self._count, self._count + 1
        out.append(CallDelta(call.number, name, call.held))

    def _call_of(self, piece: CallPiece, name: str) -> _Call:
        known = self._by_id(piece.id, name) if piece.index is None else self._by_index.get(piece.index)
        if known is None or (piece.index is not None and _is_another(known, piece.id, name)):
            known = _Call(piece.id)
            self._all.append(known)
        if piece.index is not None:
            self._by_index[piece.index] = known
        known.id = known.id or piece.id
        self._last = known
        return known

    def _by_id(self, call_id: str | int | None, name: str) -> _Call | None:
        """Without an index: the call with that id, else a new one where a name comes, else the last."""
        if call_id and (known := next((call for call in self._all if call.id == call_id), None)):
            return known
        return None if name else self._last


def _is_another(known: _Call, call_id: str | int | None, name: str) -> bool:
    """Whether a piece under a known index starts a new call: a second name, with another id or without any."""
    if not name or not known.name:
        return False
    return call_id != known.id if call_id else name != known.name


def _arguments(value: object) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()
