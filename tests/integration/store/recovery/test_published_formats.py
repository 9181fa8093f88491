"""The examples in docs/DISK_FORMAT.md are what the code writes."""

import re
from pathlib import Path

import pytest

from agent.store.files.layout import VolumeVersion
from agent.store.index.databases import DATABASES
from agent.store.index.packformat import PAGE_BYTES, PackedBlocks, encode_packed, encode_table
from agent.store.index.rows import (
    DescriptorEntry,
    InstallEntry,
    JournalEntry,
    ReplicaRow,
    TreeEntry,
    UnlinkEntry,
    decode_replica,
    encode_journal,
    encode_replica,
    journal_key,
    unseal,
)
from agent.store.replica.descriptor import descriptor_of, encode_descriptor
from merkle.checksum import Algorithm
from merkle.replica import Bcsid, BlockId, ContainerId, ReplicaState
from merkle.tree_summary import TreeSummary
from tests.support.storage.stores import chunk_of, content

DOCUMENT = (Path(__file__).parents[4] / "docs" / "DISK_FORMAT.md").read_text()
SEVEN = ContainerId(7)
EXAMPLE = ReplicaRow(
    state=ReplicaState.UNHEALTHY,
    former_state=ReplicaState.CLOSED,
    bcsid=Bcsid(9),
    used_bytes=4096,
    block_count=1,
    generation=3,
    tree=TreeSummary(Algorithm.XXH3_64, 0x1122334455667788, 2, 1, 0, 0x99),
    data_scan_at_ms=1_700_000_000_000,
    finding_count=1,
    created_at_ms=1_600_000_000_000,
    origin_datanode_id="dn-1",
)
ENTRIES: tuple[JournalEntry, ...] = (
    DescriptorEntry(),
    TreeEntry(4),
    UnlinkEntry((BlockId(3),)),
    InstallEntry(BlockId(3), chunk_of(content("x")), 1, -1, "", pending=False),
    InstallEntry(BlockId(3), chunk_of(content("x")), 1, -1, "", False, 7, 8),
)


def test_the_replica_row_is_as_published() -> None:
    """
    Byte for byte.
    """
    dump = re.search(r"^```\n((?:[0-9a-f]{20,}\n)+)```$", DOCUMENT, re.MULTILINE)

    assert dump is not None
    published = bytes.fromhex(dump[1].replace("\n", ""))
    assert published == encode_replica(EXAMPLE)
    assert EXAMPLE == decode_replica(SEVEN, published)


def test_the_descriptor_is_as_published() -> None:
    """
    With its checksum.
    """
    assert f"```yaml\n{encode_descriptor(descriptor_of(SEVEN, EXAMPLE)).decode()}```" in DOCUMENT


def test_version_is_as_published() -> None:
    """
    Keys and their order.
    """
    version = VolumeVersion(
        layout_version=1,
        cluster_id="CID-1",
        datanode_id="dn-1",
        volume_id="DS-5f1c2b1e-6a0c-4a57-8d0e-4b1c7a1f0a11",
        created_at_ms=1_600_000_000_000,
    )

    assert f"```\n{version.encode().decode()}```" in DOCUMENT


@pytest.mark.parametrize("entry", ENTRIES)
def test_journal_entries_are_as_published(entry: JournalEntry) -> None:
    """
    Kind, its byte in the key, and every field are in the table.
    """
    text = bytes(unseal(encode_journal(entry), "entry")).decode()
    fields = re.findall(r'"(\w+)":', text)
    kind = re.search(r'"kind":"(\w+)"', text)
    assert kind is not None
    number = journal_key(SEVEN, entry)[8]

    row = next(
        line for line in DOCUMENT.splitlines() if line.startswith(f"| `{kind[1]}` | {number} |")
    )

    assert [] == [name for name in fields if name != "kind" and f"`{name}`" not in row]


@pytest.mark.parametrize("name", DATABASES)
def test_every_database_is_published(name: str) -> None:
    """
    No database of the index is undocumented.
    """
    assert f"\n| `{name}` | be64 container" in DOCUMENT


def test_a_pack_s_table_and_rows_are_as_published() -> None:
    """
    Byte for byte.
    """
    blocks = PackedBlocks.side_by_side([5, 9], [100, 5_000])
    table = encode_table(blocks, 3 * PAGE_BYTES).hex()

    assert "\n".join(table[start : start + 64] for start in range(0, len(table), 64)) in DOCUMENT
    for _, row in encode_packed(blocks):
        assert f"`{row.hex()}`" in DOCUMENT
