"""Validates the options from TOML files. The error names the file and line of each invalid
option."""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import TypeAlias, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from suture.config.section import ConfigSection
from suture.config.toml_file import Key, ParsedConfig
from suture.errors import Code, RefusedError

M = TypeVar("M", bound=ConfigSection)
Contradiction: TypeAlias = tuple[tuple[Key, ...], str]
"""The names of options whose values contradict each other although each value is valid, and the
text for the error."""


def checked(
    model: type[M],
    written: ParsedConfig,
    contradictions: Callable[[M], Iterable[Contradiction]],
    *,
    source: str,
    hint: str,
) -> M:
    """Convert the content of config files to an instance of `model`, and validate it.

    Raise RefusedError(INVALID_CONFIG) if an option is invalid, or if `contradictions` returns an
    item. The message has the file and line of each. `source` is the name of the file in the
    message.
    """
    try:
        config = model.model_validate(written.values)
    except ValidationError as error:
        wrong = [_fault(item, written, model) for item in error.errors()]
    else:
        wrong = [f"{written.located(*keys)}: {text}" for keys, text in contradictions(config)]
        if not wrong:
            return config
    raise RefusedError(Code.INVALID_CONFIG, f"{source}: " + "; ".join(wrong), hint=hint)


def _fault(item: ErrorDetails, written: ParsedConfig, model: type[BaseModel]) -> str:
    """Return a text about one invalid option: the file and line, the name of the option, and the
    error."""
    key = tuple(str(part) for part in item["loc"])
    place = written.place_of(key)
    name = ".".join(key)
    limits = item.get("ctx", {})
    match item["type"]:
        case "extra_forbidden":
            near = get_close_matches(key[-1], _names(model, key[:-1]), n=1)
            text = "no such option" + (f"; {near[0]}?" if near else "")
        case "missing":
            text = "must be set"
        case "greater_than_equal" | "greater_than" | "less_than_equal" | "less_than":
            text = f"{item['input']!r} is out of bounds: {item['msg'].removeprefix('Input ')}"
        case "value_error":
            text = str(limits.get("error", item["msg"]))
        case _:
            text = f"{item['msg']}, not {item['input']!r}"
    return f"{place} {name}: {text}" if place else f"{name}: {text}"


def _names(model: type[BaseModel], section: Key) -> list[str]:
    for part in section:
        inner = model.model_fields[part].annotation if part in model.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)
