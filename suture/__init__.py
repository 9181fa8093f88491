"""The client of a cluster: `from suture import Client`; docs/CLIENT.md has examples."""

from suture.client.aio import AsyncClient
from suture.client.blocking import Client, Content, KeyInfo, PutResult
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
