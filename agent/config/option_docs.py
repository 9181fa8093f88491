"""Generated documentation of the options: explanations, a sample file, and a reference page."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agent.config.options import AgentConfig
from suture.config.quantity import OptionUnit, bytes_text, duration_text
from suture.config.section import BYTES, BYTES_PER_S, LIVE, SECONDS, ConfigSection
from suture.errors import Code, RefusedError

NONE: Final = "none"
SAMPLE_HEAD: Final = """\
# Options of the agent. What is commented out has the value that is shown: the default.
# A number is in the unit that its key ends in; a text brings its own: "20MiB/s", "7d", "500GiB".
# Files conf.d/*.toml beside this one are read after it, and win, key by key.
# `suture config check` tests a change; `systemctl reload suture-agent` takes options marked live.
"""
DOCUMENT_HEAD: Final = """\
# Configuration

The agent reads one TOML file (`/etc/suture/agent.toml`) and then, in the order of their names, the
drop-ins `conf.d/*.toml` beside it; a later file wins, key by key, and a list is replaced whole. An
unknown option, a wrong unit, or two options that contradict each other start nothing: the error
names file and line. No environment variable changes an option.

A number is in the unit that the key ends in. A text brings its own unit:

| of | write | units |
|---|---|---|
| sizes (`_bytes`) | `"500GiB"`, `"64MB"` | `B`, `KiB` to `PiB`, and `kB` to `PB` |
| rates (`_bytes_per_s`) | `"20MiB/s"` | the same, and `/s` |
| times (`_s`) | `"7d"`, `"1d12h"`, `"250ms"` | `ms` `s` `min` `h` `d` `w` |

```console
$ suture config check --config /etc/suture/agent.toml
$ suture config show --origin --config /etc/suture/agent.toml
$ suture config explain scan.data_interval_s
```

An option marked *live* changes on `systemctl reload suture-agent` (SIGHUP); the rest waits for a
restart, and the log says which. A file that is wrong changes nothing: the agent keeps the options
it has, and logs `config_reload_failed`.

The control plane's options are [at the end](#the-control-plane); `suture-scm --show-options` prints
them.
"""


@dataclass(frozen=True, slots=True)
class OptionDoc:
    """Documentation of one option."""

    name: str
    kind: str
    default: str
    bounds: str
    meaning: str
    is_live: bool
    example: str

    @property
    def section(self) -> str:
        """Name of the option's table in the file; "" = the top level."""
        return self.name.rpartition(".")[0]

    @property
    def key(self) -> str:
        """Name of the option in its table."""
        return self.name.rpartition(".")[2]

    def explained(self) -> str:
        """Return the full description for a terminal."""
        lines = [self.name, f"    {self.meaning}", f"    type     {self.kind}"]
        lines += [f"    bounds   {self.bounds}"] if self.bounds else []
        lines += [f"    default  {self.default or 'none: it must be set'}"]
        lines += [f"    change   {'live, by reload' if self.is_live else 'by restart'}"]
        return "\n".join(lines)


def options(model: type[BaseModel] = AgentConfig, prefix: str = "") -> Iterator[OptionDoc]:
    """Yield every option in the order of declaration, top-level options first."""
    inner: list[tuple[str, type[ConfigSection]]] = []
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, ConfigSection):
            inner.append((f"{prefix}{name}.", field.annotation))
        else:
            yield _option(f"{prefix}{name}", field)
    for section_prefix, section in inner:
        yield from options(section, section_prefix)


def find(name: str) -> Iterator[OptionDoc]:
    """Yield the option `name`, or all options with this section or key; "" = all. Raise
    RefusedError if there is none."""
    found = [o for o in options() if name in {"", o.name, o.section, o.key}]
    if not found:
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"cannot explain option {name}: no option has this name",
            hint="suture config explain lists all options",
        )
    yield from found


def sample() -> str:
    """Return the content of systemd/agent.toml: every option as a comment with its default."""
    lines, section = [SAMPLE_HEAD.rstrip()], ""
    for option in options():
        if option.section != section:
            section = option.section
            lines += ["", f"# {_section_meaning(section)}", f"[{section}]"]
        live = " Live." if option.is_live else ""
        bounds = f" {option.bounds[0].upper()}{option.bounds[1:]}." if option.bounds else ""
        lines += ["", *_comment(f"{option.meaning}{bounds}{live}")]
        mark = "#" if option.default else ""
        lines.append(f"{mark}{option.key} = {option.example}")
    return "\n".join(lines) + "\n"


def document() -> str:
    """Return the content of docs/CONFIGURATION.md."""
    lines, section = [DOCUMENT_HEAD.rstrip()], None
    for option in options():
        if option.section != section:
            section = option.section
            head = f"## {section}\n\n{_section_meaning(section)}" if section else "## At the top"
            lines += ["", head, "", "| option | default | bounds | live | meaning |"]
            lines += ["|---|---|---|---|---|"]
        default = f"`{option.default}`" if option.default else "must be set"
        live = "yes" if option.is_live else "no"
        lines.append(
            f"| `{option.key}` | {default} | {option.bounds or '-'} | {live} | {option.meaning} |"
        )
    return "\n".join(lines) + "\n"


def format_option(name: str, value: object) -> str:
    """Return the value of an option as TOML. Raise KeyError if there is no such option."""
    return _value_text(value, _unit(_field(name)))


def _option(name: str, field: FieldInfo) -> OptionDoc:
    unit = _unit(field)
    example = field.examples[0] if field.examples else field.default
    return OptionDoc(
        name=name,
        kind=_kind(field, unit),
        default="" if field.is_required() else _value_text(field.default, unit),
        bounds=_bounds(field, unit),
        meaning=field.description or "",
        is_live=field.json_schema_extra == LIVE,
        example=_value_text(example, unit),
    )


def _field(name: str) -> FieldInfo:
    model: type[BaseModel] = AgentConfig
    *sections, key = name.split(".")
    for section in sections:
        inner = model.model_fields[section].annotation
        assert isinstance(inner, type)
        assert issubclass(inner, BaseModel)
        model = inner
    return model.model_fields[key]


def _unit(field: FieldInfo) -> OptionUnit | None:
    for item in field.metadata:
        unit = getattr(item, "func", None)
        if isinstance(unit, OptionUnit):
            return unit
    return None


def _kind(field: FieldInfo, unit: OptionUnit | None) -> str:
    if unit is not None:
        return {"bytes": 'a size, such as "500GiB"', "seconds": 'a time, such as "7d"'}.get(
            unit.name, 'a rate, such as "20MiB/s"'
        )
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
        for item in field.metadata
        for name in ("ge", "gt", "le", "lt", "min_length", "max_length")
        if getattr(item, name, None) is not None
    }
    words = {"ge": "from", "gt": "above", "le": "to", "lt": "below"}
    parts = [
        f"{word} {_value_text(limits[name], unit)}".replace('"', "")
        for name, word in words.items()
        if name in limits
    ]
    if "max_length" in limits and get_origin(field.annotation) is tuple:
        parts.append(f"{limits.get('min_length', 0)} to {limits['max_length']} of them")
    return " ".join(parts)


def _value_text(value: object, unit: OptionUnit | None) -> str:
    """Return a value as TOML, in a readable unit."""
    if value is None:
        return NONE
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_value_text(item, None) for item in value) + "]"
    if isinstance(value, Enum):
        return json.dumps(value.value)
    if isinstance(value, str | Path):
        return json.dumps(str(value))
    if unit is not None and isinstance(value, int | float):
        return json.dumps(_quantity(value, unit))
    return json.dumps(value)


def _quantity(value: float, unit: OptionUnit) -> str:
    if unit is SECONDS:
        return duration_text(value)
    assert unit in {BYTES, BYTES_PER_S}
    return bytes_text(int(value)) + ("/s" if unit is BYTES_PER_S else "")


def _section_meaning(section: str) -> str:
    model = AgentConfig.model_fields[section].annotation
    assert isinstance(model, type)
    return (model.__doc__ or "").split("\n")[0]


def _comment(text: str) -> Iterator[str]:
    line = "#"
    for word in text.split():
        if len(line) + 1 + len(word) > 100:
            yield line
            line = "#"
        line += f" {word}"
    yield line
