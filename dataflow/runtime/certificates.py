"""Certificates: the cluster's authority, the master's own, and one for the nodes of each job.

The authority is made once, by ``ako token --tls``, and signs for the master alone, which renews its certificate by
itself. The nodes of a job get a certificate that is made for that job and signs itself: whoever belongs to the job
trusts it and no other. Keys are readable by their owner only.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dataflow.errors import AuthError
from dataflow.runtime.auth import AUTHORITY_FILE
from dataflow.transport.encryption import NAME, KeyPair

AUTHORITY_DAYS: Final = 3650
"""Days for which an authority signs."""

MASTER_DAYS: Final = 365
"""Days for which a master's certificate is good."""

RENEW_DAYS: Final = 30
"""A master that starts so many days before the end of its certificate makes itself another."""

JOB_DAYS: Final = 365
"""Days for which the certificate of a job is good."""

_SKEW: Final = timedelta(days=1)
_END_OF_CERTIFICATE = b"-----END CERTIFICATE-----\n"
_AUTHORITY_KEY = "tls/ca.key"
_MASTER = "tls/master.pem"
"""The master's certificate and its key: one file, since either is of no use without the other."""


def make_authority(state_dir: Path, wall_s: float) -> Path:
    """The certificate of the cluster's authority; made, with its key, if there is none.

    Args:
        state_dir: an existing directory.
        wall_s: seconds since 1970-01-01 UTC.
    """
    path = state_dir / AUTHORITY_FILE
    if not path.exists():
        path.parent.mkdir(mode=0o700, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _signed("ako authority", key.public_key(), None, key, _days(wall_s, AUTHORITY_DAYS), signs=True)
        _write(state_dir / _AUTHORITY_KEY, _key_text(key))
        _write(path, _text(certificate))
    return path


def master_pair(state_dir: Path, wall_s: float) -> KeyPair | None:
    """What the master listens with: its certificate, made or renewed if need be; None if it speaks plain text.

    Raises:
        AuthError: a file cannot be read, or the authority has come to its end.
    """
    if not (state_dir / AUTHORITY_FILE).exists():
        return None
    try:
        authority = x509.load_pem_x509_certificate((state_dir / AUTHORITY_FILE).read_bytes())
        if not _lasts(authority, wall_s, 0):
            fix = f"delete {state_dir / 'tls'}, run `ako token --tls`, and give the new ca.pem to nodes and clients"
            raise AuthError(what="the cluster's authority has expired", where=str(state_dir / AUTHORITY_FILE), fix=fix)
        return _kept(state_dir / _MASTER, wall_s) or _issued(state_dir, authority, wall_s)
    except (OSError, ValueError, TypeError) as error:
        what, fix = f"cannot use the cluster's certificates: {error}", "delete them and run `ako token --tls`"
        raise AuthError(what, where=str(state_dir / "tls"), fix=fix) from error


def job_pair(wall_s: float) -> KeyPair:
    """A key pair for the nodes of one job, good from `wall_s` on, in seconds since 1970-01-01 UTC."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _signed(NAME, key.public_key(), None, key, _days(wall_s, JOB_DAYS), signs=True)
    return KeyPair(_text(certificate), _key_text(key))


def _kept(path: Path, wall_s: float) -> KeyPair | None:
    data = path.read_bytes() if path.exists() else b""
    certificate, end, key = data.partition(_END_OF_CERTIFICATE)
    if not key or not _lasts(x509.load_pem_x509_certificate(data), wall_s, RENEW_DAYS):
        return None
    return KeyPair(certificate + end, key)


def _issued(state_dir: Path, authority: x509.Certificate, wall_s: float) -> KeyPair:
    signer = serialization.load_pem_private_key((state_dir / _AUTHORITY_KEY).read_bytes(), password=None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        what = "the key of the authority is of another kind"
        raise TypeError(what)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _signed(NAME, key.public_key(), authority, signer, _days(wall_s, MASTER_DAYS), signs=False)
    pair = KeyPair(_text(certificate), _key_text(key))
    _write(state_dir / _MASTER, pair.certificate + pair.key)
    return pair


def _signed(
    name: str,
    public: ec.EllipticCurvePublicKey,
    issuer: x509.Certificate | None,
    signer: ec.EllipticCurvePrivateKey,
    good: tuple[datetime, datetime],
    *,
    signs: bool,
) -> x509.Certificate:
    """A certificate of `name` and its `public` key, signed by `issuer`, or by itself if there is none."""
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(good[0])
        .not_valid_after(good[1])
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=signs, path_length=0 if signs else None), critical=True)
    )
    return builder.sign(signer, hashes.SHA256())


def _days(wall_s: float, days: int) -> tuple[datetime, datetime]:
    now = datetime.fromtimestamp(wall_s, UTC)
    return now - _SKEW, now + timedelta(days=days)


def _lasts(certificate: x509.Certificate, wall_s: float, days: int) -> bool:
    return certificate.not_valid_after_utc > datetime.fromtimestamp(wall_s, UTC) + timedelta(days=days)


def _text(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_text(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, data: bytes) -> None:
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    fresh.rename(path)
