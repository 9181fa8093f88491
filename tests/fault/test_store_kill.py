"""kill -9 before every single step of every change: old state or new, never a mixture.

Each scenario is run to its first step and killed, to its second and killed, and so on to its end.
After each death the store is opened again: what was acknowledged must be there, fsck must be
content, and the same scenario must then run to its end.
"""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from agent.store.files.layout import PACK_NAME
from agent.store.recovery.fsck import FsckProblem, fsck
from agent.store.replica.descriptor import read_descriptor
from agent.store.replica_store import ReplicaStore
from merkle.replica import BlockId, ContainerId, ReplicaState
from suture.errors import RefusedError
from tests.support.faults.store_victim import (
    ARRIVED,
    BATCHES,
    BLOCKED,
    BROKEN,
    CLOSED,
    COMMANDS,
    DAMAGED,
    DOOMED,
    LATER,
    NEW,
    ONE,
    OPEN,
    PACKED,
    SCENARIOS,
    SENT,
    SMALL,
    THREE,
    TWO,
    described,
    lasting,
    live,
    open_packing,
    prepare,
)
from tests.support.storage.stores import CHUNK_BYTES, content, private_directory

pytestmark = [pytest.mark.fault, pytest.mark.slow]

STEPS_MAX: Final = 400
COMMAND_POINTS_MIN: Final = 50


@pytest.fixture(scope="module")
def prepared() -> Iterator[Path]:
    """A directory for the volumes that all lives start from, in memory where possible."""
    with private_directory() as directory:
        yield directory


def check_write(store: ReplicaStore, acknowledged: list[str]) -> None:
    """Every acknowledged chunk reads back, committed or not."""
    if "created" in acknowledged:
        assert ReplicaState.OPEN is store.replica(NEW).state
    if "first" in acknowledged:
        assert content("first") == store.view(NEW).read(ONE, 0, CHUNK_BYTES)
    if "second" in acknowledged:
        assert content("second") == store.view(NEW).read(ONE, CHUNK_BYTES, CHUNK_BYTES)
    if "block 1" in acknowledged:
        assert 2 * CHUNK_BYTES == store.view(NEW).block(ONE).length_bytes
    if "block 2" in acknowledged:
        assert LATER == store.view(NEW).read(TWO, 0, CHUNK_BYTES)
        assert 2 == store.replica(NEW).bcsid


def check_batch(store: ReplicaStore, acknowledged: list[str]) -> None:
    """Of blocks that were committed together all are there or none; none is in between."""
    assert [] == list(store.volume_set.working[0].layout.importing.iterdir())
    known = {block.block_id for block in store.view(OPEN).blocks()}
    for what, block_ids in BATCHES.items():
        assert set(block_ids) <= known or not set(block_ids) & known, what
        assert set(block_ids) <= known or what not in acknowledged
        for block_id in known & set(block_ids):
            chunks, data = described(block_id)
            assert chunks == store.view(OPEN).block(block_id).chunks
            assert data == b"".join(
                store.view(OPEN).read(block_id, chunk.offset, chunk.length_bytes)
                for chunk in chunks
            )
    assert content((1, 0)) == store.view(OPEN).read(ONE, 0, CHUNK_BYTES)


def check_rewrite(store: ReplicaStore, acknowledged: list[str]) -> None:
    """The chunk is the old one or the new one, and its neighbours are untouched."""
    data = store.view(OPEN).read(TWO, 0, CHUNK_BYTES)
    assert data in ({LATER} if acknowledged else {LATER, content(("pending", TWO))})
    assert content(("pending", ONE)) == store.view(OPEN).read(ONE, CHUNK_BYTES, CHUNK_BYTES)


def check_close(store: ReplicaStore, acknowledged: list[str]) -> None:
    """The committed block is whole; the state is one of the way."""
    facts = store.replica(OPEN)
    assert content((1, 0)) == store.view(OPEN).read(ONE, 0, CHUNK_BYTES)
    if acknowledged:
        assert ReplicaState.CLOSED is facts.state
    if facts.state is ReplicaState.OPEN:
        assert content(("pending", TWO)) == store.view(OPEN).read(TWO, 0, CHUNK_BYTES)
    if facts.state is ReplicaState.CLOSED:
        assert facts.tree == store.view(OPEN).tree().summary()
    else:
        assert facts.state in {ReplicaState.OPEN, ReplicaState.CLOSING}
    assert facts.state is read_descriptor(store.paths(OPEN).descriptor, OPEN).state


def check_repair(store: ReplicaStore, acknowledged: list[str]) -> None:
    """What was installed is whole; what was healthy is healthy; nothing else has changed."""
    for what in acknowledged:
        if what.startswith("installed"):
            block_id, offset = (int(word) for word in what.split()[1:])
            number = offset // CHUNK_BYTES
            data = store.view(DAMAGED).read(BlockId(block_id), offset, CHUNK_BYTES)
            assert content((block_id, number)) == data
    assert content((1, 1)) == store.view(DAMAGED).read(ONE, CHUNK_BYTES, CHUNK_BYTES)
    corrupt = bytearray(content((1, 0)))
    corrupt[100] ^= 0x10
    first = store.view(DAMAGED).read(ONE, 0, CHUNK_BYTES)
    assert first in {bytes(corrupt), content((1, 0))}, "old bytes or new ones"
    third = store.paths(DAMAGED).block_file(THREE).read_bytes()
    whole = content((3, 0)) + content((3, 1))
    assert third in ({whole} if "trimmed" in acknowledged else {whole, whole + b"trailing"})
    if "adopted" in acknowledged:
        assert 50 == store.view(DAMAGED).block(BlockId(9)).bcsid == store.replica(DAMAGED).bcsid


def check_scan(store: ReplicaStore, acknowledged: list[str]) -> None:
    """Tree, findings and state; the tree that is served is the one that is reported."""
    facts = store.replica(CLOSED)
    assert facts.tree == store.view(CLOSED).tree().summary()
    if acknowledged:
        assert (ReplicaState.UNHEALTHY, 1) == (facts.state, len(store.findings(CLOSED)))
    assert (facts.state is ReplicaState.UNHEALTHY) == bool(store.findings(CLOSED))
    assert facts.state is read_descriptor(store.paths(CLOSED).descriptor, CLOSED).state


def check_delete_blocks(store: ReplicaStore, acknowledged: list[str]) -> None:
    """The block is there with all its bytes, or a tombstone without any; the root is the same."""
    tree = store.view(CLOSED).tree()
    is_gone = bool(tree.deleted[tree.index_of(TWO)])
    assert is_gone or not acknowledged
    assert is_gone == (TWO in store.view(CLOSED).tombstones())
    assert is_gone == (not store.paths(CLOSED).block_file(TWO).exists())
    assert is_gone == (store.view(CLOSED).block_row(TWO) is None)
    if not is_gone:
        assert content((2, 1)) == store.view(CLOSED).read(TWO, CHUNK_BYTES, CHUNK_BYTES)
    assert content((3, 1)) == store.view(CLOSED).read(THREE, CHUNK_BYTES, CHUNK_BYTES)


def check_transactions(store: ReplicaStore, acknowledged: list[str]) -> None:
    """Of each transaction all blocks are there or none; what was acknowledged stays deleted."""
    for name, container_id, block_ids in (
        ("transaction 7", CLOSED, (TWO,)),
        ("transaction 8", DOOMED, (ONE, TWO)),
    ):
        gone = {block_id in store.view(container_id).tombstones() for block_id in block_ids}
        assert gone in ({True}, {False})
        assert gone == {True} or name not in acknowledged
        for block_id in block_ids:
            row, file = store.view(container_id).block_row(block_id), store.paths(container_id)
            assert gone == {row is None} == {not file.block_file(block_id).exists()}
        assert content((3, 1)) == store.view(container_id).read(THREE, CHUNK_BYTES, CHUNK_BYTES)


def check_arrive(store: ReplicaStore, acknowledged: list[str]) -> None:
    """The replica is there as its source is, or not at all: no row, no file, no room kept."""
    layout = store.volume_set.working[0].layout
    assert [] == list(layout.importing.iterdir())
    try:
        facts = store.replica(ARRIVED)
    except RefusedError:
        assert not acknowledged
        assert [] == list(layout.current.glob(f"*/{ARRIVED}"))
        with store.volume_set.working[0].index.read() as rows:
            assert [] == list(rows.blocks(ARRIVED)) == list(rows.journal())
        return
    assert ReplicaState.CLOSED is facts.state
    assert store.view(CLOSED).tree().root == store.view(ARRIVED).tree().root
    assert list(store.view(CLOSED).block_rows()) == list(store.view(ARRIVED).block_rows())
    for block_id in (ONE, TWO, THREE):
        whole = store.paths(CLOSED).block_file(block_id).read_bytes()
        assert whole == store.paths(ARRIVED).block_file(block_id).read_bytes()


def check_arrive_packed(store: ReplicaStore, acknowledged: list[str]) -> None:
    """As an arrival of files; the blocks lie in one that all its rows lead to."""
    with store.volume_set.working[0].index.read() as rows:
        packed = rows.packed_blocks(SENT)
    try:
        store.replica(SENT)
    except RefusedError:
        assert not acknowledged
        assert 0 == len(packed)
        assert [] == list(store.volume_set.working[0].layout.current.glob(f"*/{SENT}"))
        return
    assert [ONE, TWO, THREE] == packed.block_ids.tolist()
    assert [PACK_NAME] == [path.name for path in store.paths(SENT).chunks.iterdir()]
    assert list(store.view(SMALL).block_rows()) == list(store.view(SENT).block_rows())
    check_contents(store, SENT, (ONE, TWO, THREE))


def check_repair_packed(store: ReplicaStore, acknowledged: list[str]) -> None:
    """The block is as it was or as it should be, wherever it lies; the others are untouched."""
    corrupt = bytearray(content((1, 0)))
    corrupt[100] ^= 0x10
    first = store.view(BROKEN).read(ONE, 0, CHUNK_BYTES)
    assert first in ({content((1, 0))} if acknowledged else {bytes(corrupt), content((1, 0))})
    check_contents(store, BROKEN, (TWO, THREE))


def check_repair_blocked(store: ReplicaStore, acknowledged: list[str]) -> None:
    """Block 3 is never written; block 1 is what its file was or what it should be; what was in the
    directory is in one place."""
    paths, layout = store.paths(BLOCKED), store.volume_set.working[0].layout
    assert content((3, 0)) == paths.block_file(THREE).read_bytes()
    allowed = (
        {content((1, 0))} if "repaired 1" in acknowledged else {content((1, 0)), content((3, 0))}
    )
    assert paths.block_file(ONE).read_bytes() in allowed
    if "repaired 2" in acknowledged:
        assert content((2, 0)) == store.view(BLOCKED).read(TWO, 0, CHUNK_BYTES)
    kept = [paths.block_file(TWO), *layout.quarantine.glob(f"{BLOCKED}-{TWO}-*.aside")]
    assert [LATER] == [(path / "precious").read_bytes() for path in kept if path.is_dir()]


def check_delete_packed(store: ReplicaStore, acknowledged: list[str]) -> None:
    """Each block is there with its bytes, or a tombstone that nothing in the pack belongs to."""
    gone = set(store.view(PACKED).tombstones())
    assert gone in (set(), {TWO}, {ONE, TWO, THREE})
    assert len(gone) >= {0: 0, 1: 1, 2: 3}[len(acknowledged)]
    left = sorted({ONE, TWO, THREE} - gone)
    assert left == store.pack(PACKED).blocks().block_ids.tolist()
    assert bool(left) == store.paths(PACKED).pack.exists()
    check_contents(store, PACKED, tuple(left))


def check_contents(
    store: ReplicaStore, container_id: ContainerId, block_ids: tuple[BlockId, ...]
) -> None:
    """These blocks of one chunk are what was written."""
    for block_id in block_ids:
        data = store.view(container_id).read(block_id, 0, CHUNK_BYTES)
        assert content((block_id, 0)) == data


def check_delete_container(store: ReplicaStore, acknowledged: list[str]) -> None:
    """The replica is whole, or gone without a trace."""
    try:
        facts = store.replica(DOOMED)
    except RefusedError:
        assert [] == list(store.volume_set.working[0].layout.current.glob(f"*/{DOOMED}"))
        assert [] == list(store.volume_set.working[0].layout.deleting.iterdir())
        return
    assert not acknowledged
    assert ReplicaState.CLOSED is facts.state
    for block_id in (1, 2, 3):
        data = store.view(DOOMED).read(BlockId(block_id), 0, CHUNK_BYTES)
        assert content((block_id, 0)) == data


def check_adopt(store: ReplicaStore, acknowledged: list[str]) -> None:
    """Each replica is as it was, or UNHEALTHY with all its bytes; its descriptor has the state."""
    for container_id in (CLOSED, PACKED):
        state = store.replica(container_id).state
        assert state is read_descriptor(store.paths(container_id).descriptor, container_id).state
        assert state in {ReplicaState.UNHEALTHY, *(() if acknowledged else (ReplicaState.CLOSED,))}
    for block_id in (ONE, TWO, THREE):
        data = store.paths(CLOSED).block_file(block_id).read_bytes()
        assert content((block_id, 0)) + content((block_id, 1)) == data
    assert [ONE, TWO, THREE] == store.pack(PACKED).blocks().block_ids.tolist()


CHECKS: Final[dict[str, Callable[[ReplicaStore, list[str]], None]]] = {
    "write": check_write,
    "batch": check_batch,
    "rewrite": check_rewrite,
    "close": check_close,
    "repair": check_repair,
    "repair_batch": check_repair,
    "scan": check_scan,
    "delete_blocks": check_delete_blocks,
    "transactions": check_transactions,
    "arrive": check_arrive,
    "delete_container": check_delete_container,
    "arrive_packed": check_arrive_packed,
    "repair_packed": check_repair_packed,
    "delete_packed": check_delete_packed,
    "repair_blocked": check_repair_blocked,
    "adopt": check_adopt,
}
NEEDED: Final[dict[str, set[str]]] = {
    "write": {"pwrite", "fdatasync", "fsync", "commit", "mkdir", "rename", "replace"},
    "batch": {"pwrite", "fdatasync", "rename", "fsync", "ftruncate", "commit"},
    "rewrite": {"pwrite", "fdatasync", "commit", "replace", "unlink"},
    "close": {"fsync", "commit", "replace", "ftruncate", "fdatasync", "rename"},
    "repair": {"pwrite", "fdatasync", "commit", "replace", "ftruncate"},
    "repair_batch": {"pwrite", "fdatasync", "commit", "replace", "fsync"},
    "scan": {"pwrite", "fsync", "replace", "commit"},
    "delete_blocks": {"pwrite", "fsync", "replace", "commit", "unlink"},
    "transactions": {"pwrite", "fsync", "replace", "commit", "unlink"},
    "arrive": {"mkdir", "write", "pwrite", "ftruncate", "commit", "rename", "fsync", "unlink"},
    "delete_container": {"rename", "fsync", "commit", "unlink", "rmdir"},
    "arrive_packed": {"mkdir", "write", "pwrite", "ftruncate", "commit", "rename", "fsync"},
    "repair_packed": {"pwrite", "fsync", "fdatasync", "commit"},
    "delete_packed": {"pwrite", "fsync", "replace", "commit", "unlink"},
    "repair_blocked": {"pwrite", "ftruncate", "fsync", "rename", "fdatasync", "commit"},
    "adopt": {"commit", "pwrite", "replace"},
}
"""Steps before which each scenario must have been killed: without a kill nothing is proved."""


def unexpected(
    problems: tuple[FsckProblem, ...], scenario: str, *, is_done: bool = False
) -> list[FsckProblem]:
    """Return what fsck found beyond the damage that the prepared volume has, and the rows that the
    scenario loses."""
    planted = {
        "repair": f"/{DAMAGED}/chunks/",
        "repair_batch": f"/{DAMAGED}/chunks/",
        "repair_packed": f"/{BROKEN}/chunks/",
        "repair_blocked": f"/{BLOCKED}/chunks/",
    }
    if is_done:
        planted.pop(scenario, None)
    lost = "BLOCK_ROW_MISSING" if scenario == "adopt" else ""
    return [
        problem
        for problem in problems
        if problem.kind != lost and not any(place in problem.path for place in planted.values())
    ]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_death_before_any_step_leaves_the_old_or_the_new(scenario: str, prepared: Path) -> None:
    """
    Acknowledged work is there after the next start, fsck is content, and the work can go on.
    """
    killed_before: list[str] = []
    for kill_at in range(1, STEPS_MAX):
        life = copied(prepared, scenario)

        report = live(life, scenario, kill_at, tear=False)

        if report["signal"] != signal.SIGKILL:
            assert (0, kill_at - 1) == (report["code"], len(report["steps"]))
            break
        killed_before.append(report["steps"][-1])
        survive(life, scenario, report["acknowledged"], f"{kill_at}: {report['steps'][-1]}")
    else:
        pytest.fail(f"more than {STEPS_MAX} steps")

    assert NEEDED[scenario] <= set(killed_before)


@pytest.mark.parametrize(
    "scenario",
    [
        *("write", "batch", "rewrite", "close", "repair", "repair_batch", "repair_packed"),
        *("scan", "transactions"),
    ],
)
def test_a_write_that_is_torn_in_the_middle_is_no_write(scenario: str, prepared: Path) -> None:
    """
    Half of the bytes arrived, then the host died: nothing takes them for the whole.
    """
    steps = live(copied(prepared, scenario), scenario, 0, tear=False)["steps"]
    writes = [number for number, name in enumerate(steps, 1) if name == "pwrite"]
    assert writes

    for kill_at in writes:
        life = copied(prepared, scenario)

        report = live(life, scenario, kill_at, tear=True)

        assert (signal.SIGKILL, True) == (report["signal"], report["torn"])
        survive(life, scenario, report["acknowledged"], f"{kill_at}: torn")


def test_a_batch_is_on_the_medium_before_it_is_committed(prepared: Path) -> None:
    """
    A power cut after the acknowledgement finds each file synced, then their names, then the rows:
    a file for each block that has bytes, one of them written beside its place.
    """
    steps = live(copied(prepared, "batch"), "batch", 0, tear=False)["steps"]

    first = steps[: steps.index("commit")]
    lasting_steps = [step for step in first if step in {"fdatasync", "rename", "fsync"}]
    assert ["fdatasync", "rename", "fdatasync", "fdatasync", "fsync"] == lasting_steps
    assert first.index("fdatasync") > first.index("ftruncate"), "the large one, whole"
    assert len(first) - 1 == first.index("fsync"), "nothing is written behind the last sync"


def test_commands_are_killed_at_more_than_fifty_lasting_steps(prepared: Path) -> None:
    """
    Import, delete, deleteBlocks and close; `python -m tests.support.faults.store_victim count`
    shows them.
    """
    points = [
        step
        for scenario in COMMANDS
        for step in lasting(live(copied(prepared, scenario), scenario, 0, tear=False)["steps"])
    ]

    assert len(points) >= COMMAND_POINTS_MIN


def copied(prepared: Path, scenario: str) -> Path:
    """Return a fresh copy of a scenario's volume, in which names of one file are that again."""
    life, initial = prepared / "life", prepared / scenario
    if not initial.exists():
        prepare(initial, scenario)
    shutil.rmtree(life, ignore_errors=True)
    first_names: dict[int, str] = {}

    def copy(source: str, target: str) -> None:
        facts = Path(source).stat()
        first = first_names.setdefault(facts.st_ino, target)
        if facts.st_nlink > 1 and first != target:
            os.link(first, target)
        else:
            shutil.copy2(source, target)

    shutil.copytree(initial, life, copy_function=copy)
    return life


def survive(life: Path, scenario: str, acknowledged: list[str], where: str) -> None:
    """Open what a death left, check it, and let the scenario run to its end."""
    store = open_packing(life)
    assert () == store.unloadable(), where
    CHECKS[scenario](store, acknowledged)
    store.close()
    found = unexpected(fsck(life / "v0", read_data=True).problems, scenario)
    assert [] == found, where

    store = open_packing(life)
    done: list[str] = []
    SCENARIOS[scenario](store, done.append)
    CHECKS[scenario](store, done)
    store.close()
    found = unexpected(fsck(life / "v0", read_data=True).problems, scenario, is_done=True)
    assert [] == found, where
