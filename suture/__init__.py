"""The client library of a cluster: `from suture import Client`. docs/CLIENT.md has examples.

Other programs may use only the names in `__all__`. The subpackages are shared by Suture's own
programs. Importing a subpackage does not load the client.
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
    """Return the public object `name`. Its module is imported on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_ELSEWHERE.get(name, "suture.errors")), name)
    globals()[name] = value
    return value
