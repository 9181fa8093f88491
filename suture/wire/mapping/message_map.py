"""Declarative conversion of values to protobuf messages.

A `MessageMap` is a table of the fields of one message. A field without an entry takes the value's
attribute of the same name. The names are checked when the table is created. A field that is added
to the contract therefore cannot be forgotten: it must have an entry or an attribute, or be listed
in `omits`.
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
    """The source of a message's field: the path of the value's attribute, and its conversion.

    Without a path, the attribute has the field's name.
    """

    path: str = ""
    encode: Callable[[Any], Any] | None = None


class MessageMap(Generic[M, V]):
    """Conversion of the values of one class to messages of one type."""

    def __init__(
        self,
        message_class: type[M],
        value_class: type[V],
        *,
        within: Sequence[str] = (),
        omits: Sequence[str] = (),
        **fields: str | Field,
    ) -> None:
        """`fields` maps a field's name to an attribute path or a `Field`. `within` names attributes
        whose own attributes are also used for fields of the same name. `omits` names fields that
        are unset, or that the caller passes to `message`. Raise ValueError for an unknown name."""
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
        """Return the message of `value`. `given` sets fields that are listed in `omits`."""
        for name, read, encode in self._fields:
            content = read(value)
            given[name] = content if encode is None else encode(content)
        return self._message_class(**given)

    def messages(self, values: Iterable[V]) -> Iterator[M]:
        """Return the messages of several values."""
        return map(self.message, values)


def each(table: MessageMap[Any, Any], path: str = "") -> Field:
    """Return a `Field` for a repeated field: a sequence of values becomes a sequence of
    messages."""
    return Field(path, table.messages)


def _entry(given: str | Field, name: str, paths: dict[str, str]) -> Field:
    entry = Field(given) if isinstance(given, str) else given
    return Field(entry.path or paths.get(name, name), entry.encode)


def _paths(value_class: type, within: Sequence[str]) -> dict[str, str]:
    """Return the path of each attribute. The attributes named by `within` contribute their own
    attributes."""
    types = get_type_hints(value_class) if within else {}
    nested = {name: f"{part}.{name}" for part in within for name in _attributes(types[part])}
    return nested | {name: name for name in _attributes(value_class)}


def _attributes(value_class: type) -> set[str]:
    """Return the names of the fields, properties and methods of a class."""
    return {*dir(value_class), *getattr(value_class, "__dataclass_fields__", ())}
