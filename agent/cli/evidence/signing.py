"""Signatures of statements: Ed25519 (RFC 8032), computed by the library that TLS also uses.

    key        PEM, PKCS #8, mode 0600: its holder can sign any statement
    key.pub    PEM: its holder can verify statements, but cannot sign

The signature is computed from the canonical text of the statement: JSON in ASCII with sorted names
and without spaces. Therefore, the signature remains valid if the file is reformatted.
"""

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from suture.errors import Code, RefusedError

KEY_MODE: Final = 0o600
PUBLIC_MODE: Final = 0o644
KEY_BYTES_MAX: Final = 16_384
PUBLIC_SUFFIX: Final = ".pub"


def make_key(path: Path) -> Path:
    """Create a private key with mode 0600, and its public key in the same directory.

    Return the path of the public key. Raise RefusedError(KEY_EXISTS) if one of the two files
    exists; it is not overwritten. Raise OSError if a file cannot be written.
    """
    public_path = path.with_name(path.name + PUBLIC_SUFFIX)
    for one in (path, public_path):
        if os.path.lexists(one):
            raise RefusedError(
                Code.KEY_EXISTS, f"cannot create key {one}: the file exists", hint="name a new file"
            )
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _write_new(path, private, KEY_MODE)
    try:
        _write_new(public_path, _pem(key.public_key()), PUBLIC_MODE)
    except BaseException:
        path.unlink()
        raise
    return public_path


def _write_new(path: Path, content: bytes, mode: int) -> None:
    """Create a file with `mode`, write `content` and sync the file. If this fails, remove the
    file."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def read_key(path: Path) -> Ed25519PrivateKey:
    """Read a private key from a file.

    Raise RefusedError(INVALID_CONFIG) if the key is invalid, or if other users may read the file.
    """
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        content = file.read(KEY_BYTES_MAX)
    if mode & 0o077:
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"cannot use key {path}: other users can access it (mode {mode:04o})",
            hint="run chmod 600 on it; if another user may have read it, create a new key",
        )
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _no_key(path, "a private key", str(error)) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _no_key(path, "a private key", "it is of another kind")
    return key


def read_public_key(path: Path) -> Ed25519PublicKey:
    """Read a public key from a file. Raise RefusedError(INVALID_CONFIG) if the key is invalid."""
    with path.open("rb") as file:
        content = file.read(KEY_BYTES_MAX)
    try:
        key = serialization.load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _no_key(path, "a public key", str(error)) from error
    if not isinstance(key, Ed25519PublicKey):
        raise _no_key(path, "a public key", "it is of another kind")
    return key


def _no_key(path: Path, what: str, why: str) -> RefusedError:
    return RefusedError(
        Code.INVALID_CONFIG,
        f"cannot read {path} as {what} of statements: {why[:200]}",
        hint="suture attest --make-key FILE creates FILE and FILE.pub",
    )


def canonical(statement: Any) -> bytes:
    """Return the canonical text of a statement, from which the signature is computed."""
    text = json.dumps(statement, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def sign(key: Ed25519PrivateKey, statement: Any) -> str:
    """Return the signature of a statement, in hex."""
    return key.sign(canonical(statement)).hex()


def verify_signature(key: Ed25519PublicKey, statement: Any, signature: str) -> bool:
    """Return whether `signature` is the signature of the statement by the holder of `key`."""
    try:
        key.verify(bytes.fromhex(signature), canonical(statement))
    except (InvalidSignature, ValueError):
        return False
    return True


def fingerprint(key: Ed25519PublicKey) -> str:
    """Return the SHA-256 hash of a public key in hex. People can compare keys by this hash."""
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()


def _pem(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
