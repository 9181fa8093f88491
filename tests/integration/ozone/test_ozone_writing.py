"""What Ozone's clients of erasure-coded keys write to an agent, over a real socket."""

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from merkle.replica import BlockId, ContainerId, ReplicaState
from tests.support.ozone.ozone_agent import OzoneAgent, OzoneClient, block_id, served
from tests.support.ozone.ozone_wire import RESULTS
from tests.support.storage.stored_replica import WINDOW_BYTES, noise

EC, INDEX = ContainerId(7), 3
RECOVERING, CLOSED, UNHEALTHY = 8, 4, 5
CELL = 40_000
DATA = noise(2 * CELL, 1)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[tuple[OzoneAgent, OzoneClient]]:
    """An agent with a whole replica of container 1, closed."""
    with served(tmp_path) as (made, client):
        made.replica.create()
        yield made, client


def chunk(offset: int = 0, length_bytes: int = CELL, **changed: Any) -> dict[str, Any]:
    """Return how a client describes a cell of DATA."""
    data = DATA[offset : offset + length_bytes]
    sums = [
        zlib.crc32(data[at : at + WINDOW_BYTES]).to_bytes(4)
        for at in range(0, len(data), WINDOW_BYTES)
    ]
    checksum_data = {"type": 2, "bytesPerChecksum": WINDOW_BYTES, "checksums": sums}
    known = {"chunkName": f"9_chunk_{offset}", "offset": offset, "len": length_bytes}
    return {**known, "checksumData": checksum_data, **changed}


def key(local_id: int = 9, **more: int) -> dict[str, int]:
    """Return how a shard's block is named."""
    return block_id(local_id, EC, **{"replicaIndex": INDEX, **more})


def writing(offset: int = 0, length_bytes: int = CELL, **changed: Any) -> dict[str, Any]:
    """Return a WriteChunk of a cell."""
    body = {
        "blockID": key(),
        "chunkData": chunk(offset, length_bytes),
        "data": DATA[offset:][:length_bytes],
    }
    return {**body, **changed}


def commit(*chunks: dict[str, Any], **changed: Any) -> dict[str, Any]:
    """Return a PutBlock of chunks, with the note that Ozone's clients of shards give."""
    notes = [{"key": "blockGroupLen", "value": "120000"}]
    size = sum(one["len"] for one in chunks)
    block = {"blockID": key(), "chunks": chunks, "metadata": notes, "size": size, **changed}
    return {"blockData": block, "eof": True}


def test_a_shard_is_written_and_read_back(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """The first write makes the container; stripes' checksums are given back as they were."""
    made, client = agent
    stripe = {"stripeChecksum": bytes(range(60))}

    for at in (0, CELL):
        written = client.ask("writeChunk", EC, **writing(at))
        assert "SUCCESS" == RESULTS[written.result], written.message
    committed = client.ask("putBlock", EC, **commit(chunk(0, **stripe), chunk(CELL)))
    padding = client.ask("putBlock", EC, **commit(blockID=key(10)))
    closed = client.ask("closeContainer", EC)

    length = committed.putBlock.committedBlockLength
    assert (9, 2 * CELL) == (length.blockID.localID, length.blockLength)
    assert 0 == padding.putBlock.committedBlockLength.blockLength
    assert EC == closed.closeContainer.containerID
    found = client.ask("getBlock", EC, blockID=key()).getBlock.blockData
    assert [stripe["stripeChecksum"], b""] == [one.stripeChecksum for one in found.chunks]
    assert [("blockGroupLen", "120000")] == [(one.key, one.value) for one in found.metadata]
    assert (0, INDEX, 2 * CELL) == (found.blockID.bcsid, found.blockID.replicaIndex, found.size)
    read = client.ask("readChunk", EC, blockID=key(), chunkData=chunk(CELL)).readChunk.data
    assert DATA[CELL:] == read
    facts = made.replica.store.replica(EC)
    assert (ReplicaState.CLOSED, INDEX, 2) == (facts.state, facts.replica_index, facts.block_count)
    assert [("CloseContainer", "OK")] == [line[:2] for line in made.audit.lines]


def test_acknowledged_block_survives_a_restart(
    agent: tuple[OzoneAgent, OzoneClient],
) -> None:
    """The block is on the disk, in the store's own format."""
    made, client = agent
    client.ask("writeChunk", EC, **writing(), block=commit(chunk()))

    made.door.server.stop(0).wait()
    made.replica.close()
    made.replica.reopen()

    store = made.replica.store
    assert DATA[:CELL] == store.view(EC).read(BlockId(9), 0, CELL)
    assert CELL == store.view(EC).block(BlockId(9)).length_bytes


def test_a_chunk_and_its_commit_come_together(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """The answer has the end of the block."""
    _, client = agent

    plain = client.ask("writeChunk", EC, **writing())
    both = client.ask("writeChunk", EC, **writing(CELL), block=commit(chunk(), chunk(CELL)))

    assert not plain.writeChunk.HasField("committedBlockLength")
    assert 2 * CELL == both.writeChunk.committedBlockLength.blockLength


def test_a_chunk_without_bytes_says_nothing(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """A commit that has one is a commit of the others."""
    _, client = agent
    client.ask("writeChunk", EC, **writing())
    empty = {"chunkName": "e", "offset": CELL, "len": 0, "checksumData": {"type": 1}}

    answer = client.ask("putBlock", EC, **commit(chunk(), empty))

    assert CELL == answer.putBlock.committedBlockLength.blockLength
    found = client.ask("getBlock", EC, blockID=key()).getBlock.blockData
    assert [CELL] == [one.len for one in found.chunks]


def test_a_reconstruction_makes_its_own(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """The shard is RECOVERING until it is closed, and is then scanned once. Another run has to
    wait.
    """
    made, client = agent
    new = {"replicaIndex": INDEX, "state": RECOVERING}

    assert "SUCCESS" == client.result("createContainer", EC, **new)
    told = client.ask("readContainer", EC).readContainer.containerData
    again = client.result("createContainer", EC, **new)
    client.ask("writeChunk", EC, **writing(), block=commit(chunk()))
    client.ask("closeContainer", EC)

    assert (RECOVERING, "IO_EXCEPTION") == (told.state, again)
    assert ReplicaState.CLOSED is made.replica.store.replica(EC).state
    assert [EC] == made.scans


def test_abandoned_reconstruction_is_deleted_by_force(
    agent: tuple[OzoneAgent, OzoneClient],
) -> None:
    """Only a RECOVERING shard can be deleted. A forced delete of any other replica is refused."""
    made, client = agent
    client.ask("createContainer", EC, replicaIndex=INDEX, state=RECOVERING)
    client.ask("writeChunk", EC, **writing(), block=commit(chunk()))

    assert "SUCCESS" == client.result("deleteContainer", EC, forceDelete=True)
    client.ask("writeChunk", EC, **writing(), block=commit(chunk()))
    open_one = client.result("deleteContainer", EC, forceDelete=True)
    client.ask("closeContainer", EC)
    closed_one = client.result("deleteContainer", EC, forceDelete=True)
    whole = client.result("deleteContainer", 1, forceDelete=True)

    assert {"UNSUPPORTED_REQUEST"} == {open_one, closed_one, whole}
    assert [1, EC] == made.replica.store.replica_ids()
    assert ["DeleteContainer", "OK"] == list(made.audit.lines[0][:2])
    assert {"INELIGIBLE"} == {
        result for action, result, _ in made.audit.lines[1:] if action == "DeleteContainer"
    }


@pytest.mark.parametrize(("size_bytes", "is_kept"), [(12, True), (500, True), (900, False)])
def test_stripes_are_kept_however_many_while_there_is_room(
    agent: tuple[OzoneAgent, OzoneClient], size_bytes: int, is_kept: bool
) -> None:
    """More than there are notes; a commit with more than a block has room for is no failure."""
    _, client = agent
    sums = [bytes([at]) * size_bytes for at in range(80)]
    pieces = [chunk(at * 500, 500, stripeChecksum=sums[at]) for at in range(80)]
    for at in range(80):
        client.ask("writeChunk", EC, **writing(at * 500, 500))

    assert "SUCCESS" == client.result("putBlock", EC, **commit(*pieces))

    found = client.ask("getBlock", EC, blockID=key()).getBlock.blockData
    kept = [one.stripeChecksum for one in found.chunks]
    assert (sums if is_kept else [b""] * 80) == kept
    assert 1 == len(found.metadata)


@pytest.mark.parametrize(
    ("wanted", "command", "body"),
    [
        ("UNSUPPORTED_REQUEST", "createContainer", {}),
        ("MALFORMED_REQUEST", "createContainer", {"replicaIndex": 3, "state": CLOSED}),
        ("MALFORMED_REQUEST", "createContainer", {"replicaIndex": 300}),
        ("MALFORMED_REQUEST", "createContainer", {"replicaIndex": -1}),
        ("CONTAINER_NOT_FOUND", "writeChunk", writing(blockID=key(replicaIndex=0))),
        ("CONTAINER_NOT_FOUND", "putBlock", commit(blockID=key(replicaIndex=0))),
        ("CONTAINER_NOT_FOUND", "closeContainer", {}),
        ("CONTAINER_NOT_FOUND", "deleteContainer", {}),
        ("MALFORMED_REQUEST", "writeChunk", writing(blockID=key(0))),
        ("MALFORMED_REQUEST", "writeChunk", writing(blockID=block_id(9, 8, replicaIndex=3))),
        ("CHECKSUM_MISMATCH", "writeChunk", writing(data=bytes(CELL))),
        ("INVALID_WRITE_SIZE", "writeChunk", writing(data=DATA[:100])),
        ("CHUNK_FILE_INCONSISTENCY", "writeChunk", writing(CELL)),
        ("NO_SUCH_ALGORITHM", "writeChunk", writing(chunkData=chunk(checksumData={"type": 9}))),
        ("MALFORMED_REQUEST", "writeChunk", writing(chunkData=chunk(checksumData={}))),
        ("MALFORMED_REQUEST", "writeChunk", writing(chunkData=chunk(len=2**40))),
        ("MALFORMED_REQUEST", "writeChunk", writing(block=commit(chunk(), blockID=key(10)))),
        ("UNABLE_TO_FIND_CHUNK", "putBlock", commit(chunk())),
        ("MALFORMED_REQUEST", "putBlock", commit(chunk(), size=7)),
        ("MALFORMED_REQUEST", "putBlock", commit(metadata=[{"key": "k", "value": "v"}] * 65)),
        ("UNSUPPORTED_REQUEST", "putBlock", commit(metadata=[{"key": "incremental"}])),
    ],
)
def test_refused_write_has_ozones_result_code(
    agent: tuple[OzoneAgent, OzoneClient], wanted: str, command: str, body: dict[str, Any]
) -> None:
    """The refused write leaves no block."""
    made, client = agent

    answer = client.ask(command, EC, **body)

    assert wanted == RESULTS[answer.result], answer.message
    store = made.replica.store
    assert all(not store.view(one).blocks() for one in store.replica_ids() if one != 1)


def test_notes_are_counted_before_any_is_looked_at(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """One message can hold millions of empty notes, and each decoded note costs memory."""
    _made, client = agent
    request = client.request("putBlock", EC, **commit(metadata=[{"key": "~~~~"}] * 65))

    [answer] = client.send(request.replace(b"~~~~", b"\xff\xff\xff\xff"))

    assert "65 pairs are more than 64" in answer.message


@pytest.mark.parametrize("command", ["writeChunk", "putBlock", "closeContainer"])
def test_replicated_containers_are_not_written(
    agent: tuple[OzoneAgent, OzoneClient], command: str
) -> None:
    """Raft puts their writes in order, and this datanode is in no pipeline."""
    made, client = agent
    before = made.replica.store.replica(ContainerId(1))
    bodies: dict[str, dict[str, Any]] = {
        "writeChunk": writing(blockID=block_id(9)),
        "putBlock": commit(blockID=block_id(9)),
        "closeContainer": {},
    }

    assert "UNSUPPORTED_REQUEST" == client.result(command, 1, **bodies[command])

    assert before == made.replica.store.replica(ContainerId(1))


def test_a_closed_shard_takes_no_more(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """Closing again is no failure; a client that writes goes on in another container."""
    _, client = agent
    client.ask("writeChunk", EC, **writing(), block=commit(chunk()))
    client.ask("closeContainer", EC)

    assert "SUCCESS" == client.result("closeContainer", EC)
    assert "CLOSED_CONTAINER_IO" == client.result("writeChunk", EC, **writing(CELL))
    assert "CLOSED_CONTAINER_IO" == client.result("putBlock", EC, **commit(chunk()))
    assert "CONTAINER_EXISTS" == client.result("createContainer", EC, replicaIndex=INDEX)


def test_an_unhealthy_shard_is_not_closed(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """An unhealthy shard is neither closed nor written to."""
    made, client = agent
    client.ask("createContainer", EC, replicaIndex=INDEX, state=RECOVERING)
    made.replica.store.expire_recovery(EC)

    assert "INVALID_CONTAINER_STATE" == client.result("closeContainer", EC)
    assert "CONTAINER_UNHEALTHY" == client.result("writeChunk", EC, **writing())
    told = client.ask("readContainer", EC).readContainer.containerData
    assert UNHEALTHY == told.state


def test_a_write_waits_for_its_container_and_no_longer(
    agent: tuple[OzoneAgent, OzoneClient],
) -> None:
    """The client gets a retryable error while another caller holds the lease."""
    made, client = agent

    with made.replica.leases.hold(EC):
        assert "IO_EXCEPTION" == client.result("writeChunk", EC, **writing())

    assert "SUCCESS" == client.result("writeChunk", EC, **writing())


def test_a_shard_of_another_datanode_is_not_made_here(
    agent: tuple[OzoneAgent, OzoneClient],
) -> None:
    """Without the container, only the request shows that it is for another datanode."""
    made, _ = agent

    with OzoneClient(made.address, "another") as client:
        written = client.result("writeChunk", EC, **writing())
        new = client.result("createContainer", EC, replicaIndex=INDEX)

    assert ("INVALID_ARGUMENT", "INVALID_ARGUMENT") == (written, new)
    assert [1] == made.replica.store.replica_ids()
