"""Scenarios of the reconcile planner as text.

    mine        17: 0+4M=aaaa 4M+4M=bbbb! ; 18: deleted=cccc ; 19:
    peer dn2    17: 0+4M=aaaa 4M+4M=bbbb
    row         17: 0+4M=aaaa 4M+4M=bbbb    our index's row; without it our row is lost
    finding     TRAILING_BYTES 17           fault, block and offset (both may be left out)
    silent      dn4 dn5                     known holders that did not answer
    empty       dn4                         known holders without a block
    echoed      dn2                         peers whose root a silent holder reported
    dead        dn4                         known holders whose datanode was given up
    ordered     17                          deletes that the control plane ordered
    kept        17                          blocks that a key needs
    trust       dn2                         the datanode that an operator trusts

`!` marks a chunk that its owner reports as unhealthy. A name such as `aaaa` stands for the
checksums of the chunk's windows. Answers use the same names.
"""

from agent.plan.actions import (
    AdoptTombstone,
    ConfirmedDeletes,
    HolderCoverage,
    PeerView,
    RebuildTree,
    RepairBlock,
    RepairPlan,
    RewriteDescriptor,
    Skip,
    Trim,
)
from agent.plan.reconcile_plan import plan
from merkle.checksum import Algorithm, leaf_checksum
from merkle.diff import diff
from merkle.replica import BlockId, ChecksumType, ChunkInfo, ContainerId
from merkle.tree import Leaf, Tree
from merkle.tree_building import TreeBuilder
from scanner.finding import DamageFault, ScanFinding, Verdict

ALGORITHM = Algorithm.XXH3_64
UNITS = {"K": 1024, "M": 1024**2}


def answer(statements: list[str]) -> list[str]:
    """Return the lines of text that describe the plan for one scenario."""
    return told(*read(statements))


def read(statements: list[str]) -> tuple[RepairPlan, "Names"]:
    """Return the plan for one scenario, and the names of checksums in the scenario."""
    names = Names()
    mine = tree_of("", names)
    peers: list[PeerView] = []
    trees: dict[str, Tree] = {}
    rows: dict[BlockId, list[ChunkInfo]] = {}
    findings: list[ScanFinding] = []
    words: dict[str, list[str]] = {
        name: [] for name in ("silent", "empty", "echoed", "dead", "ordered", "kept", "trust")
    }
    for statement in statements:
        word, _, rest = statement.partition(" ")
        if word == "mine":
            mine = tree_of(rest, names)
        elif word == "peer":
            peer_id, _, blocks = rest.strip().partition(" ")
            trees[peer_id] = tree_of(blocks, names)
        elif word == "row":
            block, _, chunks = rest.partition(":")
            rows[BlockId(int(block))] = [row_chunk(chunk, names) for chunk in chunks.split()]
        elif word in words:
            words[word] += rest.split()
        else:
            assert word == "finding", statement
            findings.append(finding_of(rest.split()))
    peers = [PeerView(peer_id, tree, diff(mine, tree)) for peer_id, tree in trees.items()]
    planned = plan(
        mine,
        peers,
        findings,
        rows,
        heard=HolderCoverage(
            *(frozenset(words[name]) for name in ("silent", "empty", "echoed", "dead"))
        ),
        deletes=ConfirmedDeletes(block_ids_of(words["ordered"]), block_ids_of(words["kept"])),
        trusted="".join(words["trust"]),
    )
    return planned, names


def block_ids_of(words: list[str]) -> frozenset[BlockId]:
    """Return the block ids that the words give."""
    return frozenset(BlockId(int(word)) for word in words)


class Names:
    """Mapping of names to checksums."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def leaf(self, offset: int, length_bytes: int, name: str, *, healthy: bool) -> Leaf:
        """Return a leaf and remember its name."""
        checksum = leaf_checksum(ALGORITHM, offset, length_bytes, name.encode())
        self._names[checksum] = name
        return Leaf(offset, length_bytes, checksum, healthy)

    def tombstone(self, name: str) -> int:
        """Return a tombstone's checksum; names of hex digits keep their order."""
        self._names[int(name, 16)] = name
        return int(name, 16)

    def of(self, checksum: int) -> str:
        """Return the name of a checksum."""
        return self._names[checksum]


def tree_of(text: str, names: Names) -> Tree:
    """Return the tree that `text` describes."""
    builder = TreeBuilder(ALGORITHM)
    for block in filter(str.strip, text.split(";")):
        block_id, _, chunks = block.partition(":")
        words = chunks.split()
        if words and words[0].startswith("deleted="):
            builder.add_tombstone(int(block_id), names.tombstone(words[0].removeprefix("deleted=")))
            continue
        builder.add_block(int(block_id))
        for word in words:
            span, _, name = word.partition("=")
            offset, length_bytes = span_of(span)
            healthy = not name.endswith("!")
            builder.add_leaf(names.leaf(offset, length_bytes, name.rstrip("!"), healthy=healthy))
    return builder.build()


def span_of(text: str) -> tuple[int, int]:
    """Return offset and length of `4M+4M`."""
    offset, length = text.split("+")
    return size_of(offset), size_of(length)


def size_of(text: str) -> int:
    """Return the bytes of `4M`, `16K` or `100`."""
    unit = UNITS.get(text[-1])
    return int(text) if unit is None else int(text[:-1]) * unit


def size_text(size_bytes: int) -> str:
    """Return a size in the notation of the scenarios, such as `4M`."""
    for name, unit in reversed(UNITS.items()):
        if size_bytes and size_bytes % unit == 0:
            return f"{size_bytes // unit}{name}"
    return str(size_bytes)


def row_chunk(text: str, names: Names) -> ChunkInfo:
    """Return a chunk of our index. Its checksums are those of the leaf with the same name."""
    span, _, name = text.partition("=")
    offset, length_bytes = span_of(span)
    names.leaf(offset, length_bytes, name, healthy=True)
    return ChunkInfo(offset, length_bytes, ChecksumType.CRC32C, 16 * 1024, name.encode())


def finding_of(words: list[str]) -> ScanFinding:
    """Return the finding `FAULT [block [offset]]`."""
    fault = DamageFault(words[0])
    block_id = BlockId(int(words[1])) if len(words) > 1 else BlockId(-1)
    offset = size_of(words[2]) if len(words) > 2 else -1
    return ScanFinding(ContainerId(1), Verdict.CORRUPT, fault, block_id, offset, -1, 0, "evidence")


def told(planned: RepairPlan, names: Names) -> list[str]:
    """Return lines of text that describe the actions and skips of a plan."""
    lines: list[str] = []
    for action in planned.actions:
        match action:
            case RepairBlock():
                lenders = " ".join(action.metadata_sources)
                lines.append(f"repair block {action.block_id}, described by {lenders}")
                lines += [
                    f"  chunk {span_text(chunk.leaf)}={names.of(chunk.leaf.checksum)} "
                    f"({chunk.cause}) from {' '.join(chunk.sources)}"
                    + (", as ordered" if chunk.is_ordered else "")
                    for chunk in action.chunks
                ]
            case AdoptTombstone():
                name = names.of(action.checksum)
                lines.append(f"adopt tombstone {action.block_id}={name} of {action.source}")
            case Trim():
                lines.append(f"trim block {action.block_id}, equal to {action.equal_to}")
            case RewriteDescriptor():
                lines.append(f"rewrite descriptor ({action.fault})")
            case RebuildTree():
                lines.append(f"rebuild tree ({action.fault})")
    for skip in planned.skips:
        where = "replica" if skip.block_id == -1 else f"block {skip.block_id}"
        where += f" {size_text(skip.offset)}" if skip.offset != -1 else ""
        rest = " ".join([*skip.peers, told_detail(skip, names)]).strip()
        mark = ", harmless" if skip.is_harmless else ""
        lines.append(f"skip {where}: {skip.reason} {rest}".rstrip() + mark)
    lines.append(f"covered: {' '.join(sorted(planned.covered_peers)) or 'nobody'}")
    return lines


def told_detail(skip: Skip, names: Names) -> str:
    """Return the details of a skipped difference, with names in place of checksums."""
    if not skip.versions:
        return skip.detail
    said = [("here", skip.mine), *skip.versions]
    return ": " + " ".join(f"{who}={names.of(leaf.checksum)}" for who, leaf in said if leaf)


def span_text(leaf: Leaf) -> str:
    """Return the position of a chunk in the notation of the scenarios."""
    return f"{size_text(leaf.offset)}+{size_text(leaf.length_bytes)}"
