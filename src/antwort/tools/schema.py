"""Describe a Python function to models: a JSON schema from its type hints and docstring, and arguments parsed by it.

Both come from one struct built of the function's parameters, so what the schema promises is what the function gets.
"""

from __future__ import annotations

import inspect
import keyword
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from antwort.tools.base import ToolContext
from antwort.tools.docstring import read_docstring

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """The interface of a function for models."""

    description: str | None
    parameters: dict[str, Any]
    """The JSON schema of the arguments, an object that takes nothing else."""
    context_parameter: str | None
    """The parameter that gets the call's context. The schema leaves it out."""
    struct: type[msgspec.Struct]
    """Has a field for each argument."""
    needs_text: bool
    """Whether an argument is a `Decimal` or `Raw`: a decoded value does not keep its digits, or its spelling."""

    def read(self, arguments: dict[str, object], text: str) -> dict[str, object]:
        """Convert arguments, decoded from `text`, into keyword arguments of the function's own types; those not given
        are absent.

        Raises `msgspec.ValidationError`, whose message names the path of what does not fit.
        """
        try:
            if self.needs_text:
                given = msgspec.json.decode(text, type=self.struct)
            else:
                given = msgspec.convert(arguments, self.struct, str_keys=True)
        except msgspec.ValidationError:
            # To a JSON schema 3.0 is an integer, here it is not.
            given = msgspec.convert(_whole(arguments), self.struct, str_keys=True)
        values = ((name, getattr(given, name)) for name in given.__struct_fields__)
        return {name: value for name, value in values if value is not UNSET}


def _whole(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {key: _whole(each) for key, each in value.items()}
        case list():
            return [_whole(each) for each in value]
        case _:
            return value


def read_signature(function: Callable[..., object]) -> Signature:
    """Raises `TypeError` naming the function and the parameter that no schema can be made for."""
    label = getattr(function, "__qualname__", repr(function))
    hints = _hints(function, label)
    named = {name: _checked(each, hints, label) for name, each in inspect.signature(function).parameters.items()}
    contexts = [name for name in named if _is_context(hints[name])]
    if len(contexts) > 1:
        raise TypeError(f"{label}: only one parameter can take the ToolContext, not {' and '.join(contexts)}")
    offered = {name: each for name, each in named.items() if name not in contexts}
    struct = _struct(label, {name: (hints[name], each) for name, each in offered.items()})
    documented = read_docstring(function)
    parameters = _schema(struct, offered, {**documented.parameters, **_notes(hints)})
    return Signature(
        description=documented.summary,
        parameters=parameters,
        context_parameter=contexts[0] if contexts else None,
        struct=struct,
        needs_text=_holds_text(struct),
    )


def _hints(function: Callable[..., object], label: str) -> dict[str, Any]:
    if not inspect.isroutine(function):
        raise TypeError(f"{label} is not a function")
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(f"{label}: a type hint cannot be resolved: {error}") from error


def _is_context(hint: Any) -> bool:
    """Return whether a hint is `ToolContext`, also annotated or optional, as in functions with other callers."""
    if typing.get_origin(hint) is Annotated:
        return _is_context(hint.__origin__)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [_is_context(each) for each in typing.get_args(hint) if each is not types.NoneType] == [True]
    return hint is ToolContext


def _checked(parameter: inspect.Parameter, hints: dict[str, Any], label: str) -> inspect.Parameter:
    if parameter.kind not in _BY_NAME:
        kind = parameter.kind.description
        raise TypeError(f"{label}: parameter {parameter.name!r} is {kind}, and a tool's arguments are given by name")
    if parameter.name not in hints:
        raise TypeError(f"{label}: parameter {parameter.name!r} has no type hint")
    return parameter


def _struct(label: str, offered: dict[str, tuple[Any, inspect.Parameter]]) -> type[msgspec.Struct]:
    """Return the type that arguments are parsed into. A parameter that is left out gets the function's own default."""
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for name, (hint, parameter) in offered.items():
        try:
            msgspec.json.schema(hint)
        except Exception as error:
            raise TypeError(f"{label}: parameter {name!r} of type {hint!r} has no JSON schema: {error}") from error
        is_required = parameter.default is parameter.empty
        fields.append((name, hint) if is_required else (name, hint | UnsetType, UNSET))
    return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True, rename=_called)


def _holds_text(struct: type[msgspec.Struct]) -> bool:
    """Return whether a `Decimal` or `Raw` is anywhere in a type."""
    import msgspec.inspect

    seen, found = set[int](), [msgspec.inspect.type_info(struct)]
    while found:
        each: object = found.pop()
        if isinstance(each, msgspec.inspect.DecimalType | msgspec.inspect.RawType):
            return True
        if isinstance(each, list | tuple):
            found += each
        elif isinstance(each, msgspec.inspect.Type | msgspec.inspect.Field) and id(each) not in seen:
            seen.add(id(each))
            found += [getattr(each, name) for name in each.__struct_fields__]
    return False


def _called(name: str) -> str:
    """Return the name of a parameter for models: `from_` is `from`, which Python does not allow."""
    word = name.removesuffix("_")
    return word if keyword.iskeyword(word) else name


def _schema(
    struct: type[msgspec.Struct], offered: dict[str, inspect.Parameter], notes: dict[str, str]
) -> dict[str, Any]:
    (reference,), definitions = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    schema = definitions.pop(reference["$ref"].removeprefix("#/$defs/"))
    del schema["title"]
    for name, parameter in offered.items():
        described = schema["properties"][_called(name)]
        if name in notes:
            described.setdefault("description", notes[name])
        if (default := _plain(parameter.default)) is not UNSET:
            described["default"] = default
    return {**schema, "$defs": definitions} if definitions else schema


def _plain(default: object) -> object:
    """Return a default as a JSON value; UNSET where there is none, or JSON has no such value."""
    try:
        return UNSET if default is inspect.Parameter.empty else msgspec.json.decode(msgspec.json.encode(default))
    except (TypeError, ValueError):
        return UNSET


def _notes(hints: dict[str, Any]) -> dict[str, str]:
    """Return the descriptions in `Annotated[T, "description"]`."""
    metadata = ((name, getattr(hint, "__metadata__", ())) for name, hint in hints.items())
    return {name: note for name, notes in metadata for note in notes if isinstance(note, str)}
