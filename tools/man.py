"""Generates man pages from the programs' help texts."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODULES = {
    "suture": "agent.cli.start",
    "suture-agent": "agent.main",
    "suture-scm": "scm.start",
    "suture-verify": "spark_verify.start",
}
MEANINGS = {
    "suture": "ask about, store on, and mend the replicas of a cluster",
    "suture-agent": "keep the container replicas of this host equal and whole",
    "suture-scm": "reference control plane for one machine",
    "suture-verify": "compare the replicas of a whole cluster with Spark",
}
COMMAND = re.compile(r"^  ([a-z][a-z-]*)  ", re.MULTILINE)


def page(program: str, python: Path) -> str:
    """Return the man page of `program` in troff: its help, and that of each subcommand."""
    lines = [
        f'.TH {program.upper()} 1 "" "Suture" "User Commands"',
        ".SH NAME",
        f"{program} \\- {MEANINGS[program]}",
    ]
    for words, text in helps(program, python, []):
        title = "DESCRIPTION" if not words else " ".join([program, *words])
        lines += [f'.SH "{title}"', ".nf", *map(escaped, text.splitlines()), ".fi"]
    lines += [".SH FILES", "/etc/suture/agent.toml", ".SH SEE ALSO"]
    lines += ["/usr/share/doc/suture/operations/README.md"]
    return "\n".join(lines) + "\n"


def helps(program: str, python: Path, words: list[str]) -> Iterator[tuple[list[str], str]]:
    """Yield (words, help) of a command and of all its subcommands."""
    text = help_text(program, python, words)
    yield words, text
    for name in COMMAND.findall(text.partition("\nOptions:\n")[2].partition("\n\n")[2]):
        yield from helps(program, python, [*words, name])


def help_text(program: str, python: Path, words: list[str]) -> str:
    """Return a command's help text."""
    code = f"import sys; sys.argv[0] = {program!r}; from {MODULES[program]} import main; main()"
    return subprocess.run(
        [python, "-c", code, *words, "--help"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "100", "PYTHONPATH": str(ROOT)},
    ).stdout


def escaped(line: str) -> str:
    """Return a line escaped for troff."""
    line = line.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{line}" if line.startswith((".", "'")) else line
