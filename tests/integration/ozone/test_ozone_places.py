"""What stands in each place of a volume of Ozone, with rows in the database and without: the
verdict of each combination (ozone.scrub.places)."""

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent.cli.main import run
from ozone.disk.layout import find_volume
from ozone.scrub.history import History
from ozone.scrub.places import RULES, FileKind, PathRole, PathVerdict
from ozone.scrub.result import ScrubStatus
from ozone.scrub.scrub import ScrubOptions
from ozone.scrub.store import OzoneStore
from scanner.finding import DamageFault
from suture.runtime.clock import SystemClock
from suture.runtime.exit_codes import ExitCode
from tests.support.ozone.ozone_scrubs import once, scrubbed
from tests.support.ozone.ozone_volumes import MadeVolume

ROOT = Path(__file__).resolve().parents[3]
SUBJECT, BLOCK = 2, 20
DATA = b"block" * 1_000

WHOLE, DAMAGED, DOUBTFUL = ScrubStatus.WHOLE, ScrubStatus.DAMAGED, ScrubStatus.DOUBTFUL
MISSING, NOT_READ, SKIPPED = ScrubStatus.MISSING, ScrubStatus.NOT_READ, ScrubStatus.SKIPPED
NO_CHUNKS, NO_FILE = DamageFault.CHUNKS_DIRECTORY_MISSING, DamageFault.BLOCK_FILE_MISSING
NO_DESCRIPTOR, BAD_DESCRIPTOR = DamageFault.DESCRIPTOR_MISSING, DamageFault.DESCRIPTOR_DAMAGED
FOREIGN, LINKED = DamageFault.FOREIGN_FILE, DamageFault.BLOCK_FILE_LINK

Cell = tuple[ScrubStatus, set[DamageFault]] | None

# By place and kind: what is said without rows, and with them; None where nothing is.
CELLS: dict[tuple[PathRole, FileKind], tuple[Cell, Cell]] = {
    (PathRole.CONTAINER, FileKind.NOTHING): (None, (MISSING, set())),
    (PathRole.CONTAINER, FileKind.EMPTY): ((SKIPPED, set()), (MISSING, set())),
    (PathRole.CONTAINER, FileKind.DIRECTORY): ((WHOLE, set()), (WHOLE, set())),
    (PathRole.CONTAINER, FileKind.FILE): ((NOT_READ, set()), (MISSING, set())),
    (PathRole.CONTAINER, FileKind.LINK): ((WHOLE, set()), (WHOLE, set())),
    (PathRole.CONTAINER, FileKind.OTHER): ((NOT_READ, set()), (MISSING, set())),
    (PathRole.DESCRIPTOR, FileKind.NOTHING): (
        (DAMAGED, {NO_DESCRIPTOR}),
        (DAMAGED, {NO_DESCRIPTOR}),
    ),
    (PathRole.DESCRIPTOR, FileKind.DIRECTORY): (
        (DAMAGED, {BAD_DESCRIPTOR}),
        (DAMAGED, {BAD_DESCRIPTOR}),
    ),
    (PathRole.DESCRIPTOR, FileKind.FILE): ((WHOLE, set()), (WHOLE, set())),
    (PathRole.DESCRIPTOR, FileKind.LINK): ((WHOLE, set()), (WHOLE, set())),
    (PathRole.DESCRIPTOR, FileKind.OTHER): (
        (DAMAGED, {BAD_DESCRIPTOR}),
        (DAMAGED, {BAD_DESCRIPTOR}),
    ),
    (PathRole.TREE, FileKind.NOTHING): (
        (WHOLE, {DamageFault.TREE_MISSING}),
        (WHOLE, {DamageFault.TREE_MISSING}),
    ),
    (PathRole.TREE, FileKind.DIRECTORY): (
        (WHOLE, {DamageFault.TREE_DAMAGED}),
        (WHOLE, {DamageFault.TREE_DAMAGED}),
    ),
    (PathRole.TREE, FileKind.FILE): ((WHOLE, set()), (DOUBTFUL, set())),  # it is one without blocks
    (PathRole.TREE, FileKind.LINK): ((WHOLE, set()), (DOUBTFUL, set())),
    (PathRole.TREE, FileKind.OTHER): (
        (WHOLE, {DamageFault.TREE_DAMAGED}),
        (WHOLE, {DamageFault.TREE_DAMAGED}),
    ),
    (PathRole.CHUNKS, FileKind.NOTHING): ((WHOLE, set()), (DAMAGED, {NO_CHUNKS, NO_FILE})),
    (PathRole.CHUNKS, FileKind.DIRECTORY): ((WHOLE, set()), (WHOLE, set())),
    (PathRole.CHUNKS, FileKind.FILE): ((DAMAGED, {NO_CHUNKS}), (DAMAGED, {NO_CHUNKS, NO_FILE})),
    (PathRole.CHUNKS, FileKind.LINK): ((WHOLE, set()), (WHOLE, set())),
    (PathRole.CHUNKS, FileKind.OTHER): ((DAMAGED, {NO_CHUNKS}), (DAMAGED, {NO_CHUNKS, NO_FILE})),
    (PathRole.BLOCK, FileKind.NOTHING): ((WHOLE, set()), (DAMAGED, {NO_FILE})),
    (PathRole.BLOCK, FileKind.DIRECTORY): ((WHOLE, {FOREIGN}), (DAMAGED, {NO_FILE})),
    (PathRole.BLOCK, FileKind.FILE): ((WHOLE, {DamageFault.BLOCK_ROW_MISSING}), (WHOLE, set())),
    (PathRole.BLOCK, FileKind.LINK): ((WHOLE, {FOREIGN}), (DOUBTFUL, {LINKED})),
    (PathRole.BLOCK, FileKind.OTHER): ((WHOLE, {FOREIGN}), (DAMAGED, {NO_FILE})),
}


def unix_socket(path: Path) -> None:
    """Put a socket there, by a short name: that of a socket may have 107 bytes."""
    with socket.socket(socket.AF_UNIX) as one:
        directory = os.open(path.parent, os.O_RDONLY)
        one.bind(f"/proc/self/fd/{directory}/{path.name}")
        os.close(directory)


OTHERS: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a socket": unix_socket,
    "a symbolic link": lambda path: path.symlink_to("nowhere"),
    "a symbolic link that leads to nothing": lambda path: path.symlink_to(path.name),
}


@pytest.fixture
def made(tmp_path: Path) -> Iterator[MadeVolume]:
    """A volume with a whole container, and one that is to be changed."""
    volume = MadeVolume(tmp_path / "data")
    for number in (1, SUBJECT):
        volume.add_container(number)
    volume.add_block(1, 10, DATA)
    (volume.folder(SUBJECT) / "metadata" / "note").write_bytes(b"so that it is not empty")
    yield volume
    volume.close()


def path_of(made: MadeVolume, place: PathRole) -> Path:
    """Return where the place is."""
    return {
        PathRole.CONTAINER: made.folder(SUBJECT),
        PathRole.DESCRIPTOR: made.descriptor(SUBJECT),
        PathRole.TREE: made.tree(SUBJECT),
        PathRole.CHUNKS: made.folder(SUBJECT) / "chunks",
        PathRole.BLOCK: made.file(SUBJECT, BLOCK),
    }[place]


def put(path: Path, kind: FileKind, aside: Path, other: str) -> None:
    """Have something of this kind stand there instead of what belongs there, which does now."""
    belongs = FileKind.DIRECTORY if path.is_dir() else FileKind.FILE
    if kind is belongs:
        return
    path.rename(aside)
    if kind is FileKind.LINK:
        path.symlink_to(aside)
    elif kind is FileKind.EMPTY:
        (path / "metadata").mkdir(parents=True)
    elif kind is FileKind.DIRECTORY:
        path.mkdir()
    elif kind is FileKind.FILE:
        path.write_bytes(b"a file")
    elif kind is FileKind.OTHER:
        OTHERS[other](path)


@pytest.mark.parametrize("has_rows", [False, True], ids=["no rows", "rows"])
@pytest.mark.parametrize(
    ("place", "kind", "other"),
    [
        (place, kind, other)
        for place, kind in CELLS
        for other in (OTHERS if kind is FileKind.OTHER else [""])
    ],
)
def test_contents_of_each_place_have_the_expected_verdict(
    made: MadeVolume, tmp_path: Path, place: PathRole, kind: FileKind, other: str, has_rows: bool
) -> None:
    """The other container is scrubbed whatever is found there, and the messages name it."""
    if has_rows:
        made.add_block(SUBJECT, BLOCK, DATA)
    elif place is PathRole.BLOCK:
        made.add_block(SUBJECT, BLOCK + 1, DATA)
        made.file(SUBJECT, BLOCK).write_bytes(DATA)
    if place is PathRole.TREE:
        made.put_tree(SUBJECT, {})
    put(path_of(made, place), kind, tmp_path / "aside", other)

    results = scrubbed(ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state"))

    result, expected = results.get(SUBJECT), CELLS[place, kind][has_rows]
    if expected is None:
        assert result is None
        return
    assert result is not None
    status, faults = expected
    found = {item.fault for item in result.findings}
    if place is not PathRole.TREE:
        found -= {DamageFault.TREE_MISSING}
    assert (status, faults) == (result.status, found)
    assert WHOLE is results[1].status
    if kind is FileKind.OTHER:
        said = [result.why, *(item.evidence for item in result.findings), *result.caveats()]
        assert [] != [text for text in said if other in text or path_of(made, place).name in text]


def test_the_table_of_verdicts_is_the_one_that_was_tried() -> None:
    """Every cell has a test, and none disagrees."""
    standing_of = {PathVerdict.SILENT: {None, WHOLE}, PathVerdict.READ: {WHOLE, DOUBTFUL}}
    standing_of[PathVerdict.NOTED] = {WHOLE}
    cells = {
        (place, kind, has_rows): rule
        for place, kinds in RULES.items()
        for kind, pair in kinds.items()
        for has_rows, rule in zip((False, True), pair, strict=True)
    }

    assert CELLS.keys() == {(place, kind) for place, kind, _ in cells}
    for (place, kind, has_rows), rule in cells.items():
        status, faults = CELLS[place, kind][has_rows] or (None, set())
        wanted = standing_of.get(rule.ruling) or {ScrubStatus(rule.ruling.value)}
        assert status in wanted, (place, kind, has_rows)
        assert rule.fault is None or rule.fault in faults, (place, kind, has_rows)


def table() -> str:
    """Return the table of the document."""

    def said(place: PathRole, kind: FileKind, has_rows: bool) -> str:
        rule = RULES[place][kind][has_rows]
        return f"{rule.ruling.value} {rule.fault.value}" if rule.fault else rule.ruling.value

    lines = ["| place | what stands there | no rows | rows |", "|---|---|---|---|"]
    lines += [
        f"| {place.value} | {kind.value} | {said(place, kind, False)} | {said(place, kind, True)} |"
        for place, kinds in RULES.items()
        for kind in kinds
    ]
    return "\n".join(lines)


def test_the_document_has_the_table_of_verdicts() -> None:
    """
    An operator finds each combination there.
    """
    assert table() in (ROOT / "docs" / "OZONE_REFERENCE.md").read_text(), table()


def test_a_container_whose_directory_went_after_it_was_read_is_missing(
    made: MadeVolume, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    That it was whole once is no success: the exit code is that of damage, and the container is not
    forgotten.
    """
    made.add_block(SUBJECT, BLOCK, DATA)
    command = ["ozone", "scrub", str(made.root), "--state-dir", str(tmp_path / "state")]
    codes = [run(command)]
    shutil.rmtree(made.folder(SUBJECT))

    codes += [run(command), run([*command, "--container", str(SUBJECT)])]

    said = capsys.readouterr().out
    assert [ExitCode.OK, ExitCode.TO_DO, ExitCode.TO_DO] == codes
    assert "container 2: MISSING: nothing is at " in said
    assert "2 containers: 1 WHOLE, 1 MISSING" in said


def test_a_directory_of_containers_that_is_a_file_leaves_its_containers_missing(
    made: MadeVolume, tmp_path: Path
) -> None:
    """
    All of containerDir1 is gone; the containers of containerDir0 are read.
    """
    made.add_container(512)
    made.add_block(512, 1, DATA)
    folder = made.folder(512).parent
    shutil.rmtree(folder)
    folder.write_bytes(b"a file")

    results = scrubbed(ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state"))

    assert {1: WHOLE, 2: WHOLE, 512: MISSING} == {
        number: result.status for number, result in results.items()
    }


@pytest.mark.parametrize("is_first", [False, True])
def test_a_container_that_ozone_deletes_is_not_missing(
    made: MadeVolume, tmp_path: Path, is_first: bool
) -> None:
    """
    A datanode moves the directory to tmp/deleted-containers and removes the rows, in the order of
    its version: both are seen half done, before a round and in it.
    """
    made.add_block(SUBJECT, BLOCK, DATA)
    deleted = made.root / "hdds" / "CID-made" / "tmp" / "deleted-containers"
    deleted.mkdir(parents=True)

    def delete() -> None:
        made.folder(SUBJECT).rename(deleted / str(SUBJECT))

    if is_first:
        delete()
    wish = ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state")
    results = scrubbed(wish, once(lambda: None if is_first else delete()))

    assert MISSING not in {result.status for result in results.values()}
    assert MISSING not in {result.status for result in scrubbed(wish).values()}


def test_rows_of_a_database_that_cannot_be_read_are_not_taken_for_none(
    made: MadeVolume, tmp_path: Path
) -> None:
    """An empty directory may be all that is left of a container, so it gets no verdict."""
    put(made.folder(SUBJECT), FileKind.EMPTY, tmp_path / "aside", "")
    (made.database / "CURRENT").write_bytes(b"garbage")

    results = scrubbed(ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state"))

    assert [NOT_READ, NOT_READ] == [results[number].status for number in (1, SUBJECT)]
    assert str(made.database) in results[SUBJECT].why


def test_bad_bytes_behind_a_link_are_damage(made: MadeVolume, tmp_path: Path) -> None:
    """
    A link to good bytes costs a look, one to others is as bad as a file of them.
    """
    made.add_block(SUBJECT, BLOCK, DATA)
    put(made.file(SUBJECT, BLOCK), FileKind.LINK, tmp_path / "aside", "")
    (tmp_path / "aside").write_bytes(DATA[::-1])

    result = scrubbed(ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state"))[SUBJECT]

    assert DAMAGED is result.status
    assert {DamageFault.CHUNK_CHECKSUM, LINKED, DamageFault.TREE_MISSING} == {
        item.fault for item in result.findings
    }
    assert f"1 block files are symbolic links: a symbolic link to {tmp_path / 'aside'}" in (
        result.caveats()
    )


def test_rows_that_went_with_the_directory_are_looked_up_again(
    made: MadeVolume, tmp_path: Path
) -> None:
    """
    A view of the database may be a minute old, and has the rows of a container deleted since.
    """
    made.add_block(SUBJECT, BLOCK, DATA)
    (tmp_path / "scratch").mkdir()
    with closing(History(tmp_path / "history.sqlite")) as history:
        volume, scratch = find_volume(made.root), tmp_path / "scratch"
        store = OzoneStore(volume, history, scratch, SystemClock(), database=made.database)
        before = store.listing()
        shutil.rmtree(made.folder(SUBJECT))
        made.drop_row(SUBJECT, BLOCK)

        after = store.listing()

    assert [1, SUBJECT] == [item.paths.container_id for item in before.replicas]
    assert ([1], ()) == ([item.paths.container_id for item in after.replicas], after.refused)
