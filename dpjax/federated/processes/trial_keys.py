"""Keys and certificates of all parties, made on one machine for a trial.

Between real parties an authority that all trust signs each party's own key, which never leaves it.

Needs the extra ``federated``.
"""

import datetime
import os
from pathlib import Path

from dpjax._checks import check_count
from dpjax._extras import requires_extra

with requires_extra("federated"):
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY = "authority.pem"


def make_trial_keys(folder: Path, *, num_holders: int, num_nodes: int, num_days: int = 30) -> None:
    """Writes keys and certificates of an authority's parties; the authority's key is not kept.

    The folder gets ``authority.pem`` and, for each party, ``<name>.pem`` and ``<name>.key``; keys
    that are there are not overwritten (FileExistsError).
    """
    check_count("num_holders", num_holders)
    check_count("num_nodes", num_nodes)
    check_count("num_days", num_days)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _certificate("authority", authority_key, authority_key, None, num_days)
    _write(folder / AUTHORITY, authority.public_bytes(serialization.Encoding.PEM), 0o644)
    holders = [f"holder-{index}" for index in range(num_holders)]
    nodes = [f"node-{index}" for index in range(num_nodes)]
    for name in (*holders, *nodes, "analyst"):
        key = ec.generate_private_key(ec.SECP256R1())
        purpose = (
            ExtendedKeyUsageOID.SERVER_AUTH if name in nodes else ExtendedKeyUsageOID.CLIENT_AUTH
        )
        certificate = _certificate(name, key, authority_key, purpose, num_days)
        _write(folder / f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM), 0o644)
        secret = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        _write(folder / f"{name}.key", secret, 0o600)


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    authority_key: ec.EllipticCurvePrivateKey,
    purpose: x509.ObjectIdentifier | None,
    num_days: int,
) -> x509.Certificate:
    """Returns a certificate for ``purpose``, or the authority's own where that is ``None``."""
    now = datetime.datetime.now(datetime.UTC)
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(authority)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=num_days))
        .add_extension(x509.BasicConstraints(ca=purpose is None, path_length=None), critical=True)
    )
    if purpose is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=True)
        names = x509.SubjectAlternativeName([x509.DNSName(name)])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(authority_key, hashes.SHA256())


def _write(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
