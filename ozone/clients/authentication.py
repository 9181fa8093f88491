"""The identity of the caller, and how it authenticates to Hadoop's servers.

Hadoop supports SIMPLE, which trusts the user name of the caller, and SASL. `ozone.clients.kerberos`
has the identity for SASL with Kerberos. Delegation tokens are not supported.
"""

import getpass
import os
from dataclasses import dataclass
from typing import Final, Protocol

from ozone.clients.frames import Failure
from ozone.clients.sasl import SaslExchange
from suture.errors import Code, RefusedError

SECURE: Final = "SIMPLE authentication is not enabled"


class Identity(Protocol):
    """The identity with which this process authenticates to Hadoop's servers."""

    @property
    def user(self) -> str:
        """Name of the caller, as the server receives it."""
        ...

    @property
    def hint(self) -> str:
        """Hint for the operator, printed if a server rejects this identity."""
        ...

    def exchange(self, host: str) -> SaslExchange | None:
        """Return a new SASL exchange with the server on `host`, or None for SIMPLE authentication.

        Raise RefusedError or UnavailableError if there are no credentials.
        """
        ...


@dataclass(frozen=True, slots=True)
class HadoopIdentity:
    """The caller's identity for SIMPLE authentication."""

    user: str

    @property
    def hint(self) -> str:
        """Hint for the operator, printed if a server rejects this identity."""
        return "name another user with --user"

    def exchange(self, _host: str) -> None:
        """Return None, because SIMPLE authentication has no SASL exchange."""
        return


def choose(user: str) -> HadoopIdentity:
    """Return the SIMPLE identity of `user`, or of the user of this process if `user` is empty.

    If the user id of the process has no name, as in containers, the decimal user id is used as the
    name. Hadoop accepts any text as a name.
    """
    try:
        return HadoopIdentity(user or getpass.getuser())
    except (KeyError, OSError):  # OSError from Python 3.13 on
        return HadoopIdentity(str(os.geteuid()))


def not_accepted(address: str, failure: Failure, identity: Identity) -> RefusedError:
    """Return the error for a call that the server rejects because of the identity of the caller."""
    hint = identity.hint
    if SECURE in failure.text:
        hint = "the cluster is secure: name its files with --ozone-conf (an agent: ozone.conf)"
    return RefusedError(
        Code.UNAUTHENTICATED, f"{address} rejected the user: {failure.text}", hint=hint
    )
