"""JSON documents as programs print them."""

import json
from typing import Any

from tools.json_documents import documents


def document_in(text: str, command: str = "") -> dict[str, Any]:
    """Return the JSON document that a program printed. Fail if it is not an object that begins with
    the field `schema`, or if it lacks the documented keys of `command`."""
    document = json.loads(text)
    assert isinstance(document, dict), text
    assert [("schema", 1)] == list(document.items())[:1], text
    if command:
        type_ = "Error" if "error" in document else documents().commands[command]
        content = {key: value for key, value in document.items() if key != "schema"}
        faults = documents().faults(content, type_)
        assert not faults, f"{faults}\n{text}"
    return document
