"""Files of tokens."""

from pathlib import Path

import pytest

from inlay.core.errors import ConfigError
from inlay.store.tenants import Tenant, read_tenants, read_token


def private(file: Path, body: bytes) -> Path:
    file.write_bytes(body)
    file.chmod(0o600)
    return file


def test_each_tenant_has_the_token_of_its_file(tmp_path: Path) -> None:
    private(tmp_path / "a.token", b"a" * 16)
    private(tmp_path / "b.token", b"b" * 64)
    file = private(tmp_path / "tenants.toml", b'team-a = "a.token"\nteam-b = "b.token"\n')
    assert read_tenants(file) == (Tenant("team-a", b"a" * 16), Tenant("team-b", b"b" * 64))
    assert "aaaa" not in repr(read_tenants(file))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "names no tenant"),
        (b"team = 7", "'team' = 7"),
        (b'"a b" = "x"', "'a b'"),
        (b"team", "is no TOML"),
        (b'team = "gone.token"', "gone.token cannot be read"),
    ],
)
def test_what_is_no_list_of_tenants_is_said(tmp_path: Path, body: bytes, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_tenants(private(tmp_path / "tenants.toml", body))


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    private(tmp_path / "a.token", b"a" * 16)
    file = private(tmp_path / "tenants.toml", b'\xef\xbb\xbfteam = "a.token"\r\n')
    assert [tenant.name for tenant in read_tenants(file)] == ["team"]


def test_tokens_have_a_length_and_are_private(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="15 bytes: a token has 16 to 64"):
        read_token(private(tmp_path / "short", b"x" * 15))
    open_to_all = private(tmp_path / "open", b"x" * 16)
    open_to_all.chmod(0o644)
    with pytest.raises(ConfigError, match="read by others: chmod 600"):
        read_token(open_to_all)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_token(tmp_path / "gone")
