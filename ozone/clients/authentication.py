"""Chooses the caller's identity and its authentication.

Hadoop supports SIMPLE, which trusts the user name of the caller, and SASL with Kerberos or tokens.
Only SIMPLE is implemented. SASL would need another code in the connection header, and an exchange
of RpcSasl messages (call id -33) between the header and the context.
"""

import getpass
import os
from dataclasses import dataclass

from ozone.clients import frames
from suture.errors import Code, RefusedError


@dataclass(frozen=True, slots=True)
class HadoopIdentity:
    """The caller's identity for SIMPLE authentication."""

    user: str

    def opening(self, client_id: bytes, protocol: str) -> bytes:
        """Return all bytes that precede the first call."""
        greeting = frames.connection_header(frames.SIMPLE)
        return greeting + frames.context_frame(client_id, self.user, protocol)


def choose(user: str) -> HadoopIdentity:
    """Return the identity of `user`, or of the user of this process.

    If the user id has no name, as in containers, the number is used as the name; Hadoop accepts any
    text.
    """
    try:
        return HadoopIdentity(user or getpass.getuser())
    except (KeyError, OSError):  # OSError from Python 3.13 on
        return HadoopIdentity(str(os.geteuid()))


def not_accepted(address: str, failure: frames.Failure) -> RefusedError:
    """Return the error for a server that requires more than SIMPLE, or another user."""
    return RefusedError(
        Code.UNAUTHENTICATED,
        f"{address} rejected the user: {failure.text}",
        hint="name another user with --user; Kerberos is not supported, only SIMPLE authentication",
    )
