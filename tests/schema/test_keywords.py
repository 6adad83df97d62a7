"""Single keywords of a JSON Schema."""

from __future__ import annotations

import pytest

from antwort.schema.keywords import plain_pattern


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (r"^\d{3}-\w+$", "^[0-9]{3}-[A-Za-z0-9_]+$"),
        (r"^[\d.]+\.[\w-]*$", r"^[0-9.]+\.[A-Za-z0-9_-]*$"),
        ("^(?:on|off)$", "^(?:on|off)$"),
        ("^/api/(v1|v2)/?$", "^/api/(v1|v2)/?$"),
        *(
            (pattern, None)
            for pattern in ("abc", "^abc", "abc$", "^$", "^a|b$", "^(a$", "^a)$", "^*$", "^a**$", "^a+?$")
        ),
        *((pattern, None) for pattern in ("^.$", '^"$', r"^\\$", "^[^a]$", r"^\s$", r"^\bx$", "^(?=a)b$", "^[z-a]$")),
        *((pattern, None) for pattern in ("^a{2000}$", "^é$", f"^{'a' * 300}$", "^a{3,2}$")),
    ],
)
def test_a_pattern_is_kept_where_every_decoder_reads_it_the_same(given: str, plain: str | None) -> None:
    assert plain_pattern(given) == plain
