"""The stored results of the scrubs of one volume, in a separate directory, never on the volume.

There is one SQLite file per volume. It has the results and findings of each container, the position
of an unfinished read, the record of read failures, and the time at which the current scrub of all
containers began. Findings and positions have the agent's format. A damaged history, or one of
another version, is rejected. An operator must delete it. The next scrub then reads all containers
again.
"""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from agent.store.index.rows import (
    ScanCursor,
    decode_cursor,
    decode_finding,
    encode_cursor,
    encode_finding,
)
from agent.store.index.unreadable_rows import decode_doubt, encode_doubt
from merkle.damaged_data import DamagedData
from merkle.replica import BlockId, ContainerId
from ozone.scrub.comparison import Agreement, ChecksumDifferenceReason, Comparison
from ozone.scrub.result import ContainerResult
from scanner.unreadable_verdict import UnreadableRecord
from suture.errors import Code, RefusedError, SutureError, UnavailableError

FORMAT: Final = 1
BUSY_S: Final = 10.0  # wait for a lock, because another tool may have the file open
PRIMARY: Final = 0xFF  # mask of SQLite's primary error code
SCANS_KEPT: Final = 20  # number of scans kept per container

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS results(container_id INTEGER PRIMARY KEY, read_at_ms INTEGER NOT NULL,
    facts TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS findings(container_id INTEGER, position INTEGER, row BLOB NOT NULL,
    PRIMARY KEY(container_id, position));
CREATE TABLE IF NOT EXISTS scans(container_id INTEGER, at_ms INTEGER, status TEXT NOT NULL,
    finding_count INTEGER NOT NULL, bytes_read INTEGER NOT NULL, PRIMARY KEY(container_id, at_ms));
CREATE TABLE IF NOT EXISTS cursors(container_id INTEGER PRIMARY KEY, row BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS doubts(container_id INTEGER PRIMARY KEY, row BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS rounds(begun_at_ms INTEGER PRIMARY KEY, ended_at_ms INTEGER);
"""


def _error_of(error: Exception, message: str) -> SutureError:
    """Return the error to raise for a failed access.

    Its hint is to delete the history file only if the file is not a valid history.
    """
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & PRIMARY
    if code == sqlite3.SQLITE_FULL:
        hint = "free space at --state-dir: what it remembers is kept"
        return UnavailableError(Code.DISK_OUT_OF_SPACE, message, hint=hint)
    if code == sqlite3.SQLITE_BUSY:
        return UnavailableError(Code.BUSY, message, hint="stop the program that has it open")
    hint = "remove it to begin anew: what it remembers is then read again"
    if code not in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        hint = "look at the disk of --state-dir, and at who may write there"
    return RefusedError(Code.IO_EXCEPTION, message, hint=hint)


class History:
    """The history of one volume. Only one user at a time may have it open."""

    def __init__(self, path: Path) -> None:
        """Open the history, or create it.

        Raise RefusedError if the file is not a valid history, or cannot be opened.
        """
        self._path = path
        with self._explain_errors():
            self._base = sqlite3.connect(
                path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
            self._base.execute("PRAGMA journal_mode=WAL")
            self._base.execute("PRAGMA synchronous=FULL")
            version = self._base.execute("PRAGMA user_version").fetchone()[0]
            if version not in {0, FORMAT}:
                raise RefusedError(
                    Code.INELIGIBLE,
                    f"cannot read {path}: it has format {version}, expected {FORMAT}",
                    hint="remove it to start over",
                )
            if version != FORMAT:
                self._base.executescript(_TABLES)
                self._base.execute(f"PRAGMA user_version={FORMAT}")

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, DamagedData, KeyError, TypeError) as error:
            raise _error_of(error, f"history {self._path}: {error}") from error

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        with self._explain_errors():
            self._base.execute("BEGIN IMMEDIATE")
            try:
                yield self._base
                self._base.execute("COMMIT")
            except BaseException:
                if self._base.in_transaction:  # if the disk is full, SQLite has already rolled back
                    self._base.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the history file."""
        self._base.close()

    # Results.

    def put(self, result: ContainerResult, *, is_whole: bool) -> None:
        """Store the result of a container durably. Replace its earlier result.

        `is_whole` is True if the container was read completely. The stored position and the record
        of read failures of the container are then removed.
        """
        facts, number = json.dumps(_facts(result)), result.container_id
        rows = [(number, at, encode_finding(item)) for at, item in enumerate(result.findings)]
        with self._change() as base:
            base.execute(
                "INSERT OR REPLACE INTO results VALUES(?,?,?)", (number, result.read_at_ms, facts)
            )
            base.execute("DELETE FROM findings WHERE container_id=?", (number,))
            base.executemany("INSERT INTO findings VALUES(?,?,?)", rows)
            if is_whole:
                self._end_read(base, result)

    def _end_read(self, base: sqlite3.Connection, result: ContainerResult) -> None:
        number = result.container_id
        self._forget_place(base, number)
        scan = (number, result.read_at_ms, result.status.value, result.finding_count)
        base.execute("INSERT OR REPLACE INTO scans VALUES(?,?,?,?,?)", (*scan, result.bytes_read))
        base.execute(
            "DELETE FROM scans WHERE container_id=? AND at_ms NOT IN (SELECT at_ms FROM scans "
            "WHERE container_id=? ORDER BY at_ms DESC LIMIT ?)",
            (number, number, SCANS_KEPT),
        )

    def _forget_place(self, base: sqlite3.Connection, container_id: ContainerId) -> None:
        base.execute("DELETE FROM cursors WHERE container_id=?", (container_id,))
        base.execute("DELETE FROM doubts WHERE container_id=?", (container_id,))

    def result(self, container_id: ContainerId) -> ContainerResult | None:
        """Return the stored result of a container, or None if there is none."""
        with self._explain_errors():
            row = self._base.execute(
                "SELECT facts FROM results WHERE container_id=?", (container_id,)
            ).fetchone()
            if row is None:
                return None
            found = self._base.execute(
                "SELECT row FROM findings WHERE container_id=? ORDER BY position", (container_id,)
            )
            findings = tuple(decode_finding(container_id, bytes(item[0])) for item in found)
            return _result(json.loads(row[0]), findings)

    def results(self) -> Iterator[ContainerResult]:
        """Yield the results of all containers, by ascending id."""
        with self._explain_errors():
            rows = self._base.execute("SELECT container_id FROM results ORDER BY container_id")
            container_ids = [ContainerId(number) for (number,) in rows]
        for container_id in container_ids:
            result = self.result(container_id)
            if result is not None:
                yield result

    def marks(self) -> dict[ContainerId, int]:
        """Return a hash of the result of each container, by container id.

        A changed hash shows that the result has changed.
        """
        with self._explain_errors():
            rows: dict[int, list[bytes]] = {}
            for number, row in self._base.execute("SELECT container_id, row FROM findings"):
                rows.setdefault(number, []).append(row)
            known = self._base.execute("SELECT container_id, facts FROM results")
            return {
                ContainerId(number): hash((facts, *rows.get(number, ()))) for number, facts in known
            }

    def read_at_ms(self) -> dict[ContainerId, int]:
        """Return the time of the last complete read of each container.

        The result is in milliseconds, by container id.
        """
        with self._explain_errors():
            rows = self._base.execute("SELECT container_id, read_at_ms FROM results")
            return {ContainerId(number): at_ms for number, at_ms in rows}

    def forget(self, container_ids: Sequence[ContainerId]) -> None:
        """Remove the results of containers that are no longer on the volume."""
        gone = [(container_id,) for container_id in container_ids]
        with self._change() as base:
            for table in ("results", "findings", "scans", "cursors", "doubts"):
                base.executemany(f"DELETE FROM {table} WHERE container_id=?", gone)  # noqa: S608

    # Positions of unfinished reads, and records of read failures.

    def cursor(self, container_id: ContainerId) -> ScanCursor | None:
        """Return the position at which the unfinished read of a container stopped.

        Return None if there is no valid position.
        """
        with self._explain_errors():
            row = self._base.execute(
                "SELECT row FROM cursors WHERE container_id=?", (container_id,)
            ).fetchone()
        try:
            return None if row is None else decode_cursor(container_id, bytes(row[0]))
        except DamagedData:
            return None

    def put_cursor(self, container_id: ContainerId, cursor: ScanCursor) -> None:
        """Store durably the position at which the read of a container stopped."""
        with self._change() as base:
            row = (container_id, encode_cursor(cursor))
            base.execute("INSERT OR REPLACE INTO cursors VALUES(?,?)", row)

    def unreadable_record(self, container_id: ContainerId) -> UnreadableRecord | None:
        """Return the record of the read failures of a container since its last complete scan.

        Return None if there were none.
        """
        with self._explain_errors():
            row = self._base.execute(
                "SELECT row FROM doubts WHERE container_id=?", (container_id,)
            ).fetchone()
        return None if row is None else decode_doubt(bytes(row[0]))

    def put_doubt(self, container_id: ContainerId, doubt: UnreadableRecord) -> None:
        """Store durably the record of the read failures of a container."""
        with self._change() as base:
            row = (container_id, encode_doubt(doubt))
            base.execute("INSERT OR REPLACE INTO doubts VALUES(?,?)", row)

    # Scrubs of all containers.

    def begin_round(self, now_ms: int, *, restart: bool) -> int:
        """Return the time in milliseconds at which the current scrub of all containers began.

        Begin a new scrub if there is none, or with `restart`.
        """
        with self._change() as base:
            row = base.execute(
                "SELECT begun_at_ms FROM rounds WHERE ended_at_ms IS NULL "
                "ORDER BY begun_at_ms DESC LIMIT 1"
            ).fetchone()
            if row is not None and not restart and row[0] <= now_ms:
                begun_at_ms: int = row[0]
                return begun_at_ms
            base.execute("DELETE FROM rounds WHERE ended_at_ms IS NULL")
            base.execute("INSERT OR REPLACE INTO rounds VALUES(?, NULL)", (now_ms,))
            if restart:
                base.execute("DELETE FROM cursors")
        return now_ms

    def end_round(self, now_ms: int) -> None:
        """Record that the current scrub has read all containers."""
        with self._change() as base:
            base.execute("UPDATE rounds SET ended_at_ms=? WHERE ended_at_ms IS NULL", (now_ms,))


def _facts(result: ContainerResult) -> dict[str, Any]:
    facts = asdict(result)
    del facts["findings"]
    # Omit facts with their default value, so that an older program can read the result.
    if result.is_verified:
        del facts["is_verified"]
    if not result.lost_rows:
        del facts["lost_rows"]
    facts["skipped"] = {str(key): why for key, why in result.skipped.items()}
    return facts


def _result(facts: dict[str, Any], findings: tuple[Any, ...]) -> ContainerResult:
    comparison = facts.pop("comparison")
    reasons = {
        ChecksumDifferenceReason(name): count for name, count in comparison.pop("reasons").items()
    }
    agreement = Agreement(comparison.pop("agreement"))
    unexplained = tuple(map(BlockId, comparison.pop("unexplained")))
    skipped = {BlockId(int(key)): why for key, why in facts.pop("skipped").items()}
    return ContainerResult(
        **facts,
        findings=findings,
        skipped=skipped,
        comparison=Comparison(agreement, reasons=reasons, unexplained=unexplained, **comparison),
    )
