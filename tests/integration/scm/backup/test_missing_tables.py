"""Backups that lack a table are refused; damaged history rows are not worth a refusal."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import lmdb
import pytest

from scm.backup import manifest as manifests
from scm.backup.backup_writer import take_backup
from scm.backup.restore import restore_backup
from scm.state.database import StateDatabase, StateTables
from scm.state.history.anchors import Anchor, VolumeAnchors
from scm.state.state_environment import DATA
from suture.errors import RefusedError
from tests.integration.scm.backup.test_backups import NOW_MS, fill
from tests.support.control.scm_world import MAP_BYTES
from tests.support.heard import logged

DECIDING: Final = frozenset(
    {
        *("nodes", "containers", "replicas_by_node", "allocations", "keys", "commands"),
        *("outcomes", "transactions", "deleted", "holds", "forgotten", "settings"),
    }
)
"""The tables that decisions are made by. The others remember history."""
HISTORY: Final = sorted({table.name for table in StateTables().each_table} - DECIDING)


def lacking(path: Path, table: str) -> Path:
    """Make a state without this table."""
    fill(path)
    with lmdb.open(str(path / "state"), max_dbs=32) as environment:
        database = environment.open_db(table.encode(), create=False)
        with environment.begin(write=True) as transaction:
            transaction.drop(database)
    return path


@pytest.mark.parametrize("table", sorted(DECIDING) + HISTORY)
def test_no_table_may_be_missing(table: str, tmp_path: Path) -> None:
    """A state without its keys is damaged, and must not take the place of a backup with them."""
    data = lacking(tmp_path / "data", table)

    with pytest.raises(RefusedError, match="MDB_NOTFOUND"):
        take_backup(data, tmp_path / "to", now_ms=NOW_MS, version="1", keep_count=0)


@pytest.mark.parametrize("table", HISTORY)
def test_a_damaged_row_of_what_is_remembered_stops_nothing(table: str, tmp_path: Path) -> None:
    """No decision depends on the row. The control plane starts, reports it, and can be backed
    up.
    """
    fill(tmp_path / "data")
    with lmdb.open(str(tmp_path / "data" / "state"), max_dbs=32) as environment:
        database = environment.open_db(table.encode())
        with environment.begin(write=True) as transaction:
            transaction.put(b"dn1\0v1", b"no row", db=database)

    taken = take_backup(
        tmp_path / "data", tmp_path / "to", now_ms=NOW_MS, version="1", keep_count=0
    )
    with logged() as events:
        state = StateDatabase.open(tmp_path / "data", map_bytes=MAP_BYTES)

    assert 0 == taken.manifest.counts[table]
    assert [table] == [one["table"] for one in events if one["event"] == "history_row_damaged"]
    state.close()


def test_the_anchors_of_other_volumes_are_there(tmp_path: Path) -> None:
    """One row of two volumes is damaged, and the other's anchors are unchanged."""
    fill(tmp_path)
    whole = VolumeAnchors("dn2", "v2", (Anchor(NOW_MS, 7, "ab" * 32),))
    state = StateDatabase.open(tmp_path, map_bytes=MAP_BYTES)
    with state.change() as change:
        change.put(state.anchors, whole)
        change.rows[("anchors", b"dn1\0v1")] = b"no row"
    state.close()

    state = StateDatabase.open(tmp_path, map_bytes=MAP_BYTES)

    assert [whole] == state.anchors.values()
    state.close()


def test_a_backup_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    """The next restore into the same directory must not find it occupied."""
    fill(tmp_path / "data")
    good = take_backup(tmp_path / "data", tmp_path / "to", now_ms=NOW_MS, version="1", keep_count=0)
    bad = take_backup(
        tmp_path / "data", tmp_path / "to", now_ms=NOW_MS + 1, version="1", keep_count=0
    )
    other = replace(bad.manifest, counts={**bad.manifest.counts, "keys": 2})
    (bad.path / manifests.NAME).write_bytes(other.encoded())

    with pytest.raises(RefusedError, match="its content does not match its manifest"):
        restore_backup(bad.path, tmp_path / "new", now_ms=NOW_MS + 2)
    restore_backup(good.path, tmp_path / "new", now_ms=NOW_MS + 2)

    assert (tmp_path / "new" / "state" / DATA).is_file()
