"""Generated documentation of the options: explanations, a sample file, and a reference page."""

from collections.abc import Iterator
from typing import Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agent.config.options import AgentConfig
from suture.config.option_reference import OptionDoc, options, unit_of, value_text
from suture.errors import Code, RefusedError

SAMPLE_HEAD: Final = """\
# Options of the agent. A commented-out option has its default value.
# A number has the unit at the end of its key; a text has its own unit: "20MiB/s", "7d", "500GiB".
# Files conf.d/*.toml in this directory are read after this file, and override single keys.
# `suture config check` checks a change; `systemctl reload suture-agent` applies live options.
"""
DOCUMENT_HEAD: Final = """\
# Configuration

The agent reads one TOML file (`/etc/suture/agent.toml`). Then it reads the files `conf.d/*.toml` in
the same directory, in the order of their names. A later file overrides single keys; a list is
replaced completely. The agent does not start with an unknown option, a wrong unit, or contradictory
options; the error names the file and the line. No environment variable changes an option.

A number has the unit at the end of its key. A text has its own unit:

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

`systemctl reload suture-agent` (SIGHUP) applies changes of *live* options. Changes of other options
need a restart; the log names them. If a file is invalid, the agent keeps its options and logs
`config_reload_failed`.

The options of the control plane are [at the end](#the-control-plane); `suture-scm --show-options`
prints them.
"""


def find(name: str) -> Iterator[OptionDoc]:
    """Yield the option with this full name, or all options whose section or key has this name.

    If `name` is "", yield all options. Raise RefusedError if no option matches.
    """
    found = [o for o in options(AgentConfig) if name in {"", o.name, o.section, o.key}]
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
    for option in options(AgentConfig):
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
    for option in options(AgentConfig):
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
    """Return the value of an option as TOML text. Raise KeyError if no option has this name."""
    return value_text(value, unit_of(_field(name)))


def _field(name: str) -> FieldInfo:
    model: type[BaseModel] = AgentConfig
    *sections, key = name.split(".")
    for section in sections:
        inner = model.model_fields[section].annotation
        assert isinstance(inner, type)
        assert issubclass(inner, BaseModel)
        model = inner
    return model.model_fields[key]


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
