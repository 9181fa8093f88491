"""Every field of what an agent in its own process says about samples and about the parity of its
shards. The test is the control plane and the peers.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from merkle.replica import ChecksumType, ContainerId
from suture.ec.scheme import CodecName, Scheme
from suture.wire.clients.peer import Peer
from suture.wire.v1 import container_pb2 as c
from suture.wire.v1 import datanode_pb2 as d
from suture.wire.v1 import scm_pb2 as s
from tests.support.control.scripted_scm import ScriptedScm
from tests.support.faults.victim import Victim
from tests.support.storage.ec_cluster import CONTAINER as CODED
from tests.support.storage.ec_cluster import altered, ec_cluster, groups_of, write_shard
from tests.support.storage.stored_replica import CHUNK_BYTES, CLUSTER, DATANODE, StoredReplica
from tests.support.waiting import WAIT_S, wait_until

WHOLE, ROTTEN, MIXED = map(ContainerId, (21, 22, 23))
RS_3_2: Final = Scheme(CodecName.RS, 3, 2, 4096)
LENGTHS: Final = (5_000, 100_000)
WRONG_BLOCK, WRONG_STRIPE, WRONG_SHARD = 2, 4, 3
INTERVAL_S: Final = 3_600


class Holders(ScriptedScm):
    """A control plane that knows the holders of the shards."""

    def __init__(self) -> None:
        self.holders: dict[str, str] = {}
        self.known = threading.Event()
        super().__init__(cluster_id=CLUSTER)

    def GetContainerInfo(
        self, request: s.GetContainerInfoRequest, _context: grpc.ServicerContext
    ) -> s.GetContainerInfoResponse:
        """Answer with the holders of a container, when they are known."""
        assert self.known.wait(WAIT_S)
        replicas = [
            s.ContainerInfoReplica(
                datanode=c.DatanodeEndpoint(datanode_id=name, address=address),
                replica=c.ReplicaReport(state=c.CLOSED, replica_index=index),
                node_health="HEALTHY",
            )
            for index, (name, address) in enumerate(self.holders.items(), start=1)
        ]
        info = s.ContainerInfo(
            container_id=request.container_id,
            state="CLOSED",
            scheme=str(RS_3_2),
            replicas=replicas,
        )
        return s.GetContainerInfoResponse(container=info)


@dataclass
class Checks:
    """An agent that checks, and when it began."""

    peer: Peer
    began_ms: int

    def until(self, condition: Callable[[d.ScrubStatusResponse], bool]) -> d.ScrubStatusResponse:
        """Wait until the status of the scrub is so."""
        found: list[d.ScrubStatusResponse] = []

        def is_so() -> bool:
            found[:] = [self.peer.stub.ScrubStatus(d.ScrubStatusRequest())]
            return condition(found[0])

        wait_until(is_so)
        return found[0]

    def sample(self, **wish: Any) -> list[d.SampleProgress]:
        """Draw a sample."""
        return list(self.peer.stub.SampleChunks(d.SampleChunksRequest(**wish)))


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checks]:
    """An agent with a damaged container, one without some checksums, and one shard of five."""
    folder = tmp_path_factory.mktemp("agent")
    groups = groups_of(RS_3_2, LENGTHS)
    wrong = groups | {WRONG_BLOCK: altered(groups[WRONG_BLOCK], WRONG_STRIPE, WRONG_SHARD)}
    with ExitStack() as stack:
        mine = StoredReplica(folder / "volume")
        for container_id in (WHOLE, ROTTEN):
            mine.create(container_id, blocks=1)
        for offset in (3, CHUNK_BYTES + 3):
            flip(mine.file(1, ROTTEN), offset)
        mine.store.create_container(MIXED)
        mine.put(1, 10, 20, container_id=MIXED)
        mine.put(2, 30, container_id=MIXED, checksum_type=ChecksumType.NONE)
        mine.put(3, 40, container_id=MIXED)
        mine.store.close_container(MIXED, bcsid=0, force=True)
        write_shard(mine.store, 1, groups)
        mine.damage_row(3, MIXED)
        mine.close()
        shards = stack.enter_context(
            ec_cluster(folder / "shards", RS_3_2, LENGTHS, spare=0, instead={WRONG_SHARD: wrong})
        )
        shards.serve()
        scm = stack.enter_context(Holders())
        config = folder / "agent.toml"
        config.write_text(
            f'[node]\nlisten = "127.0.0.1:0"\nscm = "{scm.address}"\n'
            f'[storage]\nvolumes = ["{mine.path}"]\nreserve_bytes = 0\n'
            "[scan]\nwatch = false\nstart_jitter_s = 0\nvolume_bytes_per_s = 1000\n"
            f"parity_interval_s = {INTERVAL_S}\nchallenge_interval_s = 0\n"
            '[observe]\nlisten = ""\n'
        )
        victim = stack.enter_context(Victim(folder / "agent.log"))
        began_ms = int(time.time() * 1000)
        at = {DATANODE: victim.start(config)}
        scm.holders = at | {n.datanode_id: n.address for i, n in shards.nodes.items() if i > 1}
        scm.known.set()
        yield Checks(stack.enter_context(Peer(at[DATANODE])), began_ms)
        victim.stop()


def flip(path: Path, offset: int) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_wrong_stripe_is_named_by_the_parity_scrub(checks: Checks) -> None:
    """One container was verified: its stripes, its bytes, and the shard that does not fit."""
    stripes = [cells for made in groups_of(RS_3_2, LENGTHS).values() for cells in made.stripes]

    parity = checks.until(lambda found: found.parity.verified_count == 1).parity

    assert checks.began_ms <= parity.oldest_verified_at_ms <= time.time() * 1000
    assert parity == d.ParityScrub(
        interval_ms=INTERVAL_S * 1000,
        verified_count=1,
        oldest_verified_at_ms=parity.oldest_verified_at_ms,
        stripe_count=len(stripes),
        read_bytes=sum(len(cell) for cells in stripes for cell in cells.values()),
        fault_count=1,
        faults=[
            d.ParityFault(
                container_id=CODED,
                local_id=WRONG_BLOCK,
                stripe=WRONG_STRIPE,
                wrong_shards=[WRONG_SHARD],
            )
        ],
    )


def test_sample_counts_what_it_drew_and_what_it_could_not_draw(checks: Checks) -> None:
    """Chunks without checksums and damaged rows are not drawn; chunks that are gone are."""
    *_, counted = checks.sample()
    count = counted.result.chunk_count
    *_, last = checks.sample(chunk_count=count + 5, drawn_count=count + 5, seed=1)

    result = last.result
    assert (count + 5, 5) == (result.read_count + 5, result.gone_count)
    assert (1, 1) == (result.without_checksum_count, result.damaged_row_count)
    assert result.bad_count >= 2
    assert {ROTTEN} == {one.container_id for one in result.bad}
    assert [] == list(result.unread)


def test_seed_decides_which_chunks_are_drawn(checks: Checks) -> None:
    """The same seed draws the same chunks, which have another size than those of other seeds."""
    *_, counted = checks.sample()
    count = counted.result.chunk_count

    def read_bytes(seed: int) -> int:
        *_, last = checks.sample(chunk_count=count, drawn_count=3, seed=seed)
        return int(last.result.bytes_read)

    assert len({read_bytes(seed) for seed in range(1, 9)}) > 1
    assert read_bytes(1) == read_bytes(1)
