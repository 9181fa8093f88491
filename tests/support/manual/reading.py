"""Parser of a manual into steps: files to write, and commands to run with their output."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MANUAL: Final = Path(__file__).resolve().parents[3] / "docs" / "operations"
CONTENTS: Final = MANUAL / "README.md"
ENTRY: Final = re.compile(r"\]\(([\w-]+\.md)\)")
HEADING: Final = re.compile(r"^#{1,2} (.+)$")
FILE: Final = re.compile(r"^`(/[^`]+)`")  # begins the sentence above the block that is in it


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the manual: a command with the output that the manual shows, or, if `path` is set,
    a file to write with `content`."""

    chapter: str
    command: str = ""
    shown: str = ""
    path: str = ""
    content: str = ""


def pages() -> list[Path]:
    """Return the table of contents, and the pages of the manual in its order."""
    names = dict.fromkeys(ENTRY.findall(CONTENTS.read_text()))
    return [CONTENTS, *(MANUAL / name for name in names)]


def manual_text() -> str:
    """Return the text of all pages."""
    return "\n".join(page.read_text() for page in pages())


def steps(manual: str) -> list[Step]:
    """Return the steps of a manual in their order."""
    return list(_steps(iter(manual.splitlines())))


def _steps(lines: Iterator[str]) -> Iterator[Step]:
    """Yield the steps. Blocks of a list are indented."""
    chapter = path = ""
    for indented in lines:
        line = indented.lstrip()
        heading, file = HEADING.match(line), FILE.match(line)
        if heading:
            chapter, path = heading[1], ""
        elif line.startswith("```"):
            indent = len(indented) - len(line)
            block = [text[indent:] for text in _until_fence(lines)]
            if line == "```console":
                yield from _typed(chapter, block)
            elif path:
                yield Step(chapter, path=path, content="\n".join(block) + "\n")
            path = ""
        elif line:
            path = file[1] if file else ""


def _until_fence(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if line.lstrip() == "```":
            return
        yield line


def _typed(chapter: str, block: list[str]) -> Iterator[Step]:
    starts = [number for number, line in enumerate(block) if line[:2] in {"$ ", "# "}]
    for start, end in zip(starts, [*starts[1:], len(block)], strict=True):
        shown = "\n".join(block[start + 1 : end])
        yield Step(chapter, command=block[start][2:], shown=shown)


def header(shown: str) -> str:
    """Return the line with the names of the columns in an output of the manual; "" if the output is
    a sentence."""
    lines = [line for line in shown.splitlines() if line.startswith(" ")]
    return lines[0] if lines and not re.search(r"[0-9./]", lines[0]) else ""


def words_of(text: str) -> set[str]:
    """Return the lower-case words of a text that have at least three letters."""
    return set(re.findall(r"[a-z]{3,}", text))
