from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from dataflow.errors import AuthError
from dataflow.runtime.certificates import job_pair, make_authority, master_pair

DAY_S = 86400.0
NOW_S = 1_800_000_000.0


def parsed(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def test_state_directory_without_authority_has_no_certificate(tmp_path: Path) -> None:
    assert master_pair(tmp_path, NOW_S) is None


def test_authority_is_made_once_and_everything_is_for_its_owner_only(tmp_path: Path) -> None:
    path = make_authority(tmp_path, NOW_S)
    made = path.read_bytes()
    assert make_authority(tmp_path, NOW_S + DAY_S).read_bytes() == made
    master_pair(tmp_path, NOW_S)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "tls").iterdir()}
    assert modes == dict.fromkeys(("ca.pem", "ca.key", "master.pem"), 0o600)
    assert stat.S_IMODE((tmp_path / "tls").stat().st_mode) == 0o700


def test_master_keeps_its_certificate_until_a_month_before_its_end(tmp_path: Path) -> None:
    authority = parsed(make_authority(tmp_path, NOW_S).read_bytes())
    pair = master_pair(tmp_path, NOW_S)
    assert pair is not None
    first = parsed(pair.certificate)
    first.verify_directly_issued_by(authority)
    assert first.not_valid_after_utc == datetime.fromtimestamp(NOW_S, UTC) + timedelta(days=365)
    assert master_pair(tmp_path, NOW_S + 334 * DAY_S) == pair
    renewed = master_pair(tmp_path, NOW_S + 336 * DAY_S)
    assert renewed is not None
    parsed(renewed.certificate).verify_directly_issued_by(authority)
    assert parsed(renewed.certificate).not_valid_after_utc > first.not_valid_after_utc
    assert not parsed(renewed.certificate).extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_key_of_the_master_is_that_of_its_certificate_whatever_was_left_behind(tmp_path: Path) -> None:
    make_authority(tmp_path, NOW_S)
    path = tmp_path / "tls" / "master.pem"
    for left in (b"", job_pair(NOW_S).certificate):
        path.write_bytes(left)
        pair = master_pair(tmp_path, NOW_S)
        assert pair is not None
        key = serialization.load_pem_private_key(pair.key, password=None)
        assert key.public_key() == parsed(pair.certificate).public_key()
        assert master_pair(tmp_path, NOW_S) == pair


def test_authority_that_has_expired_or_lost_its_key_is_refused(tmp_path: Path) -> None:
    make_authority(tmp_path, NOW_S)
    with pytest.raises(AuthError, match="has expired"):
        master_pair(tmp_path, NOW_S + 3651 * DAY_S)
    (tmp_path / "tls" / "ca.key").unlink()
    with pytest.raises(AuthError, match="cannot use the cluster's certificates"):
        master_pair(tmp_path, NOW_S)


def test_every_job_has_a_certificate_of_its_own() -> None:
    one, two = job_pair(NOW_S), job_pair(NOW_S)
    assert one.certificate != two.certificate
    assert one.key not in (two.key, one.certificate)
