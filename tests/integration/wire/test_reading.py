"""What a datanode tells of its clients' reads: by that scans and copies keep their pace."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from agent.services import read_handlers
from agent.services.limits import DatanodeServerLimits
from agent.services.read_handlers import ReadHandlers
from suture.wire.v1 import container_pb2
from suture.wire.v1 import datanode_pb2 as pb
from tests.support.storage.stored_replica import CONTAINER, StoredReplica

MIB = 1024 * 1024


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[StoredReplica]:
    """A store with one closed container, of a block with one chunk of two pieces."""
    made = StoredReplica(tmp_path / "volume")
    made.store.create_container(CONTAINER)
    made.put(1, 2 * MIB)
    made.store.close_container(CONTAINER, bcsid=0, force=True)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("call", "request_type", "told"),
    [
        ("ReadChunk", pb.ReadChunkRequest, [2.0, 1.0]),
        ("ReadBlock", pb.ReadBlockRequest, [2.0]),
    ],
)
def test_the_row_that_a_read_looks_up_counts_once(
    replica: StoredReplica,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    request_type: Any,
    told: list[float],
) -> None:
    """
    A client waits for it as for the data, and not while its answer is on the way.
    """
    heard: list[float] = []
    ticks = count()
    monkeypatch.setattr(read_handlers, "perf_counter", lambda: float(next(ticks)))
    handlers = ReadHandlers(replica.store, limits=DatanodeServerLimits(), on_read=heard.append)
    block_id = container_pb2.BlockId(container_id=CONTAINER, local_id=1)

    for _ in getattr(handlers, call)(request_type(block_id=block_id)):
        next(ticks)  # on the way

    assert told == heard
