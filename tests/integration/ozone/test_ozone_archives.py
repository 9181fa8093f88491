"""Containers that Ozone's datanodes push to an agent: archives that a real one made, and others.

`tests/golden/ozone/archives`: what Ozone 2.2.0 exported. `whole`: container 5, closed, with blocks
of CRC32, CRC32C, SHA256 and no checksums, block 104 deleted and block 105 ordered to be. `shard`:
container 6, the second of an erasure-coded group. Bytes are those of java.util.Random.
`of-1.4.1`: container 1 as a datanode of Ozone 1.4.1 pushes it, without a tree and with the empty
table `deleted_blocks`.
"""

import io
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import zstandard

from merkle.checksum import Algorithm
from merkle.replica import BlockId, ContainerId, ReplicaState
from tests.support.heard import logged
from tests.support.ozone.ozone_agent import OzoneAgent, OzoneClient, block_id, served
from tests.support.ozone.ozone_datanode import java_random
from tests.support.ozone.ozone_volumes import GOLDEN, descriptor_text
from tests.support.ozone.ozone_wire import WIRE

ARCHIVES = GOLDEN.parent / "archives"
OF_1_4, WHOLE, SHARD = ContainerId(1), ContainerId(5), ContainerId(6)
ROOT, SHARD_ROOT = 0x7C4CC851, 0xE5AB9259  # as Ozone told them when it had closed them
BLOCKS = {99: (4, 4000), 101: (1, 3000), 102: (2, 300), 103: (3, 1000)}  # seed, bytes
GONE = {104, 105}
UNSUMMED = 103  # nobody could tell
ZSTD = 5
REFUSED = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION}


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[tuple[OzoneAgent, OzoneClient]]:
    """An agent that has nothing, and folds trees as Ozone does."""
    with served(tmp_path, algorithm=Algorithm.CRC32C) as found:
        yield found


def packed(name: str) -> bytes:
    """Return an archive as Ozone compressed it."""
    return (ARCHIVES / f"{name}.tar.zst").read_bytes()


def plain(name: str) -> bytes:
    """Return an archive as it is before that."""
    return zstandard.ZstdDecompressor().stream_reader(packed(name)).read()


def cut(data: bytes, size_bytes: int = 1_000) -> list[bytes]:
    """Return data in parts."""
    return [data[at : at + size_bytes] for at in range(0, len(data), size_bytes)]


def files_of(name: str) -> dict[str, bytes]:
    """Return the files in an archive, in their order."""
    with tarfile.open(fileobj=io.BytesIO(plain(name))) as archive:
        members = [member for member in archive if member.isreg()]
        return {one.name: archive.extractfile(one).read() for one in members}  # type: ignore[union-attr]


def archive_of(files: dict[str, bytes] | list[tuple[str, bytes]]) -> bytes:
    """Return an archive of files."""
    named = files.items() if isinstance(files, dict) else files
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in named:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


def check_whole(made: OzoneAgent, *unsummed: int) -> None:
    """Assert that container 5 is here as Ozone had it; `unsummed` blocks may be otherwise."""
    store = made.replica.store
    facts = store.replica(WHOLE)
    assert (ReplicaState.CLOSED, 0, 4) == (facts.state, facts.replica_index, facts.block_count)
    assert list(BLOCKS) == [block.block_id for block in store.view(WHOLE).blocks()]
    for number, (seed, length_bytes) in BLOCKS.items():
        data = store.view(WHOLE).read(BlockId(number), 0, length_bytes)
        assert java_random(seed, length_bytes) == data or number in unsummed
    assert GONE == set(store.view(WHOLE).tombstones())
    assert ROOT == store.view(WHOLE).tree().root


def check_nothing(made: OzoneAgent) -> None:
    """Assert that there is no trace of any container."""
    assert [] == made.replica.store.replica_ids()
    importing = made.replica.path.glob("hdds/*/tmp/importing/*")
    assert [] == list(importing)
    assert [] == made.scans


@pytest.mark.parametrize("is_packed", [False, True])
def test_container_exported_by_ozone_is_imported(
    agent: tuple[OzoneAgent, OzoneClient], is_packed: bool
) -> None:
    """Rows, bytes, root, deleted blocks and pending deletes are imported; then the container is
    scanned.
    """
    made, client = agent

    if is_packed:
        client.upload(WHOLE, *cut(packed("whole")), compression=ZSTD, size=9_400)
    else:
        client.upload(WHOLE, *cut(plain("whole")), compression=1)

    check_whole(made)
    assert [WHOLE] == made.scans
    assert [("ImportContainer", "OK")] == [line[:2] for line in made.audit.lines]
    assert made.replica.scan(WHOLE).finding_count == 0


def test_container_pushed_by_ozone_1_4_is_imported(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """Its empty table `deleted_blocks`, which later versions do not have, is no obstacle."""
    made, client = agent

    client.upload(OF_1_4, *cut(packed("of-1.4.1")), compression=ZSTD)

    view = made.replica.store.view(OF_1_4)
    files = {name: data for name, data in files_of("of-1.4.1").items() if name[:6] == "chunks"}
    blocks = {f"chunks/{block.block_id}.block": block for block in view.blocks()}
    assert 4 == len(files)
    assert files == {
        name: view.read(block.block_id, 0, block.length_bytes) for name, block in blocks.items()
    }
    assert made.replica.scan(OF_1_4).finding_count == 0


def test_rows_in_a_table_of_deleted_blocks_are_refused(
    agent: tuple[OzoneAgent, OzoneClient],
) -> None:
    """What they would mean for the container is not known."""
    made, client = agent
    files = files_of("of-1.4.1") | {"db/deleted_blocks.data": b"a row"}

    with pytest.raises(grpc.RpcError) as caught:
        client.upload(OF_1_4, archive_of(files), compression=1)

    assert "deleted_blocks" in caught.value.details()
    check_nothing(made)


def test_archive_of_schema_v2_is_refused_in_words_and_logged_once(
    agent: tuple[OzoneAgent, OzoneClient],
) -> None:
    """The sender and this agent's log name the schema, however often the container comes."""
    made, client = agent
    fields = dict(line.split(": ") for line in yaml_of("of-1.4.1").splitlines()[1:])
    text = descriptor_text({**fields, "schemaVersion": "'2'"})
    archive = archive_of([("container.yaml", text), ("db/CURRENT", b"MANIFEST-000005")])

    with logged() as events:
        for _ in range(2):
            with pytest.raises(grpc.RpcError) as caught:
                client.upload(OF_1_4, archive, compression=1)

    assert grpc.StatusCode.FAILED_PRECONDITION is caught.value.code()
    assert "schema V2" in caught.value.details()
    refused = [event for event in events if event["event"] == "ozone_import_refused"]
    assert [OF_1_4] == [event["container_id"] for event in refused]
    assert "schema V2" in refused[0]["error"]
    check_nothing(made)


def yaml_of(name: str) -> str:
    """Return the descriptor in an archive, without its checksum."""
    lines = files_of(name)["container.yaml"].decode().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("checksum"))


def test_a_shard_is_taken(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """With its index, and the checksums of its stripes."""
    made, client = agent

    client.upload(SHARD, packed("shard"), compression=ZSTD)

    facts = made.replica.store.replica(SHARD)
    assert (2, SHARD_ROOT) == (facts.replica_index, made.replica.store.view(SHARD).tree().root)
    block = client.ask("getBlock", SHARD, blockID=block_id(201, SHARD)).getBlock.blockData
    assert [20] * 3 == [len(chunk.stripeChecksum) for chunk in block.chunks]
    assert ["TYPE", "blockGroupLen"] == [pair.key for pair in block.metadata]


def test_a_store_of_other_trees_takes_it_too(tmp_path: Path) -> None:
    """The live blocks are folded again with the other algorithm."""
    with served(tmp_path) as (made, client):
        client.upload(WHOLE, plain("whole"))

        assert list(BLOCKS) == [one.block_id for one in made.replica.store.view(WHOLE).blocks()]
        assert Algorithm.XXH3_64 is made.replica.store.view(WHOLE).tree().algorithm


def test_imported_container_survives_a_restart(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """An acknowledged import is on the disk."""
    made, client = agent
    client.upload(WHOLE, plain("whole"))

    made.door.server.stop(0).wait()
    made.replica.close()
    made.replica.reopen()

    check_whole(made)


def refused(client: OzoneClient, container_id: int, *parts: bytes, **first: int) -> grpc.RpcError:
    """Return why an archive is not taken."""
    with pytest.raises(grpc.RpcError) as caught:
        client.upload(container_id, *parts, **first)
    return caught.value


def answered(client: OzoneClient, data: bytes) -> grpc.StatusCode | None:
    """Return why an archive is not taken; None: it is."""
    try:
        client.upload(WHOLE, data)
    except grpc.RpcError as error:
        return error.code()
    return None


def test_no_flipped_bit_is_taken(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """The archive is refused and leaves nothing, or the bit was not part of the container."""
    made, client = agent
    whole = plain("whole")
    dice = random.Random(20)
    refused_count = 0
    for _ in range(80):
        data = bytearray(whole)
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        code = answered(client, bytes(data))
        assert code in {None, *REFUSED}
        if code is not None:
            refused_count += 1
            assert WHOLE not in made.replica.store.replica_ids()
            continue
        check_whole(made, UNSUMMED)
        made.replica.store.delete_container(WHOLE, force=True)
        made.scans.clear()

    assert refused_count > 20, "a third of an archive and more is rows and bytes"
    check_nothing(made)


@pytest.mark.parametrize("is_packed", [False, True])
def test_truncated_archive_is_refused(
    agent: tuple[OzoneAgent, OzoneClient], is_packed: bool
) -> None:
    """The archive is refused wherever it is cut."""
    made, client = agent
    data = packed("whole") if is_packed else plain("whole").rstrip(b"\0")
    dice = random.Random(21)

    for end in (0, 1, len(data) - 1, *(dice.randrange(len(data)) for _ in range(30))):
        refused(client, WHOLE, data[:end], compression=ZSTD if is_packed else 1)

    check_nothing(made)


def changed(**files: bytes | None) -> bytes:
    """Return the archive with other files: `chunks_101` is chunks/101.block; None: without it."""
    found: dict[str, bytes] = {}
    for name, content in files_of("whole").items():
        key = name.removesuffix(".block").removesuffix(".data").replace("/", "_").replace(".", "_")
        new = files.get(key, content)
        if new is not None:
            found[name] = new
    return archive_of(found)


def with_files(*added: tuple[str, bytes]) -> bytes:
    """Return the archive with files behind its own."""
    return archive_of(files_of("whole") | dict(added))


def descriptor(old: bytes, new: bytes) -> bytes:
    """Return the descriptor with a text changed, its checksum as it was."""
    return files_of("whole")["container.yaml"].replace(old, new)


WRONG: dict[str, tuple[bytes, str]] = {
    "no descriptor": (changed(container_yaml=None), "it begins with '5.tree'"),
    "a descriptor of another": (
        changed(container_yaml=descriptor(b"containerID: 5", b"containerID: 6")),
        "checksum",
    ),
    "one that is not closed": (
        changed(container_yaml=descriptor(b"state: CLOSED", b"state: OPEN")),
        "checksum",
    ),
    "no checksum": (
        changed(container_yaml=descriptor(b"checksum:", b"chequesum:")),
        "has no checksum",
    ),
    "no rows": (changed(db_block_data=None), "there is no db/block_data.data"),
    "damaged rows": (changed(db_block_data=bytes(900)), "its tables cannot be read"),
    "a damaged tree": (changed(**{"5_tree": b"no tree"}), "ChecksumInfo"),
    "no file of a block": (changed(chunks_101=None), "the first is block 101"),
    "a short file": (changed(chunks_101=java_random(1, 2999)), "the chunk at 2000 of block 101"),
    "other bytes": (changed(chunks_99=bytes(4000)), "the chunk at 0 of block 99"),
    "rows that are missing": (changed(db_block_data=b""), "is in its tree, and has no row"),
    "a table that Ozone has not": (with_files(("db/x.data", b"")), "no file of a block"),
    "a way out": (with_files(("chunks/../../x", b"")), "is no file of a block"),
    "an absolute name": (with_files(("/etc/passwd", b"")), "is no file of a block"),
    "something behind its end": (plain("whole") + b"more" * 50_000, "something follows its end"),
    "zeros without end": (plain("whole") + bytes(3 * 1024**2), "something follows its end"),
    "no archive": (b"\1" * 5_000, "cannot be read"),
}


@pytest.mark.parametrize("what", WRONG)
def test_an_archive_that_is_wrong_is_refused_by_name(
    agent: tuple[OzoneAgent, OzoneClient], what: str
) -> None:
    """Nothing of it is here."""
    made, client = agent
    data, said = WRONG[what]

    error = refused(client, WHOLE, *cut(data, 100_000))

    assert said in error.details()
    assert error.code() in REFUSED
    check_nothing(made)


def test_a_table_comes_once(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """A second one is the fault of who sends it, and no error of ours."""
    made, client = agent
    files = list(files_of("whole").items())
    at = next(at for at, (name, _) in enumerate(files) if name == "db/block_data.data")

    error = refused(client, WHOLE, archive_of([*files[: at + 1], *files[at:]]))

    assert "db/block_data.data comes twice" in error.details()
    assert grpc.StatusCode.INVALID_ARGUMENT is error.code()
    check_nothing(made)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_only_plain_files_are_taken(agent: tuple[OzoneAgent, OzoneClient], kind: bytes) -> None:
    """A link would lead somewhere."""
    made, client = agent
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        member = tarfile.TarInfo("container.yaml")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)

    assert "is no plain file" in refused(client, WHOLE, data.getvalue()).details()
    check_nothing(made)


def test_headers_are_bounded(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """A name of megabytes is not read."""
    made, client = agent
    data = archive_of({"x" * 3 * 1024**2: b""})

    assert "bytes of headers" in refused(client, WHOLE, *cut(data, 500_000)).details()
    check_nothing(made)


def test_decompression_bomb_behind_the_archive_is_not_unpacked(
    agent: tuple[OzoneAgent, OzoneClient],
) -> None:
    """A gibibyte of zeros in some kilobytes is not unpacked, because reading ends with the
    archive.
    """
    made, client = agent
    bomb = zstandard.ZstdCompressor().compressobj()
    data = bomb.compress(plain("whole"))
    for _ in range(256):
        data += bomb.compress(bytes(4 * 1024**2))
    data += bomb.flush()

    error = refused(client, WHOLE, data, compression=ZSTD)

    assert "something follows its end" in error.details()
    check_nothing(made)


def test_a_container_that_is_here_is_not_taken_again(
    agent: tuple[OzoneAgent, OzoneClient],
) -> None:
    """The existing container stays as it is."""
    made, client = agent
    client.upload(WHOLE, plain("whole"))

    error = refused(client, WHOLE, plain("whole"))

    assert grpc.StatusCode.ALREADY_EXISTS is error.code()
    check_whole(made)


def messages(**changes: Any) -> list[Any]:
    """Return the archive in two parts, of which the second is changed."""
    data = plain("whole")
    first = {"containerID": WHOLE, "offset": 0, "data": data[:20_000]}
    second = {"containerID": WHOLE, "offset": 20_000, "data": data[20_000:], **changes}
    return [WIRE["Upload"](**first), WIRE["Upload"](**second)]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (messages(offset=20_001), "at 20001, expected was container 5 at 20000"),
        (messages(offset=0), "at 0, expected was"),
        (messages(containerID=6), "a part of container 6"),
        ([], "there is nothing of it"),
        ([WIRE["Upload"](offset=0, data=b"x")], "containerID"),
        ([WIRE["Upload"](containerID=5, compression=9)], "compression 9 is unknown"),
        ([WIRE["Upload"](containerID=5, compression=3)], "compressed with LZ4 are not supported"),
    ],
)
def test_parts_that_do_not_follow_each_other_are_refused(
    agent: tuple[OzoneAgent, OzoneClient], parts: list[Any], said: str
) -> None:
    """By what is wrong with them."""
    made, client = agent

    with pytest.raises(grpc.RpcError) as caught:
        client.upload_messages(parts)

    assert said in caught.value.details()
    check_nothing(made)
