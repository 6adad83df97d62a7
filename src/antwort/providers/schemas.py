"""Schemas of tools, as constrained decoding takes them. Pure."""

from __future__ import annotations

from antwort.api.wire import Plain


class Cleaning:
    def arguments(self, schema: Plain) -> Plain:
        return schema

    def value(self, schema: Plain) -> Plain:
        return schema

    def definitions(self) -> Plain:
        return {}
