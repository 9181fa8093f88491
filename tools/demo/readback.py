"""Reads every stored file from every replica, and compares it with its source."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Final

import xxhash

from merkle.replica import BlockData, ContainerId
from suture.client.cluster_client import ClusterClient
from suture.client.file_pieces import FilePart, SourceFile, chunks_of
from suture.client.writer import StoredFile
from suture.errors import SutureError
from suture.wire.mapping.blockpieces import Data
from suture.wire.v1 import scm_pb2

READERS: Final = 4
FETCHED_THROUGH_KEYS_MAX: Final = 25  # files that are also fetched with `suture get`

Checksums = dict[tuple[str, int], str]
"""XXH3-128 of each block, by key and part."""


def source_checksums(sources: Sequence[SourceFile], stored: Sequence[StoredFile]) -> Checksums:
    """Read the sources; return the checksum of each of their blocks."""
    blocks = {item.key: item.blocks for item in stored}
    return {
        (source.key, piece.part): checksum_of(chunks_of(piece))[0]
        for source in sources
        for piece in _pieces(source, [block.length for block in blocks[source.key]])
    }


def _pieces(source: SourceFile, sizes_bytes: Sequence[int]) -> Iterator[FilePart]:
    """Yield the parts of a source with these lengths."""
    offsets = accumulate(sizes_bytes, initial=0)
    for part, (size_bytes, offset) in enumerate(zip(sizes_bytes, offsets, strict=False)):
        yield FilePart(source, part, size_bytes, offset)


def checksum_of(pieces: Iterator[Data]) -> tuple[str, int]:
    """Return the XXH3-128 checksum and the number of the bytes in `pieces`."""
    checksum, count = xxhash.xxh3_128(), 0
    for piece in pieces:
        checksum.update(piece)
        count += len(piece)
    return checksum.hexdigest(), count


def read_back(
    client: ClusterClient, infos: Sequence[scm_pb2.ContainerInfo], expected: Checksums
) -> tuple[int, list[str]]:
    """Read all blocks of all replicas; return the number of bytes read, and the deviations from the
    expected checksums."""
    replicas = [
        (ContainerId(info.container_id), rank, replica)
        for info in infos
        for rank, replica in enumerate(info.replicas)
    ]
    with ThreadPoolExecutor(READERS) as pool:
        results = list(
            pool.map(lambda item: read_replica(client, item[0], item[2], expected), replicas)
        )
    wrong = [why for _, why_list, _ in results for why in why_list]
    for rank in range(max((rank for _, rank, _ in replicas), default=-1) + 1):
        seen: set[tuple[str, int]] = set()
        for (_, its_rank, _), (_, _, keys) in zip(replicas, results, strict=True):
            if its_rank == rank:
                seen |= keys
        wrong += [
            f"{key} part {part}: replica {rank} lacks it"
            for key, part in expected
            if (key, part) not in seen
        ]
    wrong += fetch_through_keys(client, expected)
    return sum(count for count, _, _ in results), wrong


def read_replica(
    client: ClusterClient,
    container_id: ContainerId,
    replica: scm_pb2.ContainerInfoReplica,
    expected: Checksums,
) -> tuple[int, list[str], set[tuple[str, int]]]:
    """Read one replica; return the number of bytes read, the deviations, and its blocks as (key,
    part)."""
    peer = client.peer(replica.datanode)
    read_bytes, wrong, seen = 0, [], set()
    for block in peer.blocks_of(container_id):
        metadata = dict(block.metadata)
        name = (metadata["key"], int(metadata["part"]))
        where = f"{name[0]} part {name[1]} on {replica.datanode.datanode_id}"
        try:
            checksum, count = checksum_of(block_bytes(client, replica, container_id, block))
        except SutureError as error:
            wrong.append(f"{where}: {error}")
            continue
        read_bytes += count
        seen.add(name)
        if checksum != expected.get(name):
            wrong.append(f"{where} is not what was stored")
    return read_bytes, wrong, seen


def block_bytes(
    client: ClusterClient,
    replica: scm_pb2.ContainerInfoReplica,
    container_id: ContainerId,
    block: BlockData,
) -> Iterator[Data]:
    """Yield a block's verified bytes from one replica."""
    peer = client.peer(replica.datanode)
    for chunk in block.chunks:
        yield peer.read_chunk(container_id, block.block_id, chunk.offset)[1]


def fetch_through_keys(client: ClusterClient, expected: Checksums) -> list[str]:
    """Fetch some files by key, as a user does; return the deviations from the expected
    checksums."""
    whole = [key for key, part in expected if part == 0 and (key, 1) not in expected]
    step = max(1, len(whole) // FETCHED_THROUGH_KEYS_MAX)
    return [
        f"{key} fetched by its key is not what was stored"
        for key in whole[::step]
        if checksum_of(client.get(key))[0] != expected[key, 0]
    ]
