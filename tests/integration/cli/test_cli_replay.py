"""`suture diagnose --replay`: verdicts of a live cluster, from bundles, and bundles that lie."""

import copy
import io
import json
import math
import os
import re
import tarfile
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agent.cli.main import run
from merkle.replica import CHUNK_BYTES_DEFAULT, BlockData, ContainerId
from suture.runtime.exit_codes import ExitCode
from suture.wire.clients.peer import Peer
from tests.support.command_tree import command_of
from tests.support.nursery import forked
from tests.support.printed_json import document_in
from tests.support.waiting import wait_until
from tools.demo.cluster import Cluster
from tools.demo.damage import (
    Target,
    append_garbage,
    delete_block_file,
    delete_metadata_row,
    flip_bit_under_warm_cache,
    misdirect_write,
    truncate,
    zero_page,
)
from tools.demo.damage_choice import replica_root

pytestmark = [pytest.mark.slow, pytest.mark.fault]

SIZES = (5_000_000, *(150_000 + 10_000 * number for number in range(9)))
DAMAGED = (
    *("CHUNK_CHECKSUM", "CHUNK_CHECKSUM", "CHUNK_CHECKSUM"),
    *("CHUNK_SHORT", "CHUNK_MISSING", "BLOCK_FILE_MISSING", "BLOCK_ROW_MISSING", "TRAILING_BYTES"),
)
Documents = dict[str, Any]


def answer(*words: str) -> tuple[int, Any]:
    """Run `suture` with --json; return its exit code and what it printed."""
    shown = io.StringIO()
    with redirect_stdout(shown):
        code = run([*words, "--json"])
    return code, document_in(shown.getvalue(), " ".join(command_of(words)))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Damage one replica of a live cluster in every way, scan it, bundle it, and stop the cluster:
    what is replayed then is replayed elsewhere."""
    root = tmp_path_factory.mktemp("replay")
    path = root / "bundle.tar.gz"
    (root / "files").mkdir()
    for number, size in enumerate(SIZES):
        (root / "files" / f"{number}").write_bytes(os.urandom(size))
    sections = "[scan]\nenabled = false\nwatch = false\n"
    launched = Cluster(root / "c", agents=3, volumes=1, agent_sections=sections, launch=forked)
    with launched as cluster:
        scm = ("--scm", cluster.scm.address)
        _, stored = answer("put", str(root / "files"), "--sessions", "1", "--close", *scm)
        (container_id,) = stored["container_ids"]

        def is_seen(checksums: str) -> bool:
            _, seen = answer("scm", "containers", str(container_id), *scm)
            return bool(seen["state"] == "CLOSED" and seen["checksums"] == checksums)

        wait_until(lambda: is_seen("match"))
        with Peer(cluster.nodes[1].address) as peer:
            blocks = peer.blocks_of(ContainerId(container_id))
        turns = targets(replica_root(cluster, 1, container_id), container_id, blocks)
        cluster.nodes[1].stop()  # nobody else may write to the index of a running agent
        delete_metadata_row(turns.pop())
        cluster.start_again(1)
        damage(turns)
        code, _ = answer("scrub", "scan", str(container_id), "--wait", *scm)
        assert ExitCode.TO_DO == code
        wait_until(lambda: is_seen("differ"))  # a scan ends before its report has come to the SCM
        code, _ = answer("diagnose", str(container_id), "--output", str(path), *scm)
        assert ExitCode.OK == code
    return path


def targets(root: Path, container_id: int, blocks: list[BlockData]) -> list[Target]:
    """Return the blocks of a replica as targets, the largest first."""
    return [
        Target(
            container_id=container_id,
            root=root,
            block_ids=(block.block_id,),
            chunk_bytes=(block.chunks[0].length_bytes,),
            block_bytes=(block.length_bytes,),
        )
        for block in sorted(blocks, key=lambda block: -block.length_bytes)
    ]


def damage(found: list[Target]) -> None:
    """Damage a block in each way; the largest loses its second chunk."""
    largest, *others = found
    turns = iter(others)
    os.truncate(largest.root / "chunks" / f"{largest.block_ids[0]}.block", CHUNK_BYTES_DEFAULT)
    for way in (
        flip_bit_under_warm_cache,
        zero_page,
        truncate,
        delete_block_file,
        append_garbage,
    ):
        way(next(turns))
    one = next(turns)
    misdirect_write(
        replace(
            one,
            block_ids=(*one.block_ids, *largest.block_ids),
            chunk_bytes=(*one.chunk_bytes, *largest.chunk_bytes),
            block_bytes=(*one.block_bytes, *largest.block_bytes),
        )
    )


def documents_of(path: Path) -> Documents:
    """Return the documents of a bundle by name."""
    with tarfile.open(path) as bundle:
        return {
            member.name: json.load(content)
            for member in bundle
            if (content := bundle.extractfile(member)) is not None
        }


def rewritten(documents: Documents, path: Path) -> Path:
    """Write a bundle with these documents."""
    with tarfile.open(path, "x:gz") as bundle:
        for name, document in documents.items():
            content = json.dumps(document).encode()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            bundle.addfile(member, io.BytesIO(content))
    return path


def damaged_node(documents: Documents) -> str:
    """Return the prefix of the documents of the replica that was damaged."""
    (name,) = [
        name
        for name, document in documents.items()
        if name.endswith("/findings.json") and document["findings"]
    ]
    return name.removesuffix("findings.json")


def test_every_verdict_comes_out_the_same(bundle: Path) -> None:
    """Each way of damage, each chunk that is well, roots, states and the comparison of replicas."""
    documents = documents_of(bundle)
    node = damaged_node(documents)
    told = [found["fault"] for found in documents[f"{node}findings.json"]["findings"]]

    code, seen = answer("diagnose", "--replay", str(bundle))

    assert sorted(DAMAGED) == sorted(told)
    assert [] == [one for one in seen["verdicts"] if one["outcome"] != "same"]
    assert ExitCode.OK == code
    verdicts = [one["verdict"] for one in seen["verdicts"]]
    assert sorted(f"CORRUPT {fault}" for fault in DAMAGED) == sorted(
        verdict for verdict in verdicts if verdict.startswith("CORRUPT")
    )
    assert "differ" in verdicts
    assert f"UNHEALTHY, {len(DAMAGED)} findings" in verdicts


def test_a_bundle_holds_no_data_and_no_names(bundle: Path) -> None:
    """Sums, sizes and places only: it may be sent to strangers."""
    documents = documents_of(bundle)
    rows = documents[f"{damaged_node(documents)}rows.json"]

    assert {"block_id", "bcsid", "chunks"} == {key for block in rows["blocks"] for key in block}
    assert {"offset", "length_bytes", "type", "window_bytes", "sums"} == {
        key for block in rows["blocks"] for chunk in block["chunks"] for key in chunk
    }


Change = Callable[[Documents, str], None]


def _finding(documents: Documents, node: str, fault: str) -> Any:
    found = documents[f"{node}findings.json"]["findings"]
    return next(one for one in found if one["fault"] == fault)


def _row_of(documents: Documents, node: str, block_id: int) -> Any:
    return next(
        block for block in documents[f"{node}rows.json"]["blocks"] if block["block_id"] == block_id
    )


def without_a_finding(documents: Documents, node: str) -> None:
    """Leave out that something was found."""
    documents[f"{node}findings.json"]["findings"].pop(0)


def with_other_words(documents: Documents, node: str) -> None:
    """Change one digit of what a checksum is said to have been."""
    found = _finding(documents, node, "CHUNK_CHECKSUM")
    found["evidence"] = re.sub(
        r"expected ([0-9a-f])",
        lambda told: f"expected {(int(told[1], 16) + 1) % 16:x}",
        found["evidence"],
    )


def with_another_verdict(documents: Documents, node: str) -> None:
    """Call a chunk unreadable that is corrupt."""
    _finding(documents, node, "CHUNK_CHECKSUM")["verdict"] = "UNREADABLE"


def with_a_healthy_leaf(documents: Documents, node: str) -> None:
    """Call a damaged leaf healthy."""
    for block in documents[f"{node}tree.json"]["blocks"]:
        for leaf in block["chunks"]:
            leaf["healthy"] = True


def with_another_leaf(documents: Documents, node: str) -> None:
    """Change one bit of one leaf."""
    leaf = documents[f"{node}tree.json"]["blocks"][0]["chunks"][0]
    leaf["checksum"] = f"{int(leaf['checksum'], 16) ^ 1:016x}"


def with_another_root(documents: Documents, node: str) -> None:
    """Change one bit of the root, in the tree and in the report."""
    tree = documents[f"{node}tree.json"]
    root = int(tree["root"], 16) ^ 1
    tree["root"] = f"{root:016x}"
    documents[f"{node}replica.json"]["tree"]["root"] = root


def with_another_block(documents: Documents, node: str) -> None:
    """Change one bit of what the leaves of a block are said to fold to."""
    block = documents[f"{node}tree.json"]["blocks"][0]
    block["checksum"] = f"{int(block['checksum'], 16) ^ 1:016x}"


def with_another_row(documents: Documents, node: str) -> None:
    """Make the row fit the damage."""
    found = _finding(documents, node, "CHUNK_CHECKSUM")
    (seen,) = [
        one
        for one in documents[f"{node}medium.json"]["chunks"]
        if (one["block_id"], one["offset"]) == (found["local_id"], found["offset"])
    ]
    _row_of(documents, node, found["local_id"])["chunks"][0]["sums"] = seen["primary"]


def with_the_row_back(documents: Documents, node: str) -> None:
    """Put a row in that is said to be missing."""
    found = _finding(documents, node, "BLOCK_ROW_MISSING")
    other = next(name for name in documents if name.endswith("/rows.json") and node not in name)
    row = copy.deepcopy(_row_of(documents, other.removesuffix("rows.json"), found["local_id"]))
    documents[f"{node}rows.json"]["blocks"].append(row)


def with_another_state(documents: Documents, node: str) -> None:
    """Call the replica CLOSED."""
    documents[f"{node}replica.json"]["state"] = "CLOSED"


def with_another_comparison(documents: Documents, _node: str) -> None:
    """Say that the replicas match."""
    (name,) = [name for name in documents if name.endswith("/container.json")]
    documents[name]["checksums"] = "match"


@pytest.mark.parametrize(
    "change",
    [
        without_a_finding,
        with_other_words,
        with_another_verdict,
        with_a_healthy_leaf,
        with_another_leaf,
        with_another_root,
        with_another_block,
        with_another_row,
        with_the_row_back,
        with_another_state,
        with_another_comparison,
    ],
)
def test_a_bundle_that_was_changed_is_found(bundle: Path, tmp_path: Path, change: Change) -> None:
    """A change in one place no longer fits the others, and the output has the reason."""
    documents = documents_of(bundle)
    change(documents, damaged_node(documents))

    code, seen = answer(
        "diagnose", "--replay", str(rewritten(documents, tmp_path / "changed.tar.gz"))
    )

    assert ExitCode.TO_DO == code
    assert all(one["reason"] for one in seen["verdicts"] if one["outcome"] == "differs")


HOSTILE = (None, -1, 2**70, math.inf, math.nan, "x", "", [], {}, True, "9" * 30, "f" * 20)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_a_bundle_says_is_judged_or_refused(
    bundle: Path, tmp_path: Path, seed: int
) -> None:
    """
    Strangers send them: one value of another kind, or too large, ends in words, not in a traceback.
    """
    documents, dice = documents_of(bundle), Random(seed)
    node = damaged_node(documents)
    name = dice.choice(["tree", "rows", "findings", "medium", "replica"])
    place = documents[f"{node}{name}.json"]
    while inner := [key for key in keys_of(place) if keys_of(place[key])]:
        if dice.random() < 0.1:
            break
        place = place[dice.choice(inner)]
    place[dice.choice(keys_of(place))] = dice.choice(HOSTILE)

    code, _ = answer("diagnose", "--replay", str(rewritten(documents, tmp_path / "changed.tar.gz")))

    assert code in {ExitCode.OK, ExitCode.TO_DO, ExitCode.FAILED}


def keys_of(place: Any) -> list[Any]:
    """Return by what the parts of a document are reached."""
    if isinstance(place, dict):
        return list(place)
    return list(range(len(place))) if isinstance(place, list) else []


def test_replay_refuses_a_file_that_is_no_bundle(bundle: Path, tmp_path: Path) -> None:
    """The error names the file if it is of another kind, truncated, or lacks its documents."""
    other = tmp_path / "other.tar.gz"
    other.write_bytes(b"PK\3\4 no bundle")
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(bundle.read_bytes()[:2000])
    documents = documents_of(bundle)
    (name,) = [name for name in documents if name.endswith("/container.json")]
    bare = rewritten({**documents, name: {"state": "CLOSED"}}, tmp_path / "bare.tar.gz")
    empty = rewritten({}, tmp_path / "empty.tar.gz")

    for path in (other, cut, bare, empty):
        code, said = answer("diagnose", "--replay", str(path))
        assert ExitCode.FAILED == code
        assert str(path) in said["error"]["message"]
