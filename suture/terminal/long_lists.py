"""Prints lists of any length page by page, so that the first rows appear at once and little memory
is used.

As text, the first page is a table, and the rows of further pages follow in its columns. With
`--json`, the document has the same form as for a short list, and is written item by item.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import typer

from suture.errors import SutureError
from suture.observe.json_schema import JSON_SCHEMA
from suture.observe.terminal_escape import printable
from suture.runtime.exit_codes import exit_code_of_error
from suture.terminal.output import GAP, error_facts, people, print_rows

Row = Sequence[object]


def print_row_pages(columns: Sequence[str], pages: Iterable[Sequence[Row]]) -> None:
    """Print the rows of all pages. A column whose name ends in `#` has numbers and is aligned
    right.

    The columns of a page are at least as wide as those of the previous page.
    """
    widths = [len(column.rstrip("#")) for column in columns]
    marks = [column.endswith("#") for column in columns]
    for number, page in enumerate(pages):
        cells = [[printable(str(cell)) for cell in row] for row in page]
        if number == 0:
            print_rows(columns, page)
        for row in cells:
            widths = [max(width, len(cell)) for width, cell in zip(widths, row, strict=True)]
        for row in cells if number else ():
            aligned = [
                cell.rjust(width) if is_number else cell.ljust(width)
                for cell, width, is_number in zip(row, widths, marks, strict=True)
            ]
            people.file.write(" " + (" " * GAP).join(aligned).rstrip() + "\n")
        people.file.flush()


def print_json_pages(name: str, pages: Iterable[Iterable[Any]]) -> None:
    """Print the items of all pages as one JSON document `{"schema": 1, NAME: [...]}`, in the format
    of `print_json`.

    If the first page cannot be fetched, nothing is printed, and SutureError is raised. If a later
    page cannot be fetched, the document ends with the key `error`, and the command exits with the
    exit code of that error.
    """
    rest = iter(pages)
    first = list(next(rest, ()))
    sys.stdout.write(f'{{\n  "schema": {JSON_SCHEMA},\n  {json.dumps(name)}: [')
    comma, end = "", "]\n}\n"
    code = None
    try:
        for page in chain([first], rest):
            for item in page:
                lines = json.dumps(item, indent=2, sort_keys=True).replace("\n", "\n    ")
                sys.stdout.write(f"{comma}\n    {lines}")
                comma = ","
            sys.stdout.flush()
    except SutureError as error:
        code = exit_code_of_error(error)
        told = json.dumps(error_facts(error), indent=2, sort_keys=True).replace("\n", "\n  ")
        end = f'],\n  "error": {told}\n}}\n'
    sys.stdout.write(("\n  " if comma else "") + end)
    if code is not None:
        raise typer.Exit(code)
