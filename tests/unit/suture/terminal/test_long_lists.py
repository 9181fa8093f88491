"""Lists that are printed page by page."""

import json
from collections.abc import Iterator

import pytest
import typer

from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.runtime.exit_codes import ExitCode
from suture.terminal.long_lists import print_json_pages, print_row_pages
from suture.terminal.output import print_json, print_rows

Capture = pytest.CaptureFixture[str]
COLUMNS = ["key", "bytes#"]


@pytest.mark.parametrize(
    "pages",
    [[], [[]], [["a"]], [["a", "b"], [], [{"x": [1, {"y": 2}], "b": "ü\n"}]]],
    ids=["no page", "an empty page", "one page", "several pages"],
)
def test_json_pages_equal_the_document_of_one_piece(
    pages: list[list[object]], capsys: Capture
) -> None:
    print_json_pages("keys", pages)
    in_pages = capsys.readouterr().out

    print_json({"keys": [item for page in pages for item in page]})
    assert capsys.readouterr().out == in_pages


def test_first_page_is_printed_before_the_second_is_fetched(capsys: Capture) -> None:
    printed: list[str] = []

    def pages() -> Iterator[list[str]]:
        yield ["first"]
        printed.append(capsys.readouterr().out)
        yield ["second"]

    print_json_pages("keys", pages())
    print_row_pages(COLUMNS, ([(key, 1) for key in page] for page in pages()))

    assert len(printed) == 2
    assert all("first" in text for text in printed)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnavailableError(Code.UNAVAILABLE, "gone"), ExitCode.UNAVAILABLE),
        (RefusedError(Code.SAFE_MODE, "no"), ExitCode.FAILED),
    ],
)
def test_json_of_a_list_that_breaks_off_ends_with_the_error(
    error: SutureError, code: ExitCode, capsys: Capture
) -> None:
    def pages() -> Iterator[list[int]]:
        yield [0, 1]
        raise error

    with pytest.raises(typer.Exit) as ended:
        print_json_pages("keys", pages())

    document = json.loads(capsys.readouterr().out)
    assert (code, [0, 1]) == (ended.value.exit_code, document["keys"])
    assert (1, error.code.value) == (document["schema"], document["error"]["code"])


def test_json_of_a_list_without_a_first_page_is_not_begun(capsys: Capture) -> None:
    def pages() -> Iterator[list[int]]:
        raise UnavailableError(Code.UNAVAILABLE, "gone")
        yield []

    with pytest.raises(UnavailableError, match="gone"):
        print_json_pages("keys", pages())

    assert capsys.readouterr().out == ""


def test_rows_of_one_page_are_the_table_of_short_lists(capsys: Capture) -> None:
    rows = [("a", "1 KiB"), ("bbb", "22 KiB")]

    print_row_pages(COLUMNS, [rows])
    in_pages = capsys.readouterr().out

    print_rows(COLUMNS, rows)
    assert capsys.readouterr().out == in_pages


def test_rows_of_further_pages_follow_in_the_columns_of_the_first(capsys: Capture) -> None:
    print_row_pages(COLUMNS, [[("abc", "100 KiB")], [("x\n", "1 KiB"), ("longer", "22 KiB")]])

    *_, first, _, second, third = capsys.readouterr().out.splitlines()
    assert [" abc  100 KiB", " x\\x0a     1 KiB", " longer   22 KiB"] == [
        first.rstrip(),
        second,
        third,
    ]
