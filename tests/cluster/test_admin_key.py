"""Admin keys in files and in the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from woodshed.cluster.service import ADMIN_VARIABLE, read_admin_key


@pytest.mark.parametrize(
    "data", (b"# of the boxes\n0123456789abcdef", b"0123456789abcdef\xff", bytes(32), "schlüssel-0123456789".encode())
)
def test_a_key_that_no_header_can_hold_is_refused(tmp_path: Path, data: bytes) -> None:
    """Else a client's error message would show the key."""
    (tmp_path / "key").write_bytes(data)
    with pytest.raises(ValueError, match="key: not an admin key: write one line") as refused:
        read_admin_key(tmp_path / "key")
    assert "0123456789" not in str(refused.value)


def test_a_key_is_read_without_the_end_of_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("0123456789abcdef\n")
    assert read_admin_key(tmp_path / "key") == "0123456789abcdef"
    monkeypatch.setenv(ADMIN_VARIABLE, " \n")
    with pytest.raises(ValueError, match="no admin key"):
        read_admin_key(None)
    monkeypatch.setenv(ADMIN_VARIABLE, "two words of a key")
    with pytest.raises(ValueError, match=f"{ADMIN_VARIABLE}: not an admin key"):
        read_admin_key(None)
