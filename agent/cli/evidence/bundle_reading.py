"""Reads a bundle that `suture diagnose` has written.

The reader limits the sizes of the documents, and expects that any content may be invalid.

    container-5/container.json            the control plane's record
    container-5/<datanode>/tree.json      one of the documents about a replica; the others are
                                          rows, medium (the data on disk), findings and replica

A bundle is a .tar.gz file with one such folder.
"""

import json
import struct
import tarfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar

from merkle.checksum import Algorithm
from merkle.replica import BlockId, ChecksumType, ChunkInfo
from merkle.tree import Leaf
from suture.errors import Code, RefusedError

DOCUMENT_BYTES_MAX: Final = 256 * 1024**2
DOCUMENTS_MAX: Final = 10_000
Document = Mapping[str, Any]
NONSENSE: Final = (
    *(KeyError, TypeError, ValueError, AttributeError),
    *(ArithmeticError, struct.error, MemoryError),
)
"""Exceptions that are raised when an invalid bundle is parsed."""
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class BundledMedium:
    """A chunk as it was on the disk when the bundle was written.

    `primary` and `second` are its checksums, computed by two checksum libraries. If the chunk was
    unreadable, only `error` is set.
    """

    length_bytes: int = 0
    primary: bytes = b""
    second: bytes = b""
    error: str = ""


@dataclass(frozen=True, slots=True)
class BundledFinding:
    """A finding of a scan, as the datanode has reported it for the bundle."""

    verdict: str
    fault: str
    block_id: int
    offset: int
    length_bytes: int
    evidence: str
    forensic: str


@dataclass(frozen=True, slots=True)
class KnownTree:
    """The tree of a replica in a bundle.

    `blocks` has the leaves of each block that is not deleted, by block id. `is_whole` is False if
    the bundle has only a part of the tree.
    """

    algorithm: Algorithm
    root: int
    generation: int
    block_checksums: Mapping[int, int]
    blocks: Mapping[int, tuple[Leaf, ...]]
    tombstones: Mapping[int, int]
    is_whole: bool


@dataclass(frozen=True, slots=True)
class BundledRows:
    """The index rows of a replica in a bundle: the chunks of each block, by block id.

    `is_whole` is False if the replica had too many rows for the bundle.
    """

    blocks: Mapping[BlockId, tuple[ChunkInfo, ...]]
    is_whole: bool


@dataclass(frozen=True, slots=True)
class BundledReplica:
    """All documents of a bundle about one replica.

    A missing document is None; a missing `medium` is an empty mapping. `missing` has the reason for
    each missing document, by its name.
    """

    datanode_id: str
    report: Document | None
    tree: KnownTree | None
    rows: BundledRows | None
    findings: tuple[BundledFinding, ...] | None
    medium: Mapping[tuple[int, int], BundledMedium]
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bundle:
    """Content of a bundle that `suture diagnose` has written."""

    about: Document
    container: Document
    replicas: tuple[BundledReplica, ...]


def read_bundle(path: Path) -> Bundle:
    """Return the content of a bundle. Raise RefusedError if the file is not a valid bundle."""
    documents = _documents(path)
    for name in ("about", "container"):
        if name not in documents:
            raise no_bundle(path, f"it has no {name}.json")
    nodes = sorted({name.partition("/")[0] for name in documents if "/" in name})
    return Bundle(
        documents["about"],
        documents["container"],
        tuple(_replica(path, node, documents) for node in nodes),
    )


def _documents(path: Path) -> dict[str, Document]:
    """Return the documents of a bundle by name.

    The names do not contain the top folder and the suffix `.json`. Raise RefusedError if the file
    is not a bundle or is too large.
    """
    found: dict[str, Document] = {}
    try:
        with tarfile.open(path, "r:gz") as bundle:
            for member in bundle:
                name = "/".join(PurePosixPath(member.name).parts[1:]).removesuffix(".json")
                if len(found) >= DOCUMENTS_MAX or member.size > DOCUMENT_BYTES_MAX:
                    raise no_bundle(path, f"{member.name} is more than any bundle has")
                content = bundle.extractfile(member)
                document = json.load(content) if content is not None else None
                if not isinstance(document, dict) or name in found:
                    raise no_bundle(path, f"{member.name} is no document, or is there twice")
                found[name] = document
    except (tarfile.TarError, EOFError, ValueError, zlib.error, RecursionError) as error:
        raise no_bundle(path, str(error)) from error
    return found


def no_bundle(path: Path, why: str) -> RefusedError:
    """Return the error for a file that is not a bundle of `suture diagnose`."""
    return RefusedError(
        Code.MALFORMED_REQUEST,
        f"cannot read {path} as a bundle of suture diagnose: {why[:200]}",
        hint="suture diagnose CONTAINER creates a bundle",
    )


def _replica(path: Path, node: str, documents: Mapping[str, Document]) -> BundledReplica:
    missing: dict[str, str] = {}

    def part(name: str, made: Callable[[Document], Made]) -> Made | None:
        document = documents.get(f"{node}/{name}", {"error": "is not in the bundle"})
        if "error" in document:
            missing[name] = str(document["error"])
            return None
        try:
            return made(document)
        except NONSENSE as error:
            raise no_bundle(path, f"{node}/{name}.json: {error!r}") from error

    return BundledReplica(
        node,
        part("replica", lambda document: document),
        part("tree", tree_of),
        part("rows", rows_of),
        part("findings", findings_of),
        part("medium", medium_of) or {},
        missing,
    )


def tree_of(document: Document) -> KnownTree:
    """Return the tree in a document. Raise KeyError, TypeError or ValueError if the document is
    invalid."""
    live = {int(item["block_id"]): item for item in document["blocks"] if not item["deleted"]}
    gone = {int(item["block_id"]): item for item in document["blocks"] if item["deleted"]}
    return KnownTree(
        Algorithm(document["algorithm"]),
        int(document["root"], 16),
        int(document["generation"]),
        {block_id: int(item["checksum"], 16) for block_id, item in live.items()},
        {block_id: tuple(map(_leaf, item["chunks"])) for block_id, item in live.items()},
        {block_id: int(item["checksum"], 16) for block_id, item in gone.items()},
        bool(document["complete"]),
    )


def _leaf(item: Document) -> Leaf:
    checksum = int(item["checksum"], 16)
    return Leaf(int(item["offset"]), int(item["length_bytes"]), checksum, bool(item["healthy"]))


def rows_of(document: Document) -> BundledRows:
    """Return the rows in a document. Raise KeyError, TypeError or ValueError if the document is
    invalid."""
    blocks = {
        BlockId(int(item["block_id"])): tuple(map(_chunk, item["chunks"]))
        for item in document["blocks"]
    }
    return BundledRows(blocks, bool(document["complete"]))


def _chunk(item: Document) -> ChunkInfo:
    return ChunkInfo(
        int(item["offset"]),
        int(item["length_bytes"]),
        ChecksumType[item["type"]],
        int(item["window_bytes"]),
        bytes.fromhex(item["sums"]),
    )


def findings_of(document: Document) -> tuple[BundledFinding, ...]:
    """Return the findings in a document. Raise KeyError, TypeError or ValueError if the document is
    invalid."""
    return tuple(
        BundledFinding(
            str(item["verdict"]),
            str(item["fault"]),
            int(item["local_id"]),
            int(item["offset"]),
            int(item["length"]),
            str(item["evidence"]),
            str(item["forensic"]),
        )
        for item in document["findings"]
    )


def medium_of(document: Document) -> dict[tuple[int, int], BundledMedium]:
    """Return the chunks in a document about the data on disk. The keys are (block id, offset).

    Raise KeyError, TypeError or ValueError if the document is invalid.
    """
    return {
        (int(item["block_id"]), int(item["offset"])): _medium(item) for item in document["chunks"]
    }


def _medium(item: Document) -> BundledMedium:
    if "error" in item:
        return BundledMedium(error=str(item["error"]))
    sums = bytes.fromhex(item["primary"]), bytes.fromhex(item["second"])
    return BundledMedium(int(item["length_bytes"]), *sums)
