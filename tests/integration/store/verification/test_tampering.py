"""Whatever is done to a verification log of real scans, repairs and deletes is found."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Final

import pytest

from agent.store.verification_log.chain import (
    ChainFault,
    EntryKind,
    Head,
    check,
    decode,
    encode,
    entries,
    file_name,
)
from agent.store.verification_log.log_reader import Files, read_log
from merkle.replica import BlockId, ContainerId
from tests.support.storage.stored_replica import CONTAINER, StoredReplica

TRIED_COUNT: Final = 10_000
SEED: Final = 24
FILE_BYTES: Final = 2_048  # so that a short log has many files
ROUNDS: Final = 12
OTHERS: Final = (ContainerId(2), ContainerId(3))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Files]:
    """Return the log of a volume that was scanned, damaged, repaired and partly deleted."""
    path = tmp_path_factory.mktemp("log") / "volume"
    replica = StoredReplica(path)
    replica.options = replace(replica.options, verification_file_bytes_max=FILE_BYTES)
    replica.close()
    replica.reopen()
    for container_id in (CONTAINER, *OTHERS):
        replica.create(container_id, blocks=2)
    for _ in range(ROUNDS):
        replica.scan()
    good = replica.file(1).read_bytes()
    block = replica.store.view(CONTAINER).block(BlockId(1))
    replica.flip(1, 100)
    replica.scan()
    chunk = block.chunks[0]
    replica.store.repair(CONTAINER).install_chunk(BlockId(1), chunk, good[: chunk.length_bytes])
    replica.scan()
    replica.store.delete_container(OTHERS[0], force=True)
    replica.scan()
    replica.close()
    yield read_log(path)
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def head(written: Files) -> Head:
    """Return where the log ends, as it was told elsewhere."""
    return check(written).head


class TestWhatIsTold:
    """A log of real work."""

    def test_log_of_real_work_is_whole_and_has_several_files(
        self, written: Files, head: Head
    ) -> None:
        """The hash chain has no gap."""
        checked = check(written, [head])

        assert checked.gap is None
        assert checked.anchors_held == 1
        assert len(written) > 3

    def test_log_has_all_work_in_order(self, written: Files) -> None:
        """The order is verdicts, repair, the verdict that proves it, delete, verdict."""
        told = [one.facts for one in entries(written) if one.facts["kind"] != EntryKind.FILE]
        words = [one.get("verdict", one["kind"]) for one in told]

        assert ["healthy"] * ROUNDS == words[:ROUNDS]
        assert ["damaged", "repair", "healthy", "delete", "healthy"] == words[ROUNDS:]

    def test_a_verdict_says_what_was_read(self, written: Files) -> None:
        """The entry has the container, the root, the generation, the bytes and the thread."""
        verdict = next(
            one.facts for one in entries(written) if one.facts["kind"] == EntryKind.VERDICT
        )

        assert verdict["container_id"] == CONTAINER
        assert verdict["bytes_read"] > 0
        assert len(verdict["root"]) == 16
        assert verdict["by"] == "MainThread"
        assert verdict["whole"] is True


def lines_of(files: Files) -> list[list[bytes]]:
    return [content.splitlines(keepends=True) for _, content in files]


def again(files: Files, lines: list[list[bytes]]) -> Files:
    return [(name, b"".join(of)) for (name, _), of in zip(files, lines, strict=True)]


def place(dice: Random, lines: list[list[bytes]]) -> tuple[int, int]:
    file = dice.randrange(len(lines))
    return file, dice.randrange(len(lines[file]))


def flip_a_bit(dice: Random, files: Files) -> Files:
    """Edit: one bit of one byte."""
    file = dice.randrange(len(files))
    name, content = files[file]
    at = dice.randrange(len(content))
    flipped = content[:at] + bytes([content[at] ^ 1 << dice.randrange(8)]) + content[at + 1 :]
    return [*files[:file], (name, flipped), *files[file + 1 :]]


def edit_and_seal(dice: Random, files: Files) -> Files:
    """Edit: another body, with a hash that fits it."""
    lines = lines_of(files)
    file, line = place(dice, lines)
    entry = decode(lines[file][line][:-1])
    assert entry is not None
    facts = {**entry.facts, "at_ms": entry.facts["at_ms"] + dice.randint(1, 10**9)}
    lines[file][line] = encode(Head(entry.number - 1, entry.previous), facts)[0]
    return again(files, lines)


def remove_lines(dice: Random, files: Files) -> Files:
    """Remove some entries that follow each other."""
    lines = lines_of(files)
    file, line = place(dice, lines)
    del lines[file][line : line + dice.randint(1, 3)]
    return again(files, lines)


def remove_a_file(dice: Random, files: Files) -> Files:
    """Remove a file, the first and the last as well."""
    gone = dice.randrange(len(files))
    return files[:gone] + files[gone + 1 :]


def swap_lines(dice: Random, files: Files) -> Files:
    """Reorder: two entries change places."""
    lines = lines_of(files)
    one, other = place(dice, lines), place(dice, lines)
    while one == other:
        other = place(dice, lines)
    a, b = lines[one[0]][one[1]], lines[other[0]][other[1]]
    lines[one[0]][one[1]], lines[other[0]][other[1]] = b, a
    return again(files, lines)


def swap_files(dice: Random, files: Files) -> Files:
    """Reorder: two files change names."""
    one, other = dice.sample(range(len(files)), 2)
    swapped = list(files)
    swapped[one] = (files[one][0], files[other][1])
    swapped[other] = (files[other][0], files[one][1])
    return swapped


def repeat_a_line(dice: Random, files: Files) -> Files:
    """Duplicate: an entry, anywhere."""
    lines = lines_of(files)
    file, line = place(dice, lines)
    to, at = place(dice, lines)
    lines[to].insert(at, lines[file][line])
    return again(files, lines)


def truncate(dice: Random, files: Files) -> Files:
    """Cut the end of the log off, at a byte or at an entry."""
    file = dice.randrange(len(files))
    name, content = files[file]
    kept = content[: dice.randrange(len(content))]
    if dice.random() < 0.5:
        kept = kept[: kept.rfind(b"\n") + 1]
    return [*files[:file], (name, kept)]


def write_all_anew(dice: Random, files: Files) -> Files:
    """Edit: one body, and the hashes of all that follows, so that the chain holds."""
    lines = lines_of(files)
    chosen = place(dice, lines)
    head = Head()
    for file, of in enumerate(lines):
        for at, line in enumerate(of):
            entry = decode(line[:-1])
            assert entry is not None
            facts = dict(entry.facts)
            if (file, at) == chosen:
                facts["at_ms"] += 1
            of[at], head = encode(head, facts)
    return again(files, lines)


def whole(files: Files) -> bytes:
    """Return all of a log."""
    return b"".join(content for _, content in files)


def sealed_anew(files: Files) -> Files:
    """Write what is left with numbers and hashes that fit, from the first entry to the last."""
    head, sealed = Head(), list[tuple[str, bytes]]()
    for _, content in files:
        name, of = file_name(head.count + 1), b""
        for line in content.split(b"\n"):
            if (entry := decode(line)) is not None:
                line, head = encode(head, entry.facts)
                of += line
        if of:
            sealed.append((name, of))
    return sealed


WAYS: Final[tuple[Callable[[Random, Files], Files], ...]] = (
    flip_a_bit,
    edit_and_seal,
    remove_lines,
    remove_a_file,
    swap_lines,
    swap_files,
    repeat_a_line,
    truncate,
    write_all_anew,
)
FAULTS: Final = {
    flip_a_bit: {ChainFault.EDITED, ChainFault.TORN},
    swap_lines: {ChainFault.REORDERED, ChainFault.REWRITTEN, ChainFault.REMOVED},
    repeat_a_line: {ChainFault.REPEATED, ChainFault.REORDERED, ChainFault.REMOVED},
    write_all_anew: {ChainFault.REWRITTEN},
    truncate: {ChainFault.TRUNCATED, ChainFault.TORN},
}


class TestTampering:
    """A log that is not what was written."""

    def test_every_change_is_found(self, written: Files, head: Head) -> None:
        """There are 10,000 random changes of all kinds, places and extents."""
        dice = Random(SEED)
        missed = []
        for number in range(TRIED_COUNT):
            way = WAYS[number % len(WAYS)]
            changed = way(dice, written)
            assert changed != written, "nothing was changed: this proves nothing"
            gap = check(changed, [head]).gap
            if gap is None or gap.fault not in FAULTS.get(way, set(ChainFault)):
                missed.append((number, way.__name__, gap))

        assert missed == []

    def test_every_change_is_found_by_the_anchors_of_some_days(
        self, written: Files, head: Head
    ) -> None:
        """There are 10,000 changes, and anchors from several days. Half of the changes rewrite
        the hash chain. Entries appended behind the last anchor change nothing that was anchored.
        """
        heads = [Head(one.number, one.checksum) for one in entries(written)]
        dice = Random(SEED + 1)
        missed, longer_count = [], 0
        for number in range(TRIED_COUNT):
            told = [*dice.sample(heads, dice.randint(0, 3)), head]
            way = WAYS[number % len(WAYS)]
            changed = way(dice, written)
            if number % 2:
                changed = sealed_anew(changed)
            is_only_longer = whole(changed).startswith(whole(written))
            if not is_only_longer and check(changed, told).gap is None:
                missed.append((number, way.__name__))

            longer_count += is_only_longer

        assert missed == []
        assert longer_count < TRIED_COUNT / 100

    def test_only_an_anchor_shows_what_was_written_anew(self, written: Files, head: Head) -> None:
        """A writer of the file can rewrite the whole chain, so the chain alone is no proof."""
        anew = write_all_anew(Random(SEED), written)

        assert check(anew).gap is None
        assert check(anew, [head]).gap is not None

    def test_the_entry_is_named(self, written: Files) -> None:
        """Its number, file and line."""
        name, content = written[1]
        first, second, *rest = content.splitlines(keepends=True)
        edited = first + second.replace(b'"at_ms":1', b'"at_ms":2', 1) + b"".join(rest)
        number = int(name.removesuffix(".log")) + 1

        gap = check([written[0], (name, edited), *written[2:]]).gap

        assert gap is not None
        assert (ChainFault.EDITED, number, name, 2) == (gap.fault, gap.number, gap.file, gap.line)
