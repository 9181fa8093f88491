"""The identity of the caller for Kerberos, from a keytab or from the user's ticket cache.

The module needs the package gssapi (extra `ozone-secure`), which uses the Kerberos library of the
system with its configuration (krb5.conf). Tickets from a keytab are kept in memory. The library
fetches new tickets when they expire.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ozone.clients.sasl import ProtectionLevel, SaslExchange
from suture.errors import Code, RefusedError, SutureError, UnavailableError, missing_extra

HOST: Final = "_HOST"
KDC_UNREACHABLE: Final = -1765328228  # KRB5_KDC_UNREACH
CLOCK_SKEW: Final = -1765328347  # KRB5KRB_AP_ERR_SKEW
SKEW_HINT: Final = "the clocks of the hosts differ by more than five minutes; check NTP"
TICKET_HINT: Final = "run kinit, or name --principal and --keytab"


def library() -> Any:
    """Return the module gssapi. Raise RefusedError if it is not installed."""
    try:
        import gssapi
    except ModuleNotFoundError as error:
        raise missing_extra(error, "Kerberos") from error
    return gssapi


@dataclass(frozen=True, slots=True)
class KerberosIdentity:
    """The identity of the caller for Kerberos.

    Without a keytab, the credentials come from the user's ticket cache. `server_principal` is the
    principal of the SCM. `_HOST` in it stands for the host name of the SCM.
    """

    server_principal: str
    principal: str = ""
    keytab: Path | None = None
    level_min: ProtectionLevel = ProtectionLevel.AUTHENTICATION

    @property
    def user(self) -> str:
        """Full name of the principal.

        Raise RefusedError or UnavailableError if there are no credentials.
        """
        with _reported():
            return str(self._credentials().name)

    @property
    def hint(self) -> str:
        """Hint for the operator, printed if a server rejects this identity."""
        return f"check the principal and its rights; or {SKEW_HINT}"

    def exchange(self, host: str) -> SaslExchange:
        """Return a new SASL exchange with the server on `host`."""
        library()  # reports a missing package before anything is sent
        server = principal_on(self.server_principal, host)

        def open_context() -> "KerberosContext":
            return KerberosContext(self._credentials(), server)

        return SaslExchange(open_context, server.partition("@")[0], self.level_min)

    def _credentials(self) -> Any:
        gssapi = library()
        name = None
        if self.principal:
            kind = gssapi.NameType.kerberos_principal
            name = gssapi.Name(principal_on(self.principal, socket.gethostname()), kind)
        store = None
        if self.keytab is not None:
            if not self.keytab.is_file():
                raise RefusedError(Code.INVALID_CONFIG, f"cannot read keytab {self.keytab}")
            cache = f"MEMORY:suture-{self.principal}"
            store = {"client_keytab": f"FILE:{self.keytab}", "ccache": cache}
        with _reported(TICKET_HINT):
            return gssapi.Credentials(name=name, usage="initiate", store=store)


class KerberosContext:
    """A GSSAPI context with one server (`ozone.clients.sasl.SecurityContext`)."""

    def __init__(self, credentials: Any, server: str) -> None:
        gssapi = library()
        flag = gssapi.RequirementFlag
        with _reported():
            self._context = gssapi.SecurityContext(
                name=gssapi.Name(server, gssapi.NameType.kerberos_principal),
                creds=credentials,
                usage="initiate",
                mech=gssapi.MechType.kerberos,
                flags=[
                    flag.mutual_authentication,
                    flag.replay_detection,
                    flag.out_of_sequence_detection,
                    flag.integrity,
                    flag.confidentiality,
                ],
            )

    @property
    def is_complete(self) -> bool:
        """True if client and server have both proven their identities."""
        return bool(self._context.complete)

    def step(self, token: bytes | None) -> bytes:
        """Process a token of the server.

        Return the next token for the server, which may be empty.
        """
        with _reported():
            return self._context.step(token) or b""

    def wrap(self, data: bytes, *, is_private: bool) -> bytes:
        """Return `data` with integrity protection. If `is_private`, also encrypt the data."""
        with _reported():
            wrapped: bytes = self._context.wrap(data, is_private).message
        return wrapped

    def unwrap(self, data: bytes, *, is_private: bool) -> bytes:
        """Verify a token, and return the data in it.

        Raise RefusedError if `is_private` is True and the token is not encrypted.
        """
        with _reported():
            opened = self._context.unwrap(data)
        if is_private and not opened.encrypted:
            raise RefusedError(Code.UNAUTHENTICATED, "the server sent data without encryption")
        plain: bytes = opened.message
        return plain

    def size_max(self, wrapped_bytes: int, *, is_private: bool) -> int:
        """Return the maximum size in bytes of data that fit in one token.

        The wrapped token then has at most `wrapped_bytes` bytes.
        """
        with _reported():
            return int(self._context.get_wrap_size_limit(wrapped_bytes, encrypted=is_private))


def principal_on(principal: str, host: str) -> str:
    """Return the principal with its `_HOST` replaced by the full name of `host`, as Hadoop does."""
    service, slash, rest = principal.partition("/")
    named, at, realm = rest.partition("@")
    if named != HOST:
        return principal
    return f"{service}{slash}{socket.getfqdn(host).lower()}{at}{realm}"


@contextmanager
def _reported(hint: str = "") -> Iterator[None]:
    """Convert a GSSError in a `with` block to a SutureError.

    `hint` is the hint for the operator.
    """
    gssapi = library()
    try:
        yield
    except gssapi.exceptions.GSSError as error:
        raise _error_of(error, hint) from error


def _error_of(error: Any, hint: str) -> SutureError:
    minor = error.min_code - 2**32 if error.min_code >= 2**31 else error.min_code
    texts = error.get_all_statuses(error.min_code, False)
    said = "; ".join(texts) or str(error)
    if minor == KDC_UNREACHABLE:
        return UnavailableError(Code.UNAVAILABLE, f"cannot authenticate: {said}")
    hint = SKEW_HINT if minor == CLOCK_SKEW else hint
    return RefusedError(Code.UNAUTHENTICATED, f"cannot authenticate: {said}", hint=hint)
