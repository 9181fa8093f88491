"""Command lines of this project in documents, checked against the programs' own help."""

import importlib
import io
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent


@cache
def help_text(*words: str) -> str | None:
    """Return the help text of a command; None if there is no such command.

    The program's main function is called in this process, because starting Python for each of
    dozens of commands would take most of a minute.
    """
    module, _, function = our_commands()[words[0]].partition(":")
    main = getattr(importlib.import_module(module), function)
    said = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(said),
        redirect_stderr(io.StringIO()),
    ):
        patch.setattr(sys, "argv", [*words, "--help"])
        patch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as left:
            main()
    return said.getvalue() if left.value.code in {None, 0} else None


@cache
def make_targets() -> frozenset[str]:
    """Return the targets that `make help` offers."""
    return frozenset(re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))


def is_trial(name: str) -> bool:
    """Return True if `make interop` can run a trial of this name."""
    place = ROOT / "tools" / "interop" / name
    return place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()


@cache
def our_commands() -> dict[str, str]:
    """Return the commands that the wheel installs: name -> `module:function`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return dict(project["scripts"])


def faults_of(command: str) -> Iterator[str]:
    """Yield the faults of a command line; nothing if it is not a command of this project."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        return  # not a command line
    if words[:1] == ["make"]:
        unknown = {word for word in words[1:] if word.isalpha()} - make_targets()
        yield from (f"make has no target {word}" for word in unknown)
        names = [word.removeprefix("NAME=") for word in words if word.startswith("NAME=")]
        if "interop" in words:
            yield from (f"there is no trial {name}" for name in names if not is_trial(name))
    elif words and words[0] in our_commands():
        path, text = words[:1], help_text(words[0])
        for word in words[1:]:
            if not re.fullmatch(r"[a-z]+(-[a-z]+)*", word) or not takes_commands(text):
                break
            path, text = [*path, word], help_text(*path, word)
        if text is None:
            yield f"there is no command: {' '.join(path)}"
            return
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        yield from (f"{path} has no {word}" for word in sorted(options) if word not in text)


def takes_commands(text: str | None) -> bool:
    """Return True if the command with this help has subcommands."""
    return text is not None and "COMMAND" in text
