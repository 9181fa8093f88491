"""Processes that work on a store and kill themselves at a chosen step.

`live` runs one such process; with step 0, it is not killed. `show_counts` prints the number of
steps of each scenario.

A step is a system call or an LMDB commit. `sys.setprofile` observes steps, so production code has
no hook. The child dies right before its N-th step. With `tear`, it first writes half of the data of
this step.
"""

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any, Final

from agent.commands import block_delete
from agent.leases import ContainerLeases
from agent.store.index.transactions import IndexChange
from agent.store.operations.batch_repair import OfferedChunk
from agent.store.recovery.startup_recovery import StartupResult, load_directories
from agent.store.replica_store import ReplicaStore
from agent.transfer.incoming import ReplicaImporter
from agent.transfer.outgoing import ReplicaExport
from agent.transfer.parts import ImportMessage, read_part
from merkle.replica import Bcsid, BlockData, BlockId, ChunkInfo, ContainerId
from suture.errors import Code, RefusedError, SutureError
from suture.wire.v1 import scm_pb2
from tests.support.nursery import Child
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.stores import (
    CHUNK_BYTES,
    chunk_of,
    closed_replica,
    commit_scan,
    content,
    damage,
    flip_bit,
    open_store,
    options_of_test,
    private_directory,
    write_block,
)

STEPS: Final = frozenset(
    {
        "commit",
        "fdatasync",
        "fsync",
        "ftruncate",
        "mkdir",
        "pwrite",
        "pwritev",
        "rename",
        "replace",
        "rmdir",
        "truncate",
        "unlink",
        "write",
    }
)
Acknowledge = Callable[[str], object]
Life = dict[str, Any]
MODULE: Final = "tests.support.faults.store_victim"
LIFE_S_MAX: Final = 60.0

CLOSED, OPEN, DAMAGED, DOOMED, NEW, ARRIVED = (ContainerId(number) for number in range(1, 7))
SMALL, PACKED, BROKEN, SENT, BLOCKED = (ContainerId(number) for number in range(7, 12))
ONE, TWO, THREE = BlockId(1), BlockId(2), BlockId(3)
LATER = content("written later")
BATCHES: Final = {
    "batch": (BlockId(21), BlockId(22), BlockId(23), BlockId(24)),
    "one more": (BlockId(25),),
}
BATCH_CHUNKS: Final = {21: 1, 22: 2, 23: 0, 24: 8, 25: 1}  # by block id


def open_packing(path: Path) -> ReplicaStore:
    """Open a store that packs small blocks even if only a few arrive."""
    return open_store(path, options=options_of_test(packed_count_min=1))


def prepare(path: Path, scenario: str) -> None:
    """Create the initial state of a scenario: a closed replica, and the other replicas that the
    scenario uses."""
    store = open_packing(path)
    closed_replica(store, CLOSED)
    for container_id in USED.get(scenario, ()):
        INITIAL[container_id](store)
    store.close()


def prepare_open(store: ReplicaStore) -> None:
    """Create a replica with a committed block and two uncommitted chunks."""
    store.create_container(OPEN)
    write_block(store, OPEN, ONE, chunk_count=1)
    for block_id, offset in ((ONE, CHUNK_BYTES), (TWO, 0)):
        data = content(("pending", block_id))
        store.writer(OPEN).write_chunk(block_id, chunk_of(data, offset), data)


def prepare_damaged(store: ReplicaStore) -> None:
    """Create a replica with a flipped bit, a lost file and trailing bytes."""
    closed_replica(store, DAMAGED)
    paths = store.paths(DAMAGED)
    flip_bit(paths.block_file(ONE), 100)
    paths.block_file(TWO).unlink()
    with paths.block_file(THREE).open("ab") as file:
        file.write(b"trailing")


def prepare_blocked(store: ReplicaStore) -> None:
    """Create a replica in which two blocks share a file, and a directory has a block's name."""
    closed_replica(store, BLOCKED, chunk_count=1)
    paths = store.paths(BLOCKED)
    paths.block_file(ONE).unlink()
    paths.block_file(ONE).hardlink_to(paths.block_file(THREE))
    paths.block_file(TWO).unlink()
    paths.block_file(TWO).mkdir()
    (paths.block_file(TWO) / "precious").write_bytes(LATER)


def prepare_broken(store: ReplicaStore) -> None:
    """Create a packed replica with a flipped bit."""
    receive(store, SMALL, BROKEN)
    flip_bit(store.paths(BROKEN).pack, 100)


def write(store: ReplicaStore, acknowledge: Acknowledge) -> None:
    """Create a container and write two blocks, each with another way to commit."""
    store.create_container(NEW)
    acknowledge("created")
    first, second = content("first"), content("second")
    chunks = (chunk_of(first), chunk_of(second, CHUNK_BYTES))
    store.writer(NEW).write_chunk(ONE, chunks[0], first)
    acknowledge("first")
    store.writer(NEW).write_chunk(ONE, chunks[1], second)
    acknowledge("second")
    store.writer(NEW).put_block(BlockData(ONE, Bcsid(1), chunks))
    acknowledge("block 1")
    chunk = chunk_of(LATER)
    store.writer(NEW).write_chunk(TWO, chunk, LATER, commit=BlockData(TWO, Bcsid(2), (chunk,)))
    acknowledge("block 2")


def batch(store: ReplicaStore, acknowledge: Acknowledge) -> None:
    """Write a batch of new blocks, small ones and a large one, then a batch with one block."""
    for what, block_ids in BATCHES.items():
        new = store.begin_blocks(OPEN)
        try:
            for block_id in block_ids:
                chunks, data = described(block_id)
                block = BlockData(block_id, Bcsid(block_id), chunks)
                new.add_chunks(block, memoryview(data), is_whole=True)
            new.commit()
        finally:
            new.discard()
        acknowledge(what)


def described(block_id: BlockId) -> tuple[tuple[ChunkInfo, ...], bytes]:
    """Return the chunks of a block of a batch, and its data."""
    datas = [content(("new", block_id, number)) for number in range(BATCH_CHUNKS[block_id])]
    chunks = tuple(chunk_of(data, n * CHUNK_BYTES) for n, data in enumerate(datas))
    return chunks, b"".join(datas)


def rewrite(store: ReplicaStore, acknowledge: Acknowledge) -> None:
    """Write an uncommitted chunk again, with other data."""
    store.writer(OPEN).write_chunk(TWO, chunk_of(LATER), LATER)
    acknowledge("rewritten")


def close(store: ReplicaStore, acknowledge: Acknowledge) -> None:
    """Close a replica that has uncommitted chunks."""
    store.close_container(OPEN, bcsid=1)
    acknowledge("closed")


def repair(store: ReplicaStore, acknowledge: Acknowledge) -> None:
    """Repair a corrupt chunk, a missing file, trailing bytes; add a block; adopt a BCSID."""
    tool = store.repair(DAMAGED)
    wanted = [
        (ONE, 0, content((1, 0))),
        (TWO, 0, content((2, 0))),
        (TWO, CHUNK_BYTES, content((2, 1))),
        (BlockId(9), 0, content((9, 0))),
    ]
    for block_id, offset, data in wanted:
        with suppress_refusal(Code.INELIGIBLE):
            tool.install_chunk(block_id, chunk_of(data, offset), data)
        acknowledge(f"installed {block_id} {offset}")
    tool.trim(THREE)
    acknowledge("trimmed")
    tool.adopt_bcsid(BlockId(9), 50)
    tool.advance_bcsid(50)
    acknowledge("adopted")


def repair_batch(store: ReplicaStore, acknowledge: Acknowledge) -> None:
    """Repair a corrupt chunk, a missing file of two chunks and add a block, all at once."""
    wanted = [(ONE, 0), (TWO, 0), (TWO, 1), (BlockId(9), 0), (BlockId(9), 1)]
    offers = []
    for block_id, number in wanted:
        data = content((block_id, number))
        offers.append(OfferedChunk(block_id, chunk_of(data, number * CHUNK_BYTES), data))
    done = store.install_chunks(DAMAGED, offers)
    for index, offer in enumerate(offers):
        if index not in done:
            with suppress_refusal(Code.INELIGIBLE):
                store.repair(DAMAGED).install_chunk(offer.block_id, offer.chunk, offer.data)
        acknowledge(f"installed {offer.block_id} {offer.chunk.offset}")


def scan(store: ReplicaStore, acknowledge: Acknowledge) -> None:
    """Commit a scan that found damage."""
    commit_scan(
        store,
        CLOSED,
        tree=store.view(CLOSED).tree().select([ONE, TWO]),
        findings=[damage(CLOSED, THREE, 0)],
        complete=True,
    )
    acknowledge("scanned")


def delete_blocks(store: ReplicaStore, acknowledge: Acknowledge) -> None:
    """Delete one block."""
    remove_blocks(store, CLOSED, [TWO])
    acknowledge("deleted")


def transactions(store: ReplicaStore, acknowledge: Acknowledge) -> None:
    """Delete blocks by two transactions, each acknowledged."""
    orders = [
        scm_pb2.DeleteTransaction(transaction_id=7, container_id=CLOSED, local_ids=[TWO]),
        scm_pb2.DeleteTransaction(transaction_id=8, container_id=DOOMED, local_ids=[ONE, TWO]),
    ]
    for result in block_delete.delete_blocks(store, ContainerLeases(), orders, stop=lambda: False):
        assert result.done, result
        acknowledge(f"transaction {result.transaction_id}")


class Inline:
    """An executor that runs work immediately in the calling thread, so that all steps are counted
    in one thread."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> "Future[Any]":
        """Run the work in this thread; return a completed future."""
        future: Future[Any] = Future()
        finish(future, work, *arguments)
        return future


def finish(future: "Future[Any]", work: Callable[..., Any], *arguments: Any) -> None:
    """Run the work, and store its result or exception."""
    try:
        future.set_result(work(*arguments))
    except (OSError, SutureError) as error:
        future.set_exception(error)


class ReceivingBeside(Inline):
    """Like `Inline`, except that the first work runs in its own thread. This work receives parts,
    and must wait until another thread takes them."""

    def __init__(self) -> None:
        self._has_begun = False

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> "Future[Any]":
        """Run the first work in its own thread, other work in this thread; return a future."""
        if self._has_begun:
            return super().submit(work, *arguments)
        self._has_begun = True
        future: Future[Any] = Future()
        Thread(target=finish, args=(future, work, *arguments), daemon=True).start()
        return future


def arrive(store: ReplicaStore, acknowledge: Acknowledge) -> None:
    """Receive a replica: a copy of a closed one, under another container's id."""
    receive(store, CLOSED, ARRIVED)
    acknowledge("arrived")


def arrive_packed(store: ReplicaStore, acknowledge: Acknowledge) -> None:
    """Receive a replica whose blocks share a file."""
    receive(store, SMALL, SENT)
    acknowledge("arrived")


def repair_packed(store: ReplicaStore, acknowledge: Acknowledge) -> None:
    """Repair a block that is stored in a pack."""
    with suppress_refusal(Code.INELIGIBLE):
        data = content((1, 0))
        store.repair(BROKEN).install_chunk(ONE, chunk_of(data), data)
    acknowledge("installed")


def repair_blocked(store: ReplicaStore, acknowledge: Acknowledge) -> None:
    """Repair a block whose file is also the file of another block, and a block with a directory in
    the place of its file."""
    tool = store.repair(BLOCKED)
    for block_id in (ONE, TWO):
        with suppress_refusal(Code.INELIGIBLE):
            data = content((block_id, 0))
            tool.install_chunk(block_id, chunk_of(data), data)
        acknowledge(f"repaired {block_id}")


def delete_packed(store: ReplicaStore, acknowledge: Acknowledge) -> None:
    """Delete one block of a pack, then the others."""
    remove_blocks(store, PACKED, [TWO])
    acknowledge("one")
    remove_blocks(store, PACKED, [ONE, THREE])
    acknowledge("all")


def receive(store: ReplicaStore, source: ContainerId, container_id: ContainerId) -> None:
    """Import the exported stream of container `source` as container `container_id`."""
    importer = ReplicaImporter(
        store=store,
        leases=ContainerLeases(),
        executor=ReceivingBeside(),
        now_ms=lambda: 1,
    )
    with suppress_refusal(Code.CONTAINER_EXISTS):
        importer.receive(parts_of(store, source, container_id))


def parts_of(
    store: ReplicaStore, source: ContainerId, container_id: ContainerId
) -> Iterator[ImportMessage]:
    """Yield the exported stream of the closed replica `source`, with `container_id` as the id of
    the container."""
    export = ReplicaExport(
        store=store,
        container_id=source,
        executor=Inline(),
    )
    for encoded in export.stream():
        part = read_part(encoded)
        if part.kind == "header":
            part.message.header.container_id = container_id
        yield part


def delete_container(store: ReplicaStore, acknowledge: Acknowledge) -> None:
    """Delete a replica with its data."""
    with suppress_refusal(Code.CONTAINER_NOT_FOUND):
        store.delete_container(DOOMED, force=True)
    acknowledge("deleted")


def adopt(store: ReplicaStore, acknowledge: Acknowledge) -> None:
    """Lose all rows of two replicas, and load the replicas from their directories, as the rebuild
    of a lost index does."""
    volume, lost = store.volume_set.working[0], [CLOSED, PACKED]

    def lose(rows: IndexChange) -> None:
        for container_id in lost:
            rows.delete_container(container_id)

    volume.index.write(lose)
    load_directories(volume, options_of_test(packed_count_min=1), lost, StartupResult())
    acknowledge("loaded")


SCENARIOS: Final[dict[str, Callable[[ReplicaStore, Acknowledge], None]]] = {
    "write": write,
    "batch": batch,
    "rewrite": rewrite,
    "close": close,
    "repair": repair,
    "repair_batch": repair_batch,
    "scan": scan,
    "delete_blocks": delete_blocks,
    "transactions": transactions,
    "arrive": arrive,
    "delete_container": delete_container,
    "arrive_packed": arrive_packed,
    "repair_packed": repair_packed,
    "delete_packed": delete_packed,
    "repair_blocked": repair_blocked,
    "adopt": adopt,
}
INITIAL: Final[dict[ContainerId, Callable[[ReplicaStore], object]]] = {
    OPEN: prepare_open,
    DAMAGED: prepare_damaged,
    DOOMED: lambda store: closed_replica(store, DOOMED),
    BLOCKED: prepare_blocked,
    SMALL: lambda store: closed_replica(store, SMALL, chunk_count=1),
    PACKED: lambda store: receive(store, SMALL, PACKED),
    BROKEN: prepare_broken,
}
USED: Final = {
    "batch": (OPEN,),
    "rewrite": (OPEN,),
    "close": (OPEN,),
    "repair": (DAMAGED,),
    "repair_batch": (DAMAGED,),
    "transactions": (DOOMED,),
    "delete_container": (DOOMED,),
    "arrive_packed": (SMALL,),
    "repair_packed": (SMALL, BROKEN),
    "delete_packed": (SMALL, PACKED),
    "repair_blocked": (BLOCKED,),
    "adopt": (SMALL, PACKED),
}
"""The replicas that a scenario uses in addition to the closed one. Other replicas are not created,
because each would be copied, opened and checked hundreds of times."""

COMMANDS: Final = (
    *("arrive", "arrive_packed", "delete_container", "delete_blocks", "delete_packed"),
    *("transactions", "close"),
)
"""Scenarios of a datanode's commands: import, delete, deleteBlocks, close."""


@contextmanager
def suppress_refusal(code: Code) -> Iterator[None]:
    """Ignore a RefusedError with `code` in the block, because an earlier, interrupted run may have
    completed the step already."""
    try:
        yield
    except RefusedError as refusal:
        if refusal.code is not code:
            raise


class StepCounter:
    """Counts steps and ends the process before one of them."""

    def __init__(self, log_fd: int, kill_at: int, *, tear: bool) -> None:
        self._log_fd = log_fd
        self._kill_at = kill_at
        self._tear = tear
        self._count = 0

    def see(self, frame: FrameType, event: str, argument: Any) -> None:
        """Count a step, and end the process before the chosen one. This is a profile function."""
        if event != "c_call" or argument.__name__ not in STEPS:
            return
        sys.setprofile(None)
        self._count += 1
        self.log(f"step {argument.__name__}")
        if self._count == self._kill_at:
            names = frame.f_locals
            if self._tear and frame.f_code.co_name == "write_all":
                half = names["view"][: len(names["view"]) // 2]
                os.pwrite(names["fd"], half, names["offset"])
                self.log("torn")
            os.kill(os.getpid(), signal.SIGKILL)
        sys.setprofile(self.see)

    def log(self, line: str) -> None:
        """Write a line to the pipe to the parent. The pipe keeps it even if this process dies."""
        os.write(self._log_fd, f"{line}\n".encode())


def run(path: Path, scenario: str, counter: "StepCounter") -> None:
    """Run one scenario."""
    store = open_packing(path)

    def acknowledge(what: str) -> None:
        sys.setprofile(None)
        counter.log(f"ack {what}")
        sys.setprofile(counter.see)

    sys.setprofile(counter.see)
    SCENARIOS[scenario](store, acknowledge)
    sys.setprofile(None)
    store.close()


def live(path: Path, scenario: str, kill_at: int, *, tear: bool, module: str = MODULE) -> Life:
    """Run a scenario of `module` in its own process; return its steps, its acknowledgements, and
    how it ended."""
    words = (str(path), scenario, str(kill_at), "tear" if tear else "")
    process = Child(module, *words, stderr=sys.__stderr__)
    written, _ = process.communicate(LIFE_S_MAX)
    assert process.returncode is not None
    return life_of(written, process.returncode)


def life_of(log: str, code: int) -> Life:
    """Return the steps and acknowledgements in a process's log, and its signal or exit code."""
    lines = log.splitlines()
    return {
        "signal": max(0, -code),
        "code": max(0, code),
        "steps": [line.removeprefix("step ") for line in lines if line.startswith("step ")],
        "acknowledged": [line.removeprefix("ack ") for line in lines if line.startswith("ack ")],
        "torn": "torn" in lines,
    }


def lived(body: Callable[[int], None]) -> Life:
    """Fork a child that runs `body` with a file descriptor for its log; return the child's steps
    and how it ended."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        with suppress(BaseException):
            os.close(read_fd)
            body(write_fd)
            status = 0
        os._exit(status)
    os.close(write_fd)
    with os.fdopen(read_fd) as log:
        written = log.read()
    return life_of(written, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def counted() -> dict[str, list[str]]:
    """Return the steps of each scenario, from a run that is not killed."""
    found = {}
    for scenario in SCENARIOS:
        with private_directory() as directory:
            prepare(directory, scenario)
            found[scenario] = live(directory, scenario, 0, tear=False)["steps"]
    return found


def show_counts() -> None:
    """Print the number of steps of each scenario, by kind of step."""
    found = counted()
    for scenario, steps in found.items():
        kinds = ", ".join(f"{count} {name}" for name, count in sorted(Counter(steps).items()))
        sys.stdout.write(f"{scenario:18}{len(steps):4}  {kinds}\n")
    of_commands = sum(len(lasting(found[scenario])) for scenario in COMMANDS)
    sys.stdout.write(f"{'lasting':18}{of_commands:4}  of {', '.join(COMMANDS)}\n")


def lasting(steps: list[str]) -> list[str]:
    """Return the steps that change a volume or make a change durable. `write` is left out because
    it only fills buffers, and `replace` because it may be a call of `str.replace`."""
    return [step for step in steps if step not in {"write", "replace"}]


def main(body: Callable[[Path, str, StepCounter], None] = run) -> None:
    """Run the scenario in the arguments, with its log on stdout; end the process without another
    step."""
    path, scenario, kill_at, tear = sys.argv[1:]
    body(Path(path), scenario, StepCounter(1, int(kill_at), tear=bool(tear)))
    os._exit(0)


if __name__ == "__main__":
    show_counts()
