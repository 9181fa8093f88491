"""`suture scrub sample`: what it draws, what it says of it, and that it never says more."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.cli.main import run
from agent.store.files.layout import VolumeLayout
from agent.store.index import environment
from agent.store.index.lmdb_errors import DATA_FILE
from merkle.replica import ContainerId
from suture.runtime.exit_codes import ExitCode
from tests.support.printed_json import document_in
from tests.support.storage.stored_replica import CLUSTER, CONTAINER, StoredReplica

CHUNKS = 20  # five containers of two blocks of two chunks
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[StoredReplica]:
    """Return a store of five containers, whose agent may be stopped."""
    made = StoredReplica(tmp_path / "volume")
    for number in range(1, 6):
        made.create(ContainerId(number), blocks=2)
    yield made
    made.close()


def sampled(replica: StoredReplica, capsys: Capture, *words: str) -> tuple[int, Any]:
    """Stop the agent and sample its volume; return the exit code and the answer."""
    replica.close()
    capsys.readouterr()
    code = run(["scrub", "sample", str(replica.path), *words, "--json"])
    return code, document_in(capsys.readouterr().out, "scrub sample")


def test_a_clean_sample_says_a_probability(replica: StoredReplica, capsys: Capture) -> None:
    """The output also gives the number of chunks of which nothing is known. It does not say that
    anything was verified.
    """
    code, answer = sampled(replica, capsys, "--seed", "1", "--fraction", "0.2")
    run(["scrub", "sample", str(replica.path), "--seed", "1", "--fraction", "0.2"])
    said = capsys.readouterr().out

    size = answer["size"]
    assert ExitCode.OK == code
    assert (CHUNKS, 4) == (size["chunk_count"], size["bad_count"])
    assert size["drawn_count"] == answer["read_count"] == 10
    assert 0.95 <= size["power"] < 1
    assert "of 10 chunks nothing is known" in said
    assert "P = 95." in said
    assert "verified" not in said + json.dumps(answer)


def test_bad_chunks_are_found_as_often_as_it_says(replica: StoredReplica, capsys: Capture) -> None:
    """Over many seeds: a sample with a confidence of 60 % finds one in at least so many."""
    replica.flip(1, 100)
    replica.flip(2, 100)

    codes = [
        sampled(replica, capsys, "--seed", str(seed), "--fraction", "0.1", "--confidence", "60")
        for seed in range(60)
    ]

    [power] = {answer["size"]["power"] for _, answer in codes}
    found = sum(code == ExitCode.TO_DO for code, _ in codes)
    assert all((answer["bad_count"] > 0) == (code == ExitCode.TO_DO) for code, answer in codes)
    assert abs(found - 60 * power) < 5 * (60 * power * (1 - power)) ** 0.5


def test_a_row_that_is_not_found_by_its_key_is_undecided(
    replica: StoredReplica, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bit of a key flips after the index check. The row is seen beside its neighbour, and no
    search finds it.
    """
    monkeypatch.setattr(environment, "check_index", lambda *_, **__: 0)
    replica.close()
    database = VolumeLayout(replica.path, CLUSTER).database / DATA_FILE
    key, flipped = struct.pack(">QQ", 3, 1), struct.pack(">QQ", 3, 1 + 2**40)
    data = database.read_bytes()
    assert key in data
    database.write_bytes(data.replace(key, flipped))

    code, answer = sampled(replica, capsys, "--confidence", "99")
    run(["scrub", "sample", str(replica.path), "--confidence", "99"])
    said = capsys.readouterr().out

    assert ExitCode.TO_DO == code
    assert (CHUNKS - 4, 2) == (answer["read_count"], answer["undecided_count"])
    assert "nothing follows: 2 chunks could not be judged" in said
    assert 1 == said.count("container 3: block 2 is not found by its key")
    assert 2 == said.count("container 3: ")


def test_a_bad_chunk_is_named(replica: StoredReplica, capsys: Capture) -> None:
    """With the judge's words; a chunk that is gone is bad, too."""
    replica.flip(1, 100)
    replica.file(2, ContainerId(3)).unlink()

    code, answer = sampled(replica, capsys, "--confidence", "99")

    assert ExitCode.TO_DO == code
    assert CHUNKS == answer["read_count"]
    assert [(CONTAINER, 1, 0), (3, 2, 0), (3, 2, 100_000)] == [
        (one["container_id"], one["local_id"], one["offset"]) for one in answer["bad"]
    ]
    assert {"CHUNK_CHECKSUM", "CHUNK_MISSING"} == {one["fault"] for one in answer["bad"]}


def test_a_damaged_row_is_told(replica: StoredReplica, capsys: Capture) -> None:
    """Its chunks cannot be drawn: that is no clean sample."""
    replica.damage_row(1)

    code, answer = sampled(replica, capsys)

    assert (ExitCode.TO_DO, CHUNKS - 2) == (code, answer["size"]["chunk_count"])
    assert 1 == len(answer["unread"])


def test_a_volume_in_use_is_refused(replica: StoredReplica, tmp_path: Path) -> None:
    """Its agent writes; and what is no volume is none."""
    assert ExitCode.FAILED == run(["scrub", "sample", str(replica.path)])
    assert ExitCode.FAILED == run(["scrub", "sample", str(tmp_path / "nowhere")])
    assert ExitCode.USAGE == run(["scrub", "sample", str(replica.path), "--confidence", "100"])
