"""Converts values to protobuf messages with tables of fields.

A `MessageMap` is a table of the fields of one message. If a field has no entry, its value is the
attribute with the same name. The names are checked when the table is created. Therefore, a field
that is added to the message cannot be forgotten: it must have an entry or an attribute, or be
listed in `omits`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar, get_type_hints

from google.protobuf.message import Message

M = TypeVar("M", bound=Message)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Field:
    """The source of a message's field: the path of an attribute of the value, and a function that
    converts it. If `path` is "", the attribute has the name of the field."""

    path: str = ""
    encode: Callable[[Any], Any] | None = None


class MessageMap(Generic[M, V]):
    """Converts the values of one class to messages of one type."""

    def __init__(
        self,
        message_class: type[M],
        value_class: type[V],
        *,
        within: Sequence[str] = (),
        omits: Sequence[str] = (),
        **fields: str | Field,
    ) -> None:
        """Create the table, and raise ValueError if a name is unknown.

        `fields` has the attribute path or the `Field` of each field that needs an entry, by name.
        `within` names attributes whose own attributes are also used for fields with the same name.
        `omits` names fields that are not set, or that the caller passes to `message`.
        """
        names = [field.name for field in message_class.DESCRIPTOR.fields]
        paths = _paths(value_class, within)
        entries = {name: _entry(fields.get(name, ""), name, paths) for name in names}
        wrong = {*fields, *omits}.difference(names)
        wrong.update(
            name
            for name, entry in entries.items()
            if name not in omits and entry.path.partition(".")[0] not in paths
        )
        if wrong:
            raise ValueError(f"{message_class.__name__}: no field or attribute for {wrong}")
        self._message_class = message_class
        self._fields = [
            (name, attrgetter(entry.path), entry.encode)
            for name, entry in entries.items()
            if name not in omits
        ]

    def message(self, value: V, **given: Any) -> M:
        """Convert `value` to a message. `given` has the values of fields that are listed in
        `omits`."""
        for name, read, encode in self._fields:
            content = read(value)
            given[name] = content if encode is None else encode(content)
        return self._message_class(**given)

    def messages(self, values: Iterable[V]) -> Iterator[M]:
        """Convert several values to messages."""
        return map(self.message, values)


def each(table: MessageMap[Any, Any], path: str = "") -> Field:
    """Return a `Field` for a repeated field, which converts each item of a sequence with
    `table`."""
    return Field(path, table.messages)


def _entry(given: str | Field, name: str, paths: dict[str, str]) -> Field:
    entry = Field(given) if isinstance(given, str) else given
    return Field(entry.path or paths.get(name, name), entry.encode)


def _paths(value_class: type, within: Sequence[str]) -> dict[str, str]:
    """Return the path of each attribute of a class, by name. The result includes the attributes of
    the attributes that `within` names."""
    types = get_type_hints(value_class) if within else {}
    nested = {name: f"{part}.{name}" for part in within for name in _attributes(types[part])}
    return nested | {name: name for name in _attributes(value_class)}


def _attributes(value_class: type) -> set[str]:
    """Return the names of the fields, properties and methods of a class."""
    return {*dir(value_class), *getattr(value_class, "__dataclass_fields__", ())}
