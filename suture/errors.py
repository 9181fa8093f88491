"""The exceptions of the client.

    SutureError         has `code`, which is stable, `hint` for people, and `facts`
    ├─ UnavailableError  try again later: the cluster, or what it has of the key, is not at hand
    └─ RefusedError      never retry as is
       ├─ KeyNotFound   there is no such key
       ├─ KeyExists     it was to be stored without `replace`
       ├─ KeyLost       a container of it was given up
       └─ KeyReplaced   while it was read: what was read is of no use with what is there now

An argument that can never be valid raises ValueError or TypeError, before any request. A local file
that cannot be read raises OSError.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from agent.errors import Code as Code
from agent.errors import RefusedError as RefusedError
from agent.errors import SutureError as SutureError
from agent.errors import UnavailableError as UnavailableError


class KeyNotFound(RefusedError):
    """There is no such key."""


class KeyExists(RefusedError):
    """The key is there, and was not to be replaced."""


class KeyLost(RefusedError):
    """A container that holds some of the key was given up."""


class KeyReplaced(RefusedError):
    """The key was replaced while it was read: discard what was read, and start again."""


KINDS: Final[dict[Code, type[RefusedError]]] = {
    Code.KEY_NOT_FOUND: KeyNotFound,
    Code.KEY_EXISTS: KeyExists,
    Code.KEY_LOST: KeyLost,
    Code.KEY_REPLACED: KeyReplaced,
}


@contextmanager
def by_kind() -> Iterator[None]:
    """Convert errors of the body to those that callers distinguish."""
    try:
        yield
    except SutureError as error:
        kind = KINDS.get(error.code)
        if kind is None or isinstance(error, kind):
            raise
        raise kind(error.code, str(error), hint=error.hint, **error.facts) from error
