"""What datanodes have of containers: for a control plane that was restored and does not know.

    container ──each replica: its blocks, tombstones──► blocks that can be read, parts of files
                                                       └──► blocks of which tombstones are left

A datanode that does not answer is named, and nothing is concluded from its silence.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from agent.client.putnote import SCHEME, PartBlock, part_of
from agent.ec.blockgroup import group_length_bytes, longest_of_enough
from agent.ec.scheme import Scheme, parse_scheme
from agent.errors import Refused, SutureError
from agent.rpc.calls.peer import NodeAddress, Peer
from agent.rpc.v1 import scm_pb2
from merkle.replica import BlockData, ContainerId


@dataclass(slots=True)
class Seen:
    """One container as its datanodes show it."""

    container_id: int
    scheme: str = ""
    parts: list[PartBlock] = field(default_factory=list)  # blocks that can be read
    nameless: list[int] = field(default_factory=list)  # the same, but of which file?
    deleted: list[int] = field(default_factory=list)  # of which only tombstones are left
    torn: list[int] = field(default_factory=list)  # of which too few shards are there
    silent: dict[str, str] = field(default_factory=dict)  # datanodes, and why
    last_local_id: int = 0


def look_into(info: scm_pb2.ContainerInfo, dial: Callable[[NodeAddress], Peer]) -> Seen:
    """Ask every datanode that has a replica of a container what is in it."""
    container_id = ContainerId(info.container_id)
    seen = Seen(container_id, info.scheme)
    shown: dict[int, BlockData] = {}
    lengths: dict[int, dict[int, int]] = {}  # of groups, by index
    buried: set[int] = set()
    for one in info.replicas:
        try:
            peer = dial(one.datanode)
            blocks = peer.blocks_of(container_id)
            if one.replica.tree.tombstone_count:
                rows = peer.blocks(container_id)
                buried.update(rows.block_ids[rows.deleted].tolist())
        except SutureError as error:
            seen.silent[one.datanode.datanode_id] = str(error)
            continue
        for block in blocks:
            shown[block.block_id] = _later(shown.get(block.block_id, block), block)
            of_index = lengths.setdefault(block.block_id, {})
            length_bytes = group_length_bytes(block) or 0
            index = one.replica.replica_index
            of_index[index] = max(of_index.get(index, 0), length_bytes)
    seen.scheme = seen.scheme or _scheme_of(shown.values())
    scheme = parse_scheme(seen.scheme) if seen.scheme else None
    needed = scheme.data_count if scheme is not None else 1
    for local_id, block in shown.items():
        if len(lengths[local_id]) >= needed:
            _note(seen, block, scheme, lengths[local_id].values())
        elif local_id not in buried:
            seen.torn.append(local_id)
    if not seen.silent:
        seen.deleted = sorted(b for b in buried if len(lengths.get(b, ())) < needed)
    seen.last_local_id = max([0, *shown, *buried])
    return seen


def _later(one: BlockData, other: BlockData) -> BlockData:
    """Return of two rows of a block the one with more commits: a replica may have missed some."""
    return max(one, other, key=lambda block: (block.bcsid, block.length_bytes))


def _note(
    seen: Seen, block: BlockData, scheme: Scheme | None, lengths_bytes: Collection[int]
) -> None:
    length_bytes = sum(chunk.length_bytes for chunk in block.chunks)
    if scheme is not None:
        length_bytes = longest_of_enough(scheme, lengths_bytes)
    part = part_of(
        dict(block.metadata),
        container_id=seen.container_id,
        local_id=block.block_id,
        bcsid=block.bcsid,
        length_bytes=length_bytes,
    )
    if part is None:
        seen.nameless.append(block.block_id)
    else:
        seen.parts.append(part)


def _scheme_of(blocks: Iterable[BlockData]) -> str:
    """Return the erasure code that blocks name; empty: none does."""
    for block in blocks:
        text = dict(block.metadata).get(SCHEME, "")
        try:
            return str(parse_scheme(text)) if text else ""
        except Refused:
            continue
    return ""
