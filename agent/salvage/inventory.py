"""What volumes have together: files by key, and blocks that name no key."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from agent.client.putnote import SCHEME, Found, PartBlock, files_of, part_of
from agent.ec.blockgroup import group_length_bytes, longest_of_enough
from agent.ec.scheme import Scheme, parse_scheme
from agent.errors import Refused
from agent.salvage.safe_paths import older, paths_of
from agent.salvage.source_volumes import Copy, OfflineVolume
from merkle.replica import BlockData, BlockId, ContainerId


@dataclass(frozen=True, slots=True)
class Wanted:
    """One file to write: its blocks in order, by container and block. `key` is "" of one block
    that names none; `lack` says why it cannot be whole, empty: as far as rows tell it can."""

    key: str
    path: str
    blocks: tuple[tuple[int, int], ...]
    size_bytes: int
    at_ms: int = 0
    lack: str = ""


@dataclass(slots=True)
class Inventory:
    """Everything that is on the volumes."""

    holders: dict[ContainerId, list[tuple[OfflineVolume, int]]] = field(default_factory=dict)
    files: list[Wanted] = field(default_factory=list)
    schemes: dict[ContainerId, Scheme] = field(default_factory=dict)
    deleted_count: int = 0  # blocks that another volume has buried: they are written all the same

    def copies(self, container_id: int, local_id: int) -> list[Copy]:
        """Return all that volumes have of a block."""
        key = ContainerId(container_id), BlockId(local_id)
        found = (volume.copy(*key, index) for volume, index in self.holders[key[0]])
        return [copy for copy in found if copy is not None]


def take_inventory(volumes: Sequence[OfflineVolume], given: Scheme | None) -> Inventory:
    """Read every row of the volumes; `given` is the erasure code of groups that name none."""
    inventory = Inventory()
    for volume in volumes:
        for container_id, index in volume.replicas().items():
            inventory.holders.setdefault(container_id, []).append((volume, index))
    parts: list[PartBlock] = []
    nameless: list[Wanted] = []
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
    nameless: list[Wanted],
) -> None:
    shown: dict[BlockId, BlockData] = {}
    buried: set[BlockId] = set()
    lengths: dict[BlockId, dict[int, int]] = {}  # of groups, by index
    is_coded = False
    for volume, index in inventory.holders[container_id]:
        is_coded |= index > 0
        buried |= volume.buried(container_id)
        for block in volume.blocks(container_id):
            if block.block_id not in shown or block.bcsid > shown[block.block_id].bcsid:
                shown[block.block_id] = block
            if index and (length_bytes := group_length_bytes(block)) is not None:
                of_index = lengths.setdefault(block.block_id, {})
                of_index[index] = max(of_index.get(index, 0), length_bytes)
    inventory.deleted_count += len(buried & shown.keys())
    scheme = next(filter(None, map(_scheme_of, shown.values())), given) if is_coded else None
    if scheme is not None:
        inventory.schemes[container_id] = scheme
    for block_id in sorted(shown):
        block = shown[block_id]
        length_bytes = sum(chunk.length_bytes for chunk in block.chunks)
        if is_coded:
            told = lengths.get(block_id, {0: 0}).values()
            length_bytes = longest_of_enough(scheme, told) if scheme is not None else max(told)
        part = part_of(
            dict(block.metadata),
            container_id=container_id,
            local_id=block_id,
            bcsid=block.bcsid,
            length_bytes=length_bytes,
        )
        if part is not None:
            parts.append(part)
        else:
            path = f"blocks/{container_id}/{block_id}.bin"
            nameless.append(Wanted("", path, ((container_id, block_id),), length_bytes))


def _scheme_of(block: BlockData) -> Scheme | None:
    text = dict(block.metadata).get(SCHEME, "")
    try:
        return parse_scheme(text) if text else None
    except Refused:
        return None


def files_to_write(found: Sequence[Found]) -> list[Wanted]:
    """Name each put: the newest that has all its parts has the key's own path."""
    paths = paths_of(one.key for one in found)
    newest: dict[str, Found] = {}
    for one in found:  # older puts come first
        if one.is_whole or one.key not in newest or not newest[one.key].is_whole:
            newest[one.key] = one
    wanted = []
    for one in found:
        path = paths[one.key]
        if one is not newest[one.key]:
            path = older(path, one.last_local_id)
        wanted.append(
            Wanted(
                one.key,
                f"keys/{path}",
                tuple((block.container_id, block.local_id) for block in one.blocks),
                one.size_bytes,
                one.at_ms,
                "" if one.is_whole else _lack(one),
            )
        )
    return wanted


def _lack(one: Found) -> str:
    have = [block.part for block in one.blocks]
    note = one.blocks[0].note
    if note is None:
        return f"its parts {have} do not make a file without doubt"
    return f"it has parts {have} of {note.part_count}, {one.size_bytes} of {note.size_bytes} bytes"
