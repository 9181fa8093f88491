"""The client of a cluster: `from suture import Client`; docs/CLIENT.md has examples.

Only the names of `__all__` are for other programs. The packages below are the library that the
programs of Suture share; importing one of them does not load the client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from suture.client.async_client import AsyncClient
    from suture.client.client import Client, Content, KeyInfo, PutResult
    from suture.errors import (
        Code,
        KeyExists,
        KeyLost,
        KeyNotFound,
        KeyReplaced,
        RefusedError,
        SutureError,
        UnavailableError,
    )

__all__ = [
    "AsyncClient",
    "Client",
    "Code",
    "Content",
    "KeyExists",
    "KeyInfo",
    "KeyLost",
    "KeyNotFound",
    "KeyReplaced",
    "PutResult",
    "RefusedError",
    "SutureError",
    "UnavailableError",
]

_ELSEWHERE: Final = {
    "AsyncClient": "suture.client.async_client",
    **dict.fromkeys(("Client", "Content", "KeyInfo", "PutResult"), "suture.client.client"),
}


def __getattr__(name: str) -> Any:
    """Return a public name, importing its module when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_ELSEWHERE.get(name, "suture.errors")), name)
    globals()[name] = value
    return value
