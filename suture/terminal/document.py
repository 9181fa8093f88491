"""Converts protobuf messages to JSON, with 64-bit integers as numbers."""

from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from suture.terminal.common_options import is_json
from suture.terminal.output import print_json, print_rows

LONG = frozenset({FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64})


def print_messages(
    noun: str, columns: Sequence[str], rows: Iterable[Sequence[object]], messages: Sequence[Message]
) -> None:
    """Print messages: with --json all their fields, as a list with the key `noun`, otherwise `rows`
    as a table."""
    if is_json():
        print_json({noun: [facts(message) for message in messages]})
    else:
        print_rows(columns, rows)


def facts(message: Message) -> dict[str, object]:
    """Return the fields of a message as JSON, with 64-bit integers as numbers.

    Protobuf's own JSON has 64-bit integers as strings, for readers whose numbers are floats. Sizes,
    times and ids are far below 2^53. Checksums are not, but readers with integers, such as Python
    and jq, read them exactly.
    """
    document: dict[str, object] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    _tidy_keys(document, message.DESCRIPTOR)
    return document


def _tidy_keys(document: dict[str, Any], descriptor: Any) -> None:  # of either implementation
    for field in descriptor.fields:
        if field.name not in document:
            continue
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            value = kind.fields_by_name["value"]
            items = document[field.name]
            for key in items:
                items[key] = _tidied(items[key], value)
        else:
            document[field.name] = _tidied(document[field.name], field)


def _tidied(value: Any, field: FieldDescriptor) -> Any:
    if isinstance(value, list):
        return [_tidied(item, field) for item in value]
    if field.cpp_type in LONG:
        return int(value)
    if field.message_type is not None and isinstance(value, dict):
        _tidy_keys(value, field.message_type)
    return value
