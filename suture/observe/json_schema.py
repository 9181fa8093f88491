"""The version of the JSON documents that programs print."""

from collections.abc import Mapping
from typing import Any, Final

JSON_SCHEMA: Final = 1
"""The common version of all printed documents, which docs/JSON.md describes.

The version must be raised when a key is removed or renamed, or when its type, unit or meaning
changes. It is not raised for an added key, because readers ignore unknown keys.
"""


def versioned(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with the key `schema`, the version, as its first key."""
    assert "schema" not in document, "a document has a key of the version"
    return {"schema": JSON_SCHEMA, **document}
