"""The output of commands: tables and progress as text for people, or one JSON document for
programs.

Results are printed on stdout; progress and errors are printed on stderr. Names come from disks and
from the network. Therefore, text is escaped with `suture.observe.terminal_escape` and never parsed
as markup.
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
    """Print one JSON object on stdout: the key `schema`, then the keys of `document`, sorted by
    name."""
    ordered = json.loads(json.dumps(document, sort_keys=True))
    json.dump(versioned(ordered), sys.stdout, indent=2)
    sys.stdout.write("\n")


def print_table(table: Table) -> None:
    """Print a table. If the terminal is too narrow, print groups of its columns below each other.
    Each group begins with the columns that identify the rows."""
    wide = people.options.update(width=TABLE_WIDTH_MAX)
    natural = people.measure(table, options=wide).maximum
    last = max((len(str(cell)) for cell in table.columns[-1].cells), default=0)
    if natural - max(0, last - LAST_COLUMN_MIN) <= people.width:  # the last column may wrap
        people.print(table)
        return
    for part in parts_of(table, people.width):
        people.print(part)


def parts_of(table: Table, width: int) -> list[Table]:
    """Divide the columns of a table into several tables, which are no wider than `width` if
    possible. Each table begins with the columns that identify the rows."""
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
    """Print one line on stdout. A line break in the text is printed as its code."""
    people.print(printable(text), soft_wrap=True)


def say_lines(text: str) -> None:
    """Print several lines on stdout. The text must not contain names from disks or the network."""
    for line in text.split("\n"):
        print_line(line)


def error_facts(error: SutureError) -> dict[str, object]:
    """Return the fields of an error as JSON."""
    return {
        "code": error.code.value,
        "message": str(error),
        "hint": error.hint,
        "facts": error.facts,
    }


def fail(error: SutureError, *, as_json: bool) -> None:
    """Print an error: as JSON on stdout if `as_json` is True, otherwise as text on stderr."""
    if as_json:
        print_json({"error": error_facts(error)})
        return
    complain(f"error: {error} [{error.code.value}]")
    if error.hint:
        print_note(f"hint: {error.hint}")


def fail_usage(message: str, hint: str, *, as_json: bool) -> None:
    """Print an error of the command line: as JSON on stdout if `as_json` is True, otherwise as text
    on stderr."""
    if as_json:
        print_json({"error": {"code": "USAGE", "message": message, "hint": hint, "facts": {}}})
        return
    complain(f"error: {message}")
    print_note(f"hint: {hint}")


def complain(text: str) -> None:
    """Print an error on stderr, as one line."""
    aside.print(printable(text), style="bold red", soft_wrap=True)


def print_note(text: str) -> None:
    """Print a remark on stderr, as one line."""
    aside.print(printable(text), soft_wrap=True)


def print_waiting_once(server: str = "the control plane") -> Callable[[SutureError], None]:
    """Return a function that prints on stderr why the command waits. Only its first call prints."""
    told: list[str] = []

    def print_once(error: SutureError) -> None:
        if not told:
            print_note(f"waiting for {server}: {error}")
        told.append(str(error))

    return print_once


def print_rows(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = ""
) -> None:
    """Print a table. A column whose name ends in `#` has numbers and is aligned right."""
    print_table(grid(title, columns, rows))


def grid(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table. A column whose name ends in `#` has numbers and is aligned right."""
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
    """Print the heading `what` with the number of lines, and the first lines. Print nothing if
    there are none. The option --json prints all lines."""
    if lines:
        print_line(f"{what}: {len(lines)}")
    for line in lines[:LINES_SHOWN_MAX]:
        print_line(f"  {line}")
    if len(lines) > LINES_SHOWN_MAX:
        print_line(f"  and {len(lines) - LINES_SHOWN_MAX} more; --json lists all")


@contextmanager
def bytes_progress(label: str, total_bytes: int) -> Iterator["Progress"]:
    """Show a progress bar with a number of bytes on stderr during the `with` block. The id of the
    bar's task is 0."""
    from rich import progress  # not imported for quick answers without a bar

    columns = (
        *(progress.BarColumn(), progress.DownloadColumn(binary_units=True)),
        *(progress.TransferSpeedColumn(), progress.TimeRemainingColumn()),
    )
    with _bar(label, total_bytes, *columns) as bar:
        yield bar


@contextmanager
def items_progress(label: str, total: int) -> Iterator["Progress"]:
    """Show a progress bar with a number of items on stderr during the `with` block. The id of the
    bar's task is 0."""
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
    """Return a number with its noun as text: `1 file`, `2 files`."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def checksum(value: int | None) -> str:
    """Return a root or checksum as hexadecimal text; "-" if `value` is None."""
    return "-" if value is None else f"{value:016x}"


def ago(at_ms: int) -> str:
    """Return the time since `at_ms` as text, such as `5 min ago`; `never` if `at_ms` is 0."""
    return "never" if not at_ms else f"{format_duration(max(0.0, time.time() - at_ms / 1000))} ago"
