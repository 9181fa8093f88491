"""Restarts a control plane on an older state, or runs two on copies of one state, under writers.

    put back   work ─ copy of the state while six clients write ─ SIGKILL ─ copy in its place
    forked     work ─ SIGKILL ─ two control planes on copies, listed by agents ─ clients write

Then containers close, and there is time to delete blocks that were promised but not committed. At
the end one control plane is recovered, and every acknowledged key is read.
"""

import contextlib
import itertools
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.reliability.restore_drill import (
    SETTINGS,
    Drill,
    Truth,
    Verdict,
    content,
    impatient_writers,
)
from suture.client.cluster_client import ClusterClient
from suture.client.file_pieces import SourceFile
from suture.errors import SutureError
from suture.wire.v1 import scm_pb2
from tools.demo.cluster import Cluster, Launch, Process, free_port, launched

WRITERS: Final = 6
DELETES_S: Final = 4.0  # containers close after one second without a call of their writer
REPORTED_S: Final = 30.0


class ListedTwice(Cluster):
    """A cluster whose agents list a second control plane."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.other_address = f"127.0.0.1:{free_port()}"

    def write_config(self, index: int, listen: str = "") -> Path:
        """Write the config of an agent."""
        path = super().write_config(index, listen)
        one = f'scm = "{self.scm.address}"'
        both = f'scm = ["{self.scm.address}", "{self.other_address}"]'
        path.write_text(path.read_text().replace(one, both))
        return path


class OlderDrill(Drill):
    """A drill on a cluster whose agents list two control planes. Normally only one of them runs."""

    settings: Mapping[str, int | str] = {
        **SETTINGS,
        "session_idle_ms": 1_000,
        "safemode_wait_ms": 1_000,
    }
    cluster_type = ListedTwice
    cluster: ListedTwice

    def __init__(self, root: Path, seed: int, launch: Launch = launched) -> None:
        super().__init__(root, seed, launch)
        self._launch = launch
        self._numbers = itertools.count(1)

    def put_back(self, seed: int) -> Verdict:
        """Restart the control plane on an older state; return the result after the recovery."""
        self._begin(seed)
        older = self.root / f"older{seed}"
        with self._writing(self.cluster.scm.address):
            self._stored(self.random.randint(1, 12))
            shutil.copytree(self._data, older)
            self._stored(self.random.randint(6, 24))
            self.cluster.scm.kill()
        self._replace(older)
        self.cluster.scm.start()
        return self._end(seed)

    def fork(self, seed: int) -> Verdict:
        """Run two control planes on copies of one state. Then recover one of them, and return the
        result.
        """
        self._begin(seed)
        with self._writing(self.cluster.scm.address):
            self._stored(self.random.randint(1, 12))
            self.cluster.scm.kill()
        copied = self.root / f"fork{seed}"
        shutil.copytree(self._data, copied)
        arguments = self.cluster.scm_arguments(self.cluster.other_address)
        arguments[2] = str(copied)
        log = self.root / "cluster" / "other.log"
        other = Process("other", arguments, log, launch=self._launch)
        try:
            other.start()
            self.cluster.scm.start()
            with self._writing(self.cluster.scm.address), self._writing(self.cluster.other_address):
                time.sleep(1 + self.random.random() * 2)
            time.sleep(DELETES_S)
        finally:
            other.kill()
        return self._end(seed)

    def _stored(self, count: int) -> None:
        """Wait until `count` more keys are acknowledged. Fail after REPORTED_S."""
        wanted, until_s = len(self.since) + count, time.monotonic() + REPORTED_S
        while len(self.since) < wanted:
            if time.monotonic() > until_s:
                raise AssertionError(f"{len(self.since)} keys of {wanted} are stored")
            time.sleep(0.01)

    def _begin(self, seed: int) -> None:
        self.random.seed(seed)
        self.seed = seed
        self.cluster.scm.arguments = self.cluster.scm_arguments(self.cluster.scm.address)
        for _ in range(self.random.randint(1, 4)):
            self.put()
        self.since.clear()

    def _end(self, seed: int) -> Verdict:
        until_s = time.monotonic() + REPORTED_S
        while time.monotonic() < until_s:
            gate = self.client.scm.safe_mode(scm_pb2.SafeModeRequest())
            if not gate.on or "suture scm recover" in gate.reason:
                break
            time.sleep(0.1)
        time.sleep(DELETES_S)
        self.recover()
        return self.judge(seed)

    def _replace(self, older: Path) -> None:
        shutil.rmtree(self._data)
        shutil.move(older, self._data)

    @contextlib.contextmanager
    def _writing(self, address: str) -> Iterator[None]:
        """Run clients during the block that write to a control plane until it fails."""
        stopping = threading.Event()
        threads = [
            threading.Thread(target=self._write, args=(address, number, stopping))
            for number in range(WRITERS)
        ]
        with impatient_writers():
            for thread in threads:
                thread.start()
            try:
                yield
            finally:
                stopping.set()
                for thread in threads:
                    thread.join()

    def _write(self, address: str, number: int, stopping: threading.Event) -> None:
        with contextlib.suppress(SutureError), ClusterClient(address) as client:
            while not stopping.is_set():
                version = next(self._numbers)
                name = f"o{self.seed}/{number}/{version}"
                path = self.root / f"older-put{version}"
                path.write_bytes(data := content(name, version))
                self._version = max(self._version, version)
                self.truths[name] = Truth(None, {version})
                try:
                    client.put([SourceFile(name, path, len(data))], lanes=1)
                finally:
                    path.unlink()
                self.truths[name] = Truth(version)
                self.since.add(name)
