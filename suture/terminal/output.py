"""Output of commands: tables and progress for people, one JSON document for machines.

Results go to stdout; progress and errors go to stderr. Text for people goes through
`suture.observe.terminal_escape` and is never parsed as markup, because names come from disks and
from the wire.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from suture.config.quantity import format_duration
from suture.errors import SutureError, size_text
from suture.observe.json_schema import versioned
from suture.observe.terminal_escape import printable, short_id
from suture.terminal.common_options import is_json

if TYPE_CHECKING:
    from rich.progress import Progress

LAST_COLUMN_MIN = 24  # minimum width of a last column with remarks
GAP: Final = 2  # width between two columns of a table
TABLE_WIDTH_MAX = 1000  # wider than any table
PIPE_WIDTH = 160  # width of a table without a terminal
LINES_SHOWN_MAX: Final = 20  # of a list below its heading

size = size_text  # used for every displayed size
short = short_id  # used for every displayed datanode

people = Console(
    width=None if sys.stdout.isatty() else PIPE_WIDTH, markup=False, emoji=False, highlight=False
)
aside = Console(stderr=True, markup=False, emoji=False, highlight=False)


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout: the key `schema`, then the keys of `document` by name."""
    ordered = json.loads(json.dumps(document, sort_keys=True))
    json.dump(versioned(ordered), sys.stdout, indent=2)
    sys.stdout.write("\n")


def print_table(table: Table) -> None:
    """Print a table. If the terminal is too narrow, print it in parts below each other. Each part
    begins with the columns that identify the rows."""
    wide = people.options.update(width=TABLE_WIDTH_MAX)
    natural = people.measure(table, options=wide).maximum
    last = max((len(str(cell)) for cell in table.columns[-1].cells), default=0)
    if natural - max(0, last - LAST_COLUMN_MIN) <= people.width:  # the last column may wrap
        people.print(table)
        return
    for part in parts_of(table, people.width):
        people.print(part)


def parts_of(table: Table, width: int) -> list[Table]:
    """Divide a table by columns into tables that are no wider than `width`, if possible. Each
    begins with the columns that identify the rows."""
    cells = [[str(cell) for cell in column.cells] for column in table.columns]
    headers = [str(column.header) for column in table.columns]
    widths = [
        max([len(header), *map(len, column)]) + GAP
        for header, column in zip(headers, cells, strict=True)
    ]
    keys = [0] if len(set(cells[0])) == len(cells[0]) else [0, 1]
    room = width - sum(widths[key] for key in keys)
    parts: list[list[int]] = []
    left = 0
    for number in range(len(keys), len(headers)):
        if not any(cells[number]):
            continue  # leave out an empty column
        if not parts or widths[number] > left:
            parts.append([])
            left = room
        parts[-1].append(number)
        left -= widths[number]
    marks = ["#" if column.justify == "right" else "" for column in table.columns]
    title = str(table.title) if table.title else ""
    return [
        grid(
            title if not place else "",
            [headers[number] + marks[number] for number in (*keys, *part)],
            zip(*(cells[number] for number in (*keys, *part)), strict=True),
        )
        for place, part in enumerate(parts)
    ]


def print_line(text: str) -> None:
    """Print one line; a line break in the text is printed as its code."""
    people.print(printable(text), soft_wrap=True)


def say_lines(text: str) -> None:
    """Print lines that contain no text from disks or the wire."""
    for line in text.split("\n"):
        print_line(line)


def error_facts(error: SutureError) -> dict[str, object]:
    """Return an error as JSON."""
    return {
        "code": error.code.value,
        "message": str(error),
        "hint": error.hint,
        "facts": error.facts,
    }


def fail(error: SutureError, *, as_json: bool) -> None:
    """Print an error: as JSON on stdout, or as text on stderr."""
    if as_json:
        print_json({"error": error_facts(error)})
        return
    complain(f"error: {error} [{error.code.value}]")
    if error.hint:
        print_note(f"hint: {error.hint}")


def fail_usage(message: str, hint: str, *, as_json: bool) -> None:
    """Print an error of the command line: as JSON on stdout, or as text on stderr."""
    if as_json:
        print_json({"error": {"code": "USAGE", "message": message, "hint": hint, "facts": {}}})
        return
    complain(f"error: {message}")
    print_note(f"hint: {hint}")


def complain(text: str) -> None:
    """Print a one-line error on stderr."""
    aside.print(printable(text), style="bold red", soft_wrap=True)


def print_note(text: str) -> None:
    """Print a one-line remark on stderr."""
    aside.print(printable(text), soft_wrap=True)


def print_waiting_once(whom: str = "the control plane") -> Callable[[SutureError], None]:
    """Return a callback that prints once on stderr why the command is waiting."""
    told: list[str] = []

    def print_once(error: SutureError) -> None:
        if not told:
            print_note(f"waiting for {whom}: {error}")
        told.append(str(error))

    return print_once


def print_rows(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = ""
) -> None:
    """Print a table; a column whose name ends in `#` is a number, aligned right."""
    print_table(grid(title, columns, rows))


def grid(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table; a column whose name ends in `#` is a number, aligned right."""
    table = Table(
        title=Text(printable(title)) if title else None,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for column in columns:
        table.add_column(
            column.rstrip("#"), justify="right" if column.endswith("#") else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*[Text(printable(str(cell))) for cell in row])
    return table


def print_list(what: str, lines: Sequence[str]) -> None:
    """Print the first lines under a heading with their total number; --json has all lines. Print
    nothing if there are none."""
    if lines:
        print_line(f"{what}: {len(lines)}")
    for line in lines[:LINES_SHOWN_MAX]:
        print_line(f"  {line}")
    if len(lines) > LINES_SHOWN_MAX:
        print_line(f"  and {len(lines) - LINES_SHOWN_MAX} more; --json lists all")


@contextmanager
def bytes_progress(label: str, total_bytes: int) -> Iterator["Progress"]:
    """Show a progress bar of bytes on stderr during the block; task 0 is the bar."""
    from rich import progress  # not imported for quick answers without a bar

    columns = (
        *(progress.BarColumn(), progress.DownloadColumn(binary_units=True)),
        *(progress.TransferSpeedColumn(), progress.TimeRemainingColumn()),
    )
    with _bar(label, total_bytes, *columns) as bar:
        yield bar


@contextmanager
def items_progress(label: str, total: int) -> Iterator["Progress"]:
    """Show a progress bar of items on stderr during the block; task 0 is the bar."""
    from rich import progress

    columns = progress.BarColumn(), progress.MofNCompleteColumn(), progress.TimeRemainingColumn()
    with _bar(label, total, *columns) as bar:
        yield bar


@contextmanager
def _bar(label: str, total: int, *columns: Any) -> Iterator["Progress"]:
    from rich.progress import Progress, TextColumn

    label_column = TextColumn("{task.description}", markup=False)
    is_hidden = is_json() or not aside.is_terminal
    with Progress(
        label_column, *columns, console=aside, transient=True, disable=is_hidden
    ) as progress:
        progress.add_task(printable(label), total=total)
        yield progress


def pluralize(count: int, noun: str) -> str:
    """Return a count with its noun: `1 file`, `2 files`."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def checksum(value: int | None) -> str:
    """Return a root or checksum in hex; a missing one is a dash, never zero."""
    return "-" if value is None else f"{value:016x}"


def ago(at_ms: int) -> str:
    """Return the time since `at_ms` in words; `never` for 0."""
    return "never" if not at_ms else f"{format_duration(max(0.0, time.time() - at_ms / 1000))} ago"
