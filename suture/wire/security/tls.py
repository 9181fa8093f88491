"""Mutual TLS: the certificate files of a process, which are loaded again when they change.

    certificate + key    our identity, for callers and callees
    ca                   authorities whose certificates are trusted

Each handshake and each call uses the current files, so a renewed certificate or a new authority
needs no restart. If the files are invalid, the previous ones remain in use, and the fault is logged
once. Examples are a renewal that is not complete yet, or a key that other users may read. Rejected
files are read again until they are valid, because for instance a certificate may become valid
later.

Without certificates, a process uses plaintext: always on loopback, and on other addresses only if
that is allowed.
"""

import os
import ssl
import stat
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from suture.errors import Code, RefusedError
from suture.runtime.loopback import is_loopback

PEM_BYTES_MAX: Final = 1024**2
LOOK_INTERVAL_S: Final = 1.0  # interval at which calls check the files for changes
KEY_MODES_REFUSED: Final = stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO
FILE_MODES_REFUSED: Final = stat.S_IWGRP | stat.S_IWOTH


Signature = tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The PEM files of a process: its certificate with the issuers, its key, and the trusted
    authorities."""

    certificate: Path
    key: Path
    ca: Path

    def signature(self) -> Signature:
        """Return a value that changes if a file changes. Raise RefusedError if a file is
        missing."""
        found = []
        for path in (self.certificate, self.key, self.ca):
            try:
                facts = path.stat()
            except OSError as error:
                raise _refused(f"cannot read {path}: {error.strerror}") from error
            found.append((facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """The content of the PEM files at one instant. The key belongs to the certificate."""

    certificate: bytes
    key: bytes
    ca: bytes

    def __repr__(self) -> str:
        """Return a text without the content, because a key must not be logged."""
        return "Material(...)"


def read_files(files: TlsFiles) -> TlsMaterial:
    """Read and validate the PEM files. Raise RefusedError(INVALID_CONFIG) if one is invalid. The
    message names the file and its fault."""
    material = TlsMaterial(
        certificate=_content(files.certificate, FILE_MODES_REFUSED),
        key=_content(files.key, KEY_MODES_REFUSED),
        ca=_content(files.ca, FILE_MODES_REFUSED),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=material.ca.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise _refused(f"{files.ca} holds no certificates in PEM") from error
    try:
        context.load_cert_chain(files.certificate, files.key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise _refused(f"{files.key} is not the key of {files.certificate}") from error
        raise _refused(
            f"{files.certificate} and {files.key}: not a certificate and an unencrypted key in PEM"
        ) from error
    except OSError as error:
        raise _refused(f"{files.certificate}, {files.key}: {error.strerror}") from error
    return material


def _content(path: Path, modes_refused: int) -> bytes:
    """Return the content of a PEM file.

    Raise RefusedError if the file cannot be read, belongs to another user, or has a mode in
    `modes_refused`, with which other users could change the file or read a key.
    """
    try:
        with path.open("rb") as file:
            facts = os.fstat(file.fileno())
            content = file.read(PEM_BYTES_MAX + 1)
    except OSError as error:
        raise _refused(f"cannot read {path}: {error.strerror}") from error
    if not stat.S_ISREG(facts.st_mode) or len(content) > PEM_BYTES_MAX:
        raise _refused(f"{path} is no PEM file")
    if facts.st_mode & modes_refused:
        others = "write" if modes_refused == FILE_MODES_REFUSED else "read"
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"cannot use {path}: its mode {stat.S_IMODE(facts.st_mode):04o} lets other users "
            f"{others} it",
            hint=f"chmod {'go-w' if others == 'write' else 'u=rw,g=,o='} {path}",
        )
    if facts.st_uid not in {0, os.geteuid()}:
        raise _refused(
            f"cannot use {path}: its owner is user {facts.st_uid}, expected root or "
            "the user of suture-scm"
        )
    return content


def _refused(message: str) -> RefusedError:
    return RefusedError(
        Code.INVALID_CONFIG, message, hint="suture tls show FILE says what a file holds"
    )


@dataclass(eq=False)
class Certificates:
    """The certificates that a process currently uses. Thread-safe.

    The constructor reads the files. `inspect` is called to check the content additionally. Raise
    RefusedError if the files are invalid, or if `inspect` raises it.
    """

    files: TlsFiles
    _: KW_ONLY
    inspect: Callable[[TlsMaterial], None] = lambda _: None
    monotonic_s: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._signature = self.files.signature()
        self._material = self._read()
        self._looked_at_s = self.monotonic_s()
        self._told = ""  # the fault of the files that was logged last

    def _read(self) -> TlsMaterial:
        material = read_files(self.files)
        self.inspect(material)
        return material

    @property
    def material(self) -> TlsMaterial:
        """The current certificates. If changed files are invalid, the fault is logged, and the
        previous certificates remain in use."""
        now_s = self.monotonic_s()
        if now_s - self._looked_at_s >= LOOK_INTERVAL_S:
            self.reload_if_changed()
        return self._material

    def reload_if_changed(self, *, is_asked: bool = False) -> None:
        """Load changed files again. If they are invalid, log the fault and use the previous ones.

        The same fault is logged only once, unless `is_asked` is True.
        """
        self._looked_at_s = self.monotonic_s()
        try:
            self.reload()
            self._told = ""
        except RefusedError as error:
            if is_asked or str(error) != self._told:
                _log().warning("certificate_reload_failed", error=str(error), hint=error.hint)
            self._told = str(error)

    def reload(self) -> bool:
        """Load changed files again. Return True if the certificates have changed.

        Raise RefusedError if the files are invalid; the previous certificates then remain in use.
        Rejected files are read again at each call, because the cause may disappear without a change
        of the files. Examples are a wrong clock or a failed read.
        """
        signature = self.files.signature()
        if signature == self._signature:
            return False
        material = self._read()
        self._signature = signature  # as before the read, to detect later changes
        if material == self._material:
            return False
        self._material = material
        _log().info("certificate_reloaded", certificate=str(self.files.certificate))
        return True


@dataclass(frozen=True, slots=True)
class Security:
    """The certificates of a process, and whether it may use plaintext. If `asks_certificate` is
    False, a server accepts callers without a certificate."""

    certificates: Certificates | None = None
    allow_plaintext: bool = False
    asks_certificate: bool = True

    def server_credentials(self, address: str) -> grpc.ServerCredentials | None:
        """Return the TLS credentials of a server on `address`; None means plaintext. Raise
        RefusedError if plaintext is not allowed on `address`."""
        if self.certificates is None:
            self.check_plaintext(address, "listen on")
            return None
        source = _Configuration(self.certificates)
        return grpc.dynamic_ssl_server_credentials(
            source.first(),
            source.changed,  # type: ignore[arg-type]  # None: no change, as grpc documents it
            require_client_authentication=self.asks_certificate,
        )

    def reload(self) -> None:
        """Load the certificates again now. If they are invalid, log the fault and use the previous
        ones."""
        if self.certificates is not None:
            self.certificates.reload_if_changed(is_asked=True)

    def check_plaintext(self, address: str, what: str) -> None:
        """Raise RefusedError if `address` is on another machine and plaintext is not allowed.
        `what` is the action for the message ("listen on" or "call")."""
        if not self.allow_plaintext and not is_loopback(address):
            raise RefusedError(
                Code.INVALID_CONFIG,
                f"refusing to {what} {address} without TLS: the network could read and change "
                "all data",
                hint="set certificate, key and ca (suture tls init makes them), "
                "or allow_plaintext on a network that only the cluster can reach",
            )


class _Configuration:
    """Returns the certificates of a server to gRPC, which calls `changed` before each handshake."""

    def __init__(self, certificates: Certificates) -> None:
        self._certificates = certificates
        self._shown = certificates.material

    def first(self) -> grpc.ServerCertificateConfiguration:
        """Return the certificates at the start of the server."""
        return self._of(self._shown)

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the new certificates if they have changed since the last call, else None."""
        material = self._certificates.material
        if material is self._shown:
            return None
        self._shown = material
        return self._of(material)

    @staticmethod
    def _of(material: TlsMaterial) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration(
            [(material.key, material.certificate)], root_certificates=material.ca
        )


LOOPBACK_ONLY: Final = Security()


def files_of(*, certificate: Path | None, key: Path | None, ca: Path | None) -> TlsFiles | None:
    """Return the PEM files of a process; None if none is given. Raise RefusedError if only some are
    given."""
    if certificate is not None and key is not None and ca is not None:
        return TlsFiles(certificate, key, ca)
    named = {"certificate": certificate, "key": key, "ca": ca}
    missing = [name for name, path in named.items() if path is None]
    if len(missing) < len(named):
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"tls {' and '.join(missing)} must be set, too",
            hint="set certificate, key and ca together",
        )
    return None


def load_security(
    files: TlsFiles | None,
    *,
    allow_plaintext: bool = False,
    inspect: Callable[[TlsMaterial], None] = lambda _: None,
) -> Security:
    """Return the TLS settings of a process, with the certificates in `files`; plaintext if `files`
    is None. Raise RefusedError if the files are invalid."""
    certificates = None if files is None else Certificates(files, inspect=inspect)
    return Security(certificates, allow_plaintext)


def channel_credentials(material: TlsMaterial) -> grpc.ChannelCredentials:
    """Return gRPC's credentials of a client, with the trusted authorities."""
    return grpc.ssl_channel_credentials(material.ca, material.key, material.certificate)


def _log() -> Any:  # structlog has no better type
    import structlog  # a command with a single call logs nothing, and starts faster

    return structlog.get_logger("suture.tls")
