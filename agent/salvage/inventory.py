"""Inventory of several volumes: the files that belong to keys, and the blocks without a key."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from agent.salvage.offline_volumes import BlockCopy, OfflineVolume
from agent.salvage.safe_paths import older, paths_of
from merkle.replica import BlockId, ContainerId
from suture.client.block_vote import BlockVote
from suture.client.put_metadata import DiscoveredPut, PartBlock, files_of
from suture.ec.scheme import Scheme


@dataclass(frozen=True, slots=True)
class SalvageFile:
    """A file to write. `blocks` has the pairs (container id, block id) of its blocks, in order.

    `key` is "" for a block without a key. `lack` is the reason why the rows do not describe a
    complete file; "" if the file is complete.
    """

    key: str
    path: str
    blocks: tuple[tuple[int, int], ...]
    size_bytes: int
    at_ms: int = 0
    lack: str = ""


@dataclass(slots=True)
class Inventory:
    """The content of all volumes.

    `holders` has, for each container, the volumes with a replica and the replica's index. `files`
    has the files to write, and `schemes` the erasure codes of containers.
    """

    holders: dict[ContainerId, list[tuple[OfflineVolume, int]]] = field(default_factory=dict)
    files: list[SalvageFile] = field(default_factory=list)
    schemes: dict[ContainerId, Scheme] = field(default_factory=dict)
    deleted_count: int = 0  # blocks with a tombstone on another volume; they are written anyway

    def copies(self, container_id: int, local_id: int) -> list[BlockCopy]:
        """Return all readable records of a block, one for each volume that has the block."""
        key = ContainerId(container_id), BlockId(local_id)
        found = (volume.copy(*key, index) for volume, index in self.holders[key[0]])
        return [copy for copy in found if copy is not None]


def build_inventory(volumes: Sequence[OfflineVolume], given: Scheme | None) -> Inventory:
    """Read every row of the volumes, and return the files and the volumes of each container.

    `given` is the erasure code of blocks whose rows do not name their code.
    """
    inventory = Inventory()
    for volume in volumes:
        for container_id, index in volume.replicas().items():
            inventory.holders.setdefault(container_id, []).append((volume, index))
    parts: list[PartBlock] = []
    nameless: list[SalvageFile] = []
    for container_id in sorted(inventory.holders):
        _look_into(inventory, container_id, given, parts, nameless)
    found = files_of(parts)
    inventory.files = [*files_to_write(found), *nameless]
    return inventory


def _look_into(
    inventory: Inventory,
    container_id: ContainerId,
    given: Scheme | None,
    parts: list[PartBlock],
    nameless: list[SalvageFile],
) -> None:
    rows = BlockVote(container_id)
    buried: set[BlockId] = set()
    is_coded = False
    for volume, index in inventory.holders[container_id]:
        is_coded |= index > 0
        buried |= volume.deleted_blocks(container_id)
        for block in volume.blocks(container_id):
            rows.add(block, index)
    inventory.deleted_count += len(buried & rows.shown.keys())
    scheme = (rows.scheme() or given) if is_coded else None
    if scheme is not None:
        inventory.schemes[container_id] = scheme
    for block_id in sorted(rows.shown):
        length_bytes = rows.length_bytes(block_id, scheme, is_coded=is_coded)
        part = rows.part(block_id, length_bytes)
        if part is not None:
            parts.append(part)
        else:
            path = f"blocks/{container_id}/{block_id}.bin"
            nameless.append(SalvageFile("", path, ((container_id, block_id),), length_bytes))


def files_to_write(found: Sequence[DiscoveredPut]) -> list[SalvageFile]:
    """Return one file with an output path for each put, where a put is one upload of a key.

    The newest complete put of a key gets the path of the key. If no put is complete, the newest put
    gets this path. Other puts of the key get a path with a suffix.
    """
    paths = paths_of(one.key for one in found)
    newest: dict[str, DiscoveredPut] = {}
    for one in found:  # ordered from older to newer puts
        if one.is_whole or one.key not in newest or not newest[one.key].is_whole:
            newest[one.key] = one
    wanted = []
    for one in found:
        path = paths[one.key]
        if one is not newest[one.key]:
            path = older(path, one.last_local_id)
        wanted.append(
            SalvageFile(
                one.key,
                f"keys/{path}",
                tuple((block.container_id, block.local_id) for block in one.blocks),
                one.size_bytes,
                one.at_ms,
                "" if one.is_whole else _lack(one),
            )
        )
    return wanted


def _lack(one: DiscoveredPut) -> str:
    have = [block.part for block in one.blocks]
    note = one.blocks[0].note
    if note is None:
        return f"its parts {have} do not make a file without doubt"
    return f"it has parts {have} of {note.part_count}, {one.size_bytes} of {note.size_bytes} bytes"
