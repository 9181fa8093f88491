"""Generates man pages from the programs' help texts."""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from functools import cache
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODULES = {
    "suture": "agent.cli.start",
    "suture-agent": "agent.main",
    "suture-scm": "scm.start",
    "suture-verify": "spark_verify.start",
}
MEANINGS = {
    "suture": "store keys, and show and repair the replicas of a cluster",
    "suture-agent": "store, scan and repair the container replicas of this host",
    "suture-scm": "control plane of a cluster, for one machine",
    "suture-verify": "compare all replicas of a cluster with Spark",
}
PRINT_HELPS = """\
import json, sys
from tools.man import helps
print(json.dumps(list(helps(sys.argv[1], []))))
"""  # a module that is run would be named in the helps
COMMAND = re.compile(r"^  ([a-z][a-z-]*)  ", re.MULTILINE)


@cache
def page(program: str, python: Path) -> str:
    """Return the man page of `program` in troff, with its help and the help of each subcommand."""
    lines = [
        f'.TH {program.upper()} 1 "" "Suture" "User Commands"',
        ".SH NAME",
        f"{program} \\- {MEANINGS[program]}",
    ]
    for words, text in helps_of(program, python):
        title = "DESCRIPTION" if not words else " ".join([program, *words])
        lines += [f'.SH "{title}"', ".nf", *map(escaped, text.splitlines()), ".fi"]
    lines += [".SH FILES", "/etc/suture/agent.toml", ".SH SEE ALSO"]
    lines += ["/usr/share/doc/suture/operations/README.md"]
    return "\n".join(lines) + "\n"


@cache
def helps_of(program: str, python: Path = Path(sys.executable)) -> list[tuple[list[str], str]]:
    """Return the words and the help text of each command of `program`. One process prints all help
    texts, because the imports take a second."""
    printed = subprocess.run(
        [python, "-c", PRINT_HELPS, program],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100", "PYTHONPATH": str(ROOT)},
    ).stdout
    return [(words, text) for words, text in json.loads(printed)]


def helps(program: str, words: list[str]) -> Iterator[tuple[list[str], str]]:
    """Yield the words and the help text of a command, and of all its subcommands."""
    text = help_text(program, words)
    yield words, text
    for name in COMMAND.findall(text.partition("\nOptions:\n")[2].partition("\n\n")[2]):
        yield from helps(program, [*words, name])


def help_text(program: str, words: list[str]) -> str:
    """Return a command's help text. The command runs in this process."""
    sys.argv = [program, *words, "--help"]
    printed = io.StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        import_module(MODULES[program]).main()
    return printed.getvalue()


def escaped(line: str) -> str:
    """Return a line escaped for troff."""
    line = line.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{line}" if line.startswith((".", "'")) else line
