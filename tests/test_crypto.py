"""What is sealed opens for whom it was sealed, for what it was sealed, and as long as the key is known."""

from __future__ import annotations

import gc
import subprocess
import sys
import zlib
from base64 import urlsafe_b64decode
from string import ascii_letters, digits

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.crypto import LARGEST, CannotOpen, Vault, stretched
from plan_kit import STEADY

OLD, NEW = "an old secret of some length", "a new secret of some length"
SAID = b"The user wants a haiku. Five, seven, five. " * 20


def sealed(data: bytes = SAID, *, by: Vault | None = None) -> tuple[Vault, str]:
    used = by or Vault([OLD])
    return used, used.seal("reasoning", "acme", data)


def refused(used: Vault, token: str, *, purpose: str = "reasoning", tenant: str = "acme") -> str:
    with pytest.raises(CannotOpen) as caught:
        used.open(purpose, tenant, token)
    assert caught.value.__cause__ is None
    return str(caught.value)


@STEADY
@given(st.binary(max_size=2000), st.text(), st.text())
def test_what_was_sealed_opens_again(data: bytes, purpose: str, tenant: str) -> None:
    used = Vault([OLD])
    assert used.open(purpose, tenant, used.seal(purpose, tenant, data)) == data


def test_a_sealed_text_can_stand_in_an_address_and_tells_its_version() -> None:
    _, token = sealed()
    assert token.startswith("av1.")
    assert set(token) <= {*ascii_letters, *digits, "_", "-", "."}


def test_the_same_text_is_sealed_anew_each_time() -> None:
    used, token = sealed()
    assert token != sealed(by=used)[1]


def test_nothing_of_what_was_sealed_shows() -> None:
    _, token = sealed(b"x" * 100_000)
    assert len(token) < 1000, "what repeats itself is packed before it is sealed"
    raw = urlsafe_b64decode(token.partition(".")[2] + "==")
    assert raw.find(b"xxxx") == -1


def test_another_process_with_the_same_secret_opens_it() -> None:
    _, token = sealed(b"so it was")
    program = f"from antwort.crypto import Vault; print(Vault([{OLD!r}]).open('reasoning', 'acme', {token!r}).decode())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "so it was"


def test_all_keys_open_and_the_first_seals() -> None:
    _, old = sealed(by=Vault([OLD]))
    both = Vault([NEW, OLD])
    assert both.open("reasoning", "acme", old) == SAID
    _, new = sealed(by=both)
    assert Vault([NEW]).open("reasoning", "acme", new) == SAID
    refused(Vault([OLD]), new)


def test_whatever_is_wrong_one_thing_is_said() -> None:
    used, token = sealed()
    said = {
        refused(used, token, purpose="compaction"),
        refused(used, token, tenant="other"),
        refused(used, token, purpose="reasonin", tenant="gacme"),
        refused(Vault([NEW]), token),
        refused(Vault.ephemeral(), token),
        refused(used, token + "A"),
        refused(used, token[:-1]),
        refused(used, token + "="),
        refused(used, token + "\n"),
        refused(used, token.removeprefix("av1.")),
        refused(used, token.replace("av1.", "av2.", 1)),
        refused(used, "av1."),
        refused(used, ""),
        refused(used, "gAAAAABl-nothing-of-ours"),
        refused(used, "av1.ä"),
    }
    assert said == {"The sealed text cannot be opened."}


@pytest.mark.parametrize("data", [b"", b"short", SAID])
def test_a_text_that_was_changed_anywhere_does_not_open(data: bytes) -> None:
    used, token = sealed(data)
    for at in range(len(token)):
        for other in ("A", "B"):
            if token[at] != other:
                refused(used, token[:at] + other + token[at + 1 :])


def test_two_keys_that_go_by_the_same_id_both_open() -> None:
    one, other = "secret number 00156791", "secret number 00175888"
    _, token = sealed(by=Vault([one]))
    assert Vault([other]).is_newest(token), "their ids are the same by chance"
    assert Vault([other, one]).open("reasoning", "acme", token) == SAID


def test_what_would_inflate_beyond_all_measure_does_not_open(monkeypatch: pytest.MonkeyPatch) -> None:
    too_large = bytes(LARGEST + 1)
    bomb = zlib.compress(too_large)
    with monkeypatch.context() as forged:
        forged.setattr(zlib, "compress", lambda _: bomb)
        used, token = sealed(b"x" * 2 * len(bomb))
    refused(used, token)
    assert len(used.seal("r", "t", too_large)) > LARGEST, "too large to pack: sealed as it is"


def test_a_secret_is_stretched_as_the_standard_says() -> None:
    """RFC 5869, test case 3, as far as one block goes."""
    assert stretched(b"\x0b" * 22, b"").hex() == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"


def test_a_secret_that_can_be_guessed_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="at least 16 characters") as caught:
        Vault([NEW, "0123456789abcde"])
    assert "0123" not in str(caught.value)
    with pytest.raises(ValueError, match="needs a secret"):
        Vault([])


def test_the_secret_is_not_kept() -> None:
    held: list[object] = [vault := Vault([OLD])]
    for each in held:  # and what it holds itself, down to the last text
        held += [of for of in gc.get_referents(each) if not isinstance(of, type)]
    assert any(isinstance(each, bytes) for each in held)
    assert OLD not in held
    assert OLD.encode() not in held
    assert OLD not in repr(vault)


def test_making_a_vault_imports_nothing_heavy() -> None:
    program = "import sys; from antwort.crypto import Vault; Vault.ephemeral(); print('cryptography' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_vault_knows_what_was_sealed_with_an_older_key() -> None:
    old, new = "an old secret of some length", "a new secret of some length"
    token = Vault([old]).seal("p", "t", b"x")
    assert Vault([old, new]).is_newest(token)
    assert not Vault([new, old]).is_newest(token)
