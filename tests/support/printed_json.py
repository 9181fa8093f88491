"""JSON documents as programs print them."""

import json
from typing import Any

from tools.json_documents import documents


def document_in(text: str, command: str = "") -> dict[str, Any]:
    """Return a JSON document that a program printed. It must be an object that begins with its
    schema. If `command` is given, it must have the documented keys of this command."""
    document = json.loads(text)
    assert isinstance(document, dict), text
    assert [("schema", 1)] == list(document.items())[:1], text
    if command:
        type_ = "Error" if "error" in document else documents().commands[command]
        content = {key: value for key, value in document.items() if key != "schema"}
        faults = documents().faults(content, type_)
        assert not faults, f"{faults}\n{text}"
    return document
