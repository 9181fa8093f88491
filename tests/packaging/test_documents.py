"""The documents are true: links resolve, named files exist, named commands and options work."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.manual.reading import CONTENTS, MANUAL, pages
from tests.support.packaging.commands import faults_of

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("docs", "deploy")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(p for f in FOLDERS for p in (ROOT / f).rglob("*.md"))])
DECISIONS = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
DECISION_PARTS = ["Context", "Options", "Decision", "What it costs"]

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
CODE_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CODE_SPAN = re.compile(r"`([^`\n]+)`")
FILE_NAME = re.compile(r"[\w.-]+(/[\w.-]+)*/?")
PAGE_LINES_MAX = 250
HOW_TO_PAGES = [*pages(), ROOT / "docs" / "OZONE.md", ROOT / "docs" / "OZONE_SECURITY.md"]
TASKS = (
    "throttle",
    "bandwidth",
    "add a datanode",
    "replace a disk",
    "upgrade",
    "back up",
    "restore",
)
MADE_BY_RUNNING = ("bench/out", "suture/wire/v1/__pycache__")


def name_of(path: Path) -> str:
    """Return the path from the top of the repository."""
    return str(path.relative_to(ROOT))


def prose(document: Path) -> str:
    """Return the document without its code blocks."""
    return CODE_BLOCK.sub("", document.read_text())


def anchors(document: Path) -> set[str]:
    """Return the names that a link can point to: the headings, in lower case with hyphens."""
    headings = HEADING.findall(prose(document))
    return {re.sub(r"[^\w\- ]", "", text).strip().lower().replace(" ", "-") for text in headings}


def broken_links(document: Path) -> Iterator[str]:
    """Yield the links that lead nowhere; links to other sites are not followed."""
    for target in LINK.findall(prose(document)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        resolved = (document.parent / path).resolve() if path else document
        if not resolved.exists() or (anchor and anchor not in anchors(resolved)):
            yield target


def missing_files(document: Path) -> Iterator[str]:
    """Yield the files of this repository that a document names and that do not exist."""
    tops = {path.name for path in ROOT.iterdir()}
    for span in CODE_SPAN.findall(prose(document)):
        is_ours = FILE_NAME.fullmatch(span) and "/" in span and span.split("/")[0] in tops
        if is_ours and not span.startswith(MADE_BY_RUNNING) and not (ROOT / span).exists():
            yield span


def commands(document: Path) -> Iterator[str]:
    """Yield every command that the document tells its reader to type."""
    for language, block in CODE_BLOCK.findall(document.read_text()):
        if language == "console":
            for line in block.splitlines():
                if line.startswith(("$ ", "# ")):
                    yield line[2:]
    yield from (span for span in CODE_SPAN.findall(prose(document)) if " " in span)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_resolve(document: Path) -> None:
    """
    A link to a file or a heading of this repository leads there.
    """
    assert [] == list(broken_links(document))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_named_files_exist(document: Path) -> None:
    """
    A document that names a file of this repository names one that is there.
    """
    assert [] == list(missing_files(document))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_named_commands_exist(document: Path) -> None:
    """
    Every command, subcommand and long option that a document names is offered by the program.
    """
    faults = [fault for command in commands(document) for fault in faults_of(command)]

    assert [] == faults


def test_table_of_contents_lists_every_page_of_the_manual() -> None:
    """The pages in the folder are those that the table of contents links to."""
    assert sorted(MANUAL.rglob("*.*")) == sorted(pages())


@pytest.mark.parametrize("page", HOW_TO_PAGES, ids=name_of)
def test_page_for_a_task_is_short_and_has_one_title(page: Path) -> None:
    """A page begins with its only title, and has a bounded number of lines."""
    text = prose(page)

    assert text.startswith("# ")
    assert 1 == len(re.findall("^# ", text, re.MULTILINE))
    assert PAGE_LINES_MAX >= page.read_text().count("\n")


@pytest.mark.parametrize("task", TASKS)
def test_table_of_contents_names_the_task(task: str) -> None:
    """An operator who searches the table of contents for the usual word finds the page."""
    assert task in CONTENTS.read_text().lower()


def test_decisions_are_numbered_without_gaps() -> None:
    """
    Decision records count up from 0001, so that a missing one is noticed.
    """
    numbers = [int(path.name.split("-")[0]) for path in DECISIONS]

    assert list(range(1, len(DECISIONS) + 1)) == numbers
    assert numbers


@pytest.mark.parametrize("decision", DECISIONS, ids=name_of)
def test_a_decision_says_what_it_costs(decision: Path) -> None:
    """
    Every record has the same four parts; the last one keeps us honest.
    """
    headings = [text for text in HEADING.findall(prose(decision)) if text in DECISION_PARTS]

    assert DECISION_PARTS == headings


class TestTheChecks:
    """The checks above can fail."""

    def test_a_dead_link_is_seen(self, tmp_path: Path) -> None:
        """
        A link to a missing file and one to a missing heading are both named.
        """
        document = tmp_path / "X.md"
        document.write_text("# Here\n[a](#here) [b](#there) [c](Y.md) [d](https://example.org)\n")

        assert ["#there", "Y.md"] == list(broken_links(document))

    def test_a_missing_file_is_seen(self, tmp_path: Path) -> None:
        """
        A path below a folder of ours must exist; other words with slashes are left alone.
        """
        document = tmp_path / "X.md"
        document.write_text("`suture/errors.py` `agent/nowhere.py` `bytes/second`\n")

        assert ["agent/nowhere.py"] == list(missing_files(document))

    def test_a_command_that_does_not_exist_is_seen(self, tmp_path: Path) -> None:
        """
        Unknown make targets, trials, subcommands and options are named, in blocks and in prose.
        """
        document = tmp_path / "X.md"
        document.write_text(
            "```console\n$ make everything\n$ make test\n$ ls -l\n$ make interop NAME=nosuch\n```\n"
            "`suture nosuch FILE` and `suture --nosuch` and `suture --help`\n"
        )

        faults = [fault for command in commands(document) for fault in faults_of(command)]

        expected = [
            "make has no target everything",
            "there is no trial nosuch",
            "there is no command: suture nosuch",
            "['suture'] has no --nosuch",
        ]
        assert expected == faults
