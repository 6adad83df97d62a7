"""The names of the storage contract."""

from __future__ import annotations

import pytest

from antwort.storage import base


@pytest.mark.parametrize(("old", "new"), [("Claim", base.KeyClaim), ("Claimed", base.KeyHolder)])
def test_a_type_is_found_by_its_former_name_with_a_warning(old: str, new: type) -> None:
    with pytest.warns(DeprecationWarning, match=new.__name__):
        assert getattr(base, old) is new


def test_the_module_has_no_other_names() -> None:
    with pytest.raises(AttributeError, match="KeyClaims"):
        base.KeyClaims  # noqa: B018
