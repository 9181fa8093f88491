"""A state of an earlier version is brought up to this one."""

import tracemalloc
from pathlib import Path

import lmdb
import pytest

from scm.state import records
from scm.state.database import State
from scm.state.replicas import replica_rows
from tests.support.control.scm_world import MAP_BYTES

COUNT = 20_000
ROW = bytes(150)
ADDED = bytes(8)


def test_rows_are_widened_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty million replicas at once are gigabytes, for a start that has to succeed; and each row
    is widened once, wherever LMDB puts it meanwhile."""
    state = State.open(tmp_path, map_bytes=MAP_BYTES)
    table = state.replicas.name.encode()
    state.close()
    with lmdb.open(str(tmp_path / "state"), max_dbs=32, map_size=MAP_BYTES) as environment:
        handles = [environment.open_db(name) for name in (table, b"meta")]
        with environment.begin(write=True) as transaction:
            for number in range(COUNT):
                transaction.put(number.to_bytes(8), ROW, db=handles[0])
            row = records.pack([records.FORMAT_VERSION])
            transaction.put(b"format_version", row, db=handles[1])
    monkeypatch.setattr(replica_rows, "FORMAT_VERSIONS_WIDENED", {records.FORMAT_VERSION})
    monkeypatch.setattr(replica_rows, "widened", lambda row, _version: row + ADDED)
    monkeypatch.setattr(State, "_load", lambda state: setattr(state, "cluster_id", "CID"))
    tracemalloc.start()
    try:
        state = State.open(tmp_path, map_bytes=MAP_BYTES)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    state.close()

    assert peak_bytes < COUNT * len(ROW) / 4
    with lmdb.open(str(tmp_path / "state"), max_dbs=32, readonly=True) as environment:
        replicas = environment.open_db(table, create=False)
        with environment.begin() as transaction:
            rows = [row for _key, row in transaction.cursor(db=replicas)]
    assert [ROW + ADDED] * COUNT == rows
