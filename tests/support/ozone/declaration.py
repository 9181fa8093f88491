"""Builds protobuf messages from a table: message, field, number, type.

Ozone's own `.proto` files have hundreds of fields; the table lists only those that are used. All
fields are optional, so that an absent field differs from zero. Unlisted fields are ignored. The
bytes are parsed by protobuf's own parser. No I/O.
"""

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

TEXT: Final = "TYPE_STRING"
BYTES: Final = "TYPE_BYTES"
NUMBER: Final = "TYPE_UINT64"
SIGNED: Final = "TYPE_INT64"  # also for Ozone's enumerations, which are the same on the wire
ZIGZAG: Final = "TYPE_SINT32"
BOOL: Final = "TYPE_BOOL"

Fields = dict[str, tuple[int, str, bool]]
"""By name of the field: its number, its type (a scalar type or a message's name), and True if it is
repeated."""


def message_classes(package: str, messages: Mapping[str, Fields]) -> dict[str, Any]:
    """Return the class of each message by name. The type of a field is a scalar type, or the name
    of a message in `messages`."""
    file = descriptor_pb2.FileDescriptorProto(
        name=package.replace(".", "/") + ".proto", package=package, syntax="proto2"
    )
    for name, fields in messages.items():
        declared = file.message_type.add(name=name)
        for field, (number, kind, is_repeated) in fields.items():
            item = declared.field.add(name=field, number=number)
            item.label = item.LABEL_REPEATED if is_repeated else item.LABEL_OPTIONAL
            if kind in messages:
                item.type, item.type_name = item.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                item.type = getattr(item, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }
