"""Canary: a test that plants a fault, which the scan must find.

A private store on the volume has one container with two blocks. The test flips one bit of the
second block on the disk. The ordinary scan reads both blocks. It must find that the second is
corrupt and the first is healthy. The private store is separate from the store of the host, so the
SCM gets no reports about it.

The test runs once per period. If no test has found its fault for two periods, the canary is
overdue, and the scan of this volume cannot be trusted. This includes tests that fail, hang or do
not run at all.
"""

import os
import secrets
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final

import structlog

from agent.leases import ContainerLeases
from agent.scan.container_scan import ScanReport, StoreScanDeps, VerdictBreaker, scan_container
from agent.store.direct_io import ReadBuffers
from agent.store.options import StoreOptions
from agent.store.replica_store import ReplicaStore
from merkle.checksum import Algorithm, window_checksums
from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo, ContainerId
from scanner.finding import Verdict
from suture.errors import Code, RefusedError, VolumeFailed
from suture.runtime.clock import Clock
from suture.runtime.durable import DIRECTORY_MODE, disk_errors, remove_tree

CONTAINER: Final = ContainerId(1)
WHOLE, DAMAGED = BlockId(1), BlockId(2)
BLOCK_BYTES: Final = 128 * 1024
WINDOW_BYTES: Final = 16 * 1024
MAP_BYTES: Final = 4 * 1024**2
OVERDUE_PERIODS: Final = 2
NOBODY: Final = "canary"  # cluster id and datanode id of the private store

log = structlog.get_logger()


@dataclass(eq=False)
class Canary:
    """The canary test of one volume.

    `found_at_ms` is the time of the last test that found its fault, or 0 if there is none.
    """

    directory: Path
    algorithm: Algorithm
    clock: Clock
    _: KW_ONLY
    period_s: float
    volume_id: str = ""

    def __post_init__(self) -> None:
        self._trusted_at_s = self.clock.monotonic_s()
        self._due_at_s = self.clock.monotonic_s()
        self.found_at_ms = 0

    @property
    def is_due(self) -> bool:
        """Return whether the next test is due."""
        return self.clock.monotonic_s() >= self._due_at_s

    @property
    def is_overdue(self) -> bool:
        """Return whether no test has found its fault for two periods.

        The scan may then miss damage, hang, or not run.
        """
        age_s = self.clock.monotonic_s() - self._trusted_at_s
        return age_s > OVERDUE_PERIODS * self.period_s

    def drill(self, buffers: ReadBuffers) -> bool:
        """Plant a fault and scan. Return whether the scan found the fault.

        If the private store is damaged, for example by a power failure during its creation, replace
        it and repeat the test. Such damage does not show that the scan is faulty. Raise SutureError
        if the second attempt fails, too.
        """
        self._due_at_s = self.clock.monotonic_s() + self.period_s  # also if the test raises
        try:
            found = self._drilled(buffers)
        except (RefusedError, VolumeFailed) as error:
            if error.code is Code.VOLUME_IN_USE:
                raise
            log.warning("canary_recreated", volume_id=self.volume_id, error=str(error))
            with disk_errors(self.directory):
                remove_tree(self.directory)
            found = self._drilled(buffers)
        if found:
            self._trusted_at_s = self.clock.monotonic_s()
            self.found_at_ms = self.clock.now_ms()
            log.info("canary_found", volume_id=self.volume_id)
        else:
            log.error("canary_not_found", volume_id=self.volume_id, directory=str(self.directory))
        return found

    def _drilled(self, buffers: ReadBuffers) -> bool:
        self.directory.mkdir(DIRECTORY_MODE, exist_ok=True)
        options = StoreOptions(
            algorithm=self.algorithm,
            reserve_bytes=0,
            lmdb_map_bytes=MAP_BYTES,
            now_ms=self.clock.now_ms,
        )
        store = ReplicaStore.open(
            [self.directory], cluster_id=NOBODY, datanode_id=NOBODY, options=options
        )
        try:
            self._plant(store)
            tools = StoreScanDeps(
                store=store,
                leases=ContainerLeases(clock=self.clock),
                guard=VerdictBreaker(clock=self.clock),
                clock=self.clock,
            )
            report = scan_container(tools, CONTAINER, buffers=buffers, is_drill=True)
            found = is_found(report)
            store.delete_container(CONTAINER, force=True)
        finally:
            store.close()
        return found

    def _plant(self, store: ReplicaStore) -> None:
        """Write two blocks with new random data, and damage one of them on the disk."""
        if store.replica_ids():  # left by an interrupted test
            store.delete_container(CONTAINER, force=True)
        store.create_container(CONTAINER)
        for block_id in (WHOLE, DAMAGED):
            data = secrets.token_bytes(BLOCK_BYTES)
            sums = window_checksums(ChecksumType.CRC32C, WINDOW_BYTES, data)
            chunk = ChunkInfo(0, BLOCK_BYTES, ChecksumType.CRC32C, WINDOW_BYTES, sums)
            block = BlockData(block_id, Bcsid(1), (chunk,))
            store.writer(CONTAINER).write_chunk(block_id, chunk, data, commit=block)
        store.close_container(CONTAINER, force=True)
        flip_one_bit(store.paths(CONTAINER).block_file(DAMAGED))


def is_found(report: ScanReport) -> bool:
    """Return whether the scan found the planted fault and no other corrupt block."""
    corrupt = {item.block_id for item in report.findings if item.verdict is Verdict.CORRUPT}
    return corrupt == {DAMAGED}


def flip_one_bit(path: Path) -> None:
    """Flip one random bit in the first BLOCK_BYTES of a file, and sync the file."""
    place = secrets.randbelow(BLOCK_BYTES)
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        byte = os.pread(fd, 1, place)[0]
        os.pwrite(fd, bytes([byte ^ (1 << secrets.randbelow(8))]), place)
        os.fsync(fd)
    finally:
        os.close(fd)
