"""Mutual TLS: the certificate files of one process, reloaded when they change.

    certificate + key    our identity, for callers and callees
    ca                   authorities whose certificates are trusted

Each handshake and each call uses the present files, so a renewed certificate or a new authority
needs no restart. If the files are inconsistent, the former ones remain in use and the fault is
logged once. Examples are a half-written renewal, or a key that other users may read. Rejected files
are read again until they are valid, because for instance a certificate may become valid later.

Without certificates a process uses plaintext: always on loopback, and on other addresses only if
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
    """The PEM files of one process: its certificate with its issuers, its key, and its trusted
    authorities."""

    certificate: Path
    key: Path
    ca: Path

    def signature(self) -> Signature:
        """Return a value that changes when a file does. Raise RefusedError if a file is missing."""
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
    """Contents of the files at one time. The key is known to belong to the certificate."""

    certificate: bytes
    key: bytes
    ca: bytes

    def __repr__(self) -> str:
        """Return a text without contents, because a key must not be logged."""
        return "Material(...)"


def read_files(files: TlsFiles) -> TlsMaterial:
    """Read and check the files. Raise RefusedError(INVALID_CONFIG) if one is invalid; the error
    names the file and its fault."""
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
    """Return the content of a PEM file. Raise RefusedError if the file cannot be read, has a mode
    in `modes_refused` (others may change it, or may read a key), or belongs to another user."""
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
    """The certificates that a process uses now. Thread-safe.

    The constructor reads the files and raises RefusedError if they are invalid. `inspect` checks
    the contents, too, and may raise RefusedError for other reasons.
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
        """The certificates to use now. If changed files are invalid, the fault is logged and the
        former certificates remain in use."""
        now_s = self.monotonic_s()
        if now_s - self._looked_at_s >= LOOK_INTERVAL_S:
            self.reload_if_changed()
        return self._material

    def reload_if_changed(self, *, is_asked: bool = False) -> None:
        """Reload changed files. If they are invalid, log the fault and keep the former ones. The
        same fault is logged once, or each time if `is_asked`."""
        self._looked_at_s = self.monotonic_s()
        try:
            self.reload()
            self._told = ""
        except RefusedError as error:
            if is_asked or str(error) != self._told:
                _log().warning("certificate_reload_failed", error=str(error), hint=error.hint)
            self._told = str(error)

    def reload(self) -> bool:
        """Reload changed files; return whether they changed. Raise RefusedError if they are
        invalid; the former ones then remain in use.

        Rejected files are read again each time. The cause may disappear without a change of the
        files, for instance a clock that was behind or a failed read.
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
    """Credentials of a process, and whether it may use plaintext. A server accepts callers
    without a certificate unless `asks_certificate` is True."""

    certificates: Certificates | None = None
    allow_plaintext: bool = False
    asks_certificate: bool = True

    def server_credentials(self, address: str) -> grpc.ServerCredentials | None:
        """Return the TLS credentials of a server on `address`; None for plaintext.

        Raise RefusedError if plaintext is not allowed on `address`.
        """
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
        """Reload the certificates now. If they are invalid, log the fault and keep the former
        ones."""
        if self.certificates is not None:
            self.certificates.reload_if_changed(is_asked=True)

    def check_plaintext(self, address: str, what: str) -> None:
        """Raise RefusedError if plaintext is not allowed for an address of another machine. `what`
        is the action for the message (listen on, call)."""
        if not self.allow_plaintext and not is_loopback(address):
            raise RefusedError(
                Code.INVALID_CONFIG,
                f"refusing to {what} {address} without TLS: the network could read and change "
                "all data",
                hint="set certificate, key and ca (suture tls init makes them), "
                "or allow_plaintext on a network that only the cluster can reach",
            )


class _Configuration:
    """Callback that returns a server's certificates. gRPC calls it before each handshake."""

    def __init__(self, certificates: Certificates) -> None:
        self._certificates = certificates
        self._shown = certificates.material

    def first(self) -> grpc.ServerCertificateConfiguration:
        """Return the configuration at the start."""
        return self._of(self._shown)

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return a new configuration if the certificates have changed; None otherwise."""
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
    """Return the files of a process; None if none is named. Raise RefusedError if only some are
    named."""
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
    """Return the security of a process: certificates from `files`, or plaintext if `files` is None.
    Raise RefusedError if the files are invalid."""
    certificates = None if files is None else Certificates(files, inspect=inspect)
    return Security(certificates, allow_plaintext)


def channel_credentials(material: TlsMaterial) -> grpc.ChannelCredentials:
    """Return a client's credentials and trusted authorities."""
    return grpc.ssl_channel_credentials(material.ca, material.key, material.certificate)


def _log() -> Any:  # structlog has no better type
    import structlog  # a command with a single call logs nothing, and starts faster

    return structlog.get_logger("suture.tls")
