"""Generates the documentation of options from their declarations."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from suture.config.quantity import OptionUnit, bytes_text, duration_text
from suture.config.section import (
    BYTES,
    BYTES_PER_S,
    LIVE,
    MILLISECONDS,
    SECONDS,
    ConfigSection,
)

NONE: Final = "none"


@dataclass(frozen=True, slots=True)
class OptionDoc:
    """The documentation of one option."""

    name: str
    kind: str
    default: str
    bounds: str
    meaning: str
    is_live: bool
    example: str

    @property
    def section(self) -> str:
        """Name of the table in the file that has the option; "" for an option at the top level."""
        return self.name.rpartition(".")[0]

    @property
    def key(self) -> str:
        """Name of the option in its table."""
        return self.name.rpartition(".")[2]

    def explained(self) -> str:
        """Return the description of the option as text for a terminal."""
        lines = [self.name, f"    {self.meaning}", f"    type     {self.kind}"]
        lines += [f"    bounds   {self.bounds}"] if self.bounds else []
        lines += [f"    default  {self.default or 'none: it must be set'}"]
        lines += [f"    change   {'live, by reload' if self.is_live else 'by restart'}"]
        return "\n".join(lines)


def options(model: type[BaseModel], prefix: str = "") -> Iterator[OptionDoc]:
    """Yield the documentation of every option of a section, in the order of declaration. Options of
    the section itself come before those of its subsections."""
    inner: list[tuple[str, type[ConfigSection]]] = []
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, ConfigSection):
            inner.append((f"{prefix}{name}.", field.annotation))
        else:
            yield _option(f"{prefix}{name}", field)
    for section_prefix, section in inner:
        yield from options(section, section_prefix)


def _option(name: str, field: FieldInfo) -> OptionDoc:
    unit = unit_of(field)
    example = field.examples[0] if field.examples else field.default
    return OptionDoc(
        name=name,
        kind=_kind(field, unit),
        default="" if field.is_required() else value_text(field.default, unit),
        bounds=_bounds(field, unit),
        meaning=field.description or "",
        is_live=field.json_schema_extra == LIVE,
        example=value_text(example, unit),
    )


def unit_of(field: FieldInfo) -> OptionUnit | None:
    """Return the unit of an option. Return None if it has none."""
    for item in field.metadata:
        unit = getattr(item, "func", None)
        if isinstance(unit, OptionUnit):
            return unit
    return None


def _kind(field: FieldInfo, unit: OptionUnit | None) -> str:
    if unit is not None:
        return {
            "bytes": 'a size, such as "500GiB"',
            "bytes per second": 'a rate, such as "20MiB/s"',
        }.get(unit.name, 'a time, such as "7d"')
    kind: Any = field.annotation
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(json.dumps(word) for word in arguments)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(json.dumps(item.value) for item in kind)
    if get_origin(kind) is tuple:
        return "a list of texts"
    names = {bool: "true or false", int: "a whole number", float: "a number"}
    return names.get(kind, "a text")


def _bounds(field: FieldInfo, unit: OptionUnit | None) -> str:
    limits = {
        name: getattr(item, name)
        for item in reversed(field.metadata)  # annotations of the type come last
        for name in ("ge", "gt", "le", "lt", "min_length", "max_length")
        if getattr(item, name, None) is not None
    }
    words = {"ge": "from", "gt": "above", "le": "to", "lt": "below"}
    parts = [
        f"{word} {value_text(limits[name], unit)}".replace('"', "")
        for name, word in words.items()
        if name in limits
    ]
    if "max_length" in limits and get_origin(field.annotation) is tuple:
        parts.append(f"{limits.get('min_length', 0)} to {limits['max_length']} of them")
    return " ".join(parts)


def value_text(value: object, unit: OptionUnit | None) -> str:
    """Return a value in TOML syntax, with a readable unit."""
    if value is None:
        return NONE
    if isinstance(value, tuple | list):
        return "[" + ", ".join(value_text(item, None) for item in value) + "]"
    if isinstance(value, Enum):
        return json.dumps(value.value)
    if isinstance(value, str | Path):
        return json.dumps(str(value))
    if unit is not None and isinstance(value, int | float):
        return json.dumps(quantity_text(value, unit))
    return json.dumps(value)


def quantity_text(value: float, unit: OptionUnit) -> str:
    """Return a number as text with a readable unit."""
    if unit in {SECONDS, MILLISECONDS}:
        return duration_text(value if unit is SECONDS else value / 1000)
    assert unit in {BYTES, BYTES_PER_S}
    return bytes_text(int(value)) + ("/s" if unit is BYTES_PER_S else "")
