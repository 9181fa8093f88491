"""Version of the JSON documents that programs print."""

from collections.abc import Mapping
from typing import Any, Final

JSON_SCHEMA: Final = 1
"""Version of all printed documents together, described in docs/JSON.md.

Raise it when a key is removed, renamed, or changes its type, its unit or its meaning. An added key
does not raise it: readers ignore keys that they do not know.
"""


def versioned(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with the key `schema` first."""
    assert "schema" not in document, "a document has a key of the version"
    return {"schema": JSON_SCHEMA, **document}
