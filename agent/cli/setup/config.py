"""Commands `config check`, `show` and `explain` for the options of the agent."""

from pathlib import Path
from typing import Annotated

import typer

from agent.config import option_docs
from agent.config.loading import load_written
from agent.config.options import CONFIG_PATH, AgentConfig
from suture.config.option_reference import options
from suture.config.toml_file import ParsedConfig
from suture.errors import Code, RefusedError
from suture.observe.events import EVENTS
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.output import pluralize, print_json, print_line, print_rows, say_lines
from suture.terminal.typer_options import argument, flag, option

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

ConfigOption = Annotated[Path, option("FILE", "Config file of the agent.", "--config")]


@app.command("check")
def check(config: ConfigOption = CONFIG_PATH) -> int:
    """Check a config file and its drop-ins.

    Every fault is printed with its file and line.

    Example:
        suture config check --config /etc/suture/agent.toml
    """
    _, written = load_written(config)
    if is_json():
        print_json({"files": [str(path) for path in written.paths], "valid": True})
    else:
        set_count = len(_leaves(written.values))
        names = ", ".join(str(path) for path in written.paths)
        print_line(f"{names}: good; {pluralize(set_count, 'option')} set")
    return ExitCode.OK


@app.command("show")
def show_options(
    config: ConfigOption = CONFIG_PATH,
    origin: Annotated[
        bool, flag("Also print the file and line that set each option.", "--origin")
    ] = False,
) -> int:
    """Print every option with its effective value.

    Example:
        suture config show --origin
    """
    effective, written = load_written(config)
    rows = [
        (option.name, text, origin_of(option.name, written))
        for option in options(AgentConfig)
        for text in [option_docs.format_option(option.name, _value(effective, option.name))]
    ]
    if is_json():
        found = {name: {"value": text, "origin": place} for name, text, place in rows}
        print_json({"options": found})
    elif origin:
        print_rows(["option", "value", "origin"], rows)
    else:
        print_rows(["option", "value"], [row[:2] for row in rows])
    return ExitCode.OK


@app.command("explain")
def explain(
    name: Annotated[str, argument("KEY", "Option, section or event; default: all.")] = "",
    event: Annotated[bool, flag("Explain the log events that begin with KEY.", "--event")] = False,
) -> int:
    """Explain an option: meaning, unit, bounds and default.

    The output also says how to change the option. With --event, an event of the logs is explained.

    Example:
        suture config explain scan.interval
    """
    if event:
        return explain_event(name)
    found = list(option_docs.find(name))
    if is_json():
        known = [
            {
                "name": option.name,
                "meaning": option.meaning,
                "type": option.kind,
                "bounds": option.bounds,
                "default": option.default,
                "live": option.is_live,
            }
            for option in found
        ]
        print_json({"options": known})
    else:
        say_lines("\n\n".join(option.explained() for option in found))
    return ExitCode.OK


def explain_event(name: str) -> int:
    """Print the meaning of all log events that begin with `name`, and the fields that contain
    ids."""
    found = {key: event for key, event in sorted(EVENTS.items()) if key.startswith(name)}
    if not found:
        raise RefusedError(
            Code.MALFORMED_REQUEST,
            f"cannot explain event {name}: no event has this name",
            hint="suture config explain --event lists all events",
        )
    if is_json():
        known = [{"event": k, "ids": list(e.ids), "meaning": e.meaning} for k, e in found.items()]
        print_json({"events": known})
    else:
        rows = [(key, " ".join(event.ids), event.meaning) for key, event in found.items()]
        print_rows(["event", "ids", "meaning"], rows)
    return ExitCode.OK


def origin_of(name: str, written: ParsedConfig) -> str:
    """Return the file and line that set an option. Return "default" if no file sets it."""
    place = written.places.get(tuple(name.split(".")))
    return "default" if place is None else str(place)


def _value(config: AgentConfig, name: str) -> object:
    value: object = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _leaves(values: dict[str, object]) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for name, value in values.items():
        found += _leaves(value) if isinstance(value, dict) else [(name, value)]
    return found
