"""Loses and restores the control plane of a cluster of real processes, repeatedly.

    work ─ backup ─ more work: puts, replaces, deletes, closes, killed agents ─ SIGKILL of the
    control plane in the middle of a put ─ restore ─ recover ─ every acknowledged key is read

The expected keys are recorded here from the answers that clients received. A put without an answer
may have happened or not; a delete may be undone, because only the lost state recorded it.
Everything else that was acknowledged must be read back byte by byte.
"""

import contextlib
import hashlib
import io
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self, TypeVar

from agent.cli.main import run
from scm.backup.backup_writer import take_backup
from scm.backup.restore import restore_backup
from suture.client.cluster_client import ClusterClient
from suture.client.file_pieces import SourceFile
from suture.client.writer import WriterSession
from suture.ec.scheme import parse_scheme
from suture.errors import Code, SutureError, UnavailableError
from suture.wire.v1 import scm_pb2
from tools.demo.cluster import Cluster, Launch, launched

T = TypeVar("T")

AGENTS: Final = 5
PART_BYTES: Final = 48 * 1024  # so that files have several blocks
FILE_BYTES_MAX: Final = 160 * 1024
OPS_MAX: Final = 12
WAIT_S: Final = 90.0
CODED: Final = parse_scheme("rs-3-2-16k")
SECTIONS: Final = "[scan]\nenabled = false\nwatch = false\n"
SETTINGS: Final = {
    "close_retry_ms": 300,
    "stale_after_ms": 5_000,
    "dead_after_ms": 20_000,
    "check_interval_ms": 2_000,
}


@dataclass
class Truth:
    """The acknowledged state of a key. `version` is None if the key was deleted. `tried` has the
    versions whose puts had no answer since, and None for a delete without an answer.
    """

    version: int | None
    tried: set[int | None] = field(default_factory=set)

    @property
    def allowed(self) -> set[int | None]:
        """The versions that a read may return; None = no such key. If the key was deleted, all
        versions are allowed, because the delete may be undone."""
        undone = set() if self.version is not None else set(range(1, 1_000))
        return {self.version} | self.tried | undone


@dataclass
class Verdict:
    """The result of one restore."""

    seed: int
    key_count: int
    since_count: int  # keys put after the backup
    lost: list[str]
    unreadable: list[str]  # deleted keys that exist again and cannot be read
    reused: list[int]  # block ids that were assigned twice


def content(key: str, version: int) -> bytes:
    """Return the content of a version of a key."""
    seed = f"{key} {version}".encode()
    size_bytes = int.from_bytes(hashlib.sha256(seed).digest()[:4], "big") % FILE_BYTES_MAX
    return hashlib.shake_128(seed).digest(size_bytes)


class Drill:
    """A cluster, and all answers that its clients received. `random` is seeded."""

    settings: Mapping[str, int | str] = SETTINGS
    cluster_type = Cluster

    def __init__(self, root: Path, seed: int, launch: Launch = launched) -> None:
        self.root = root
        self.seed = seed
        self.random = random.Random(seed)  # noqa: S311 - a seeded script, nothing secret
        self.truths: dict[str, Truth] = {}
        self.backups: list[Path] = []
        self.local_ids: set[int] = set()
        self.reused: list[int] = []
        self.since: set[str] = set()
        self._version = 0
        self._generation = 0
        self._data = root / "cluster" / "scm"
        self.cluster = self.cluster_type(
            root / "cluster",
            agents=AGENTS,
            volumes=1,
            container_bytes_max=2 * 1024**2,
            heartbeat_interval_ms=200,
            agent_sections=SECTIONS,
            scm_settings=self.settings,
            launch=launch,
        )

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        """Run the cluster, and a client whose files have several blocks."""
        whole_bytes = WriterSession.block_bytes
        WriterSession.block_bytes = PART_BYTES
        try:
            with self.cluster, ClusterClient(self.cluster.scm.address) as self.client:
                yield self
        finally:
            WriterSession.block_bytes = whole_bytes

    def once(self, seed: int) -> Verdict:
        """Run random operations, a backup and more operations, kill the control plane, and restore
        it; return the result."""
        self.random.seed(seed)
        for _ in range(self.random.randint(2, OPS_MAX)):
            self.act()
        self.since.clear()
        self.back_up()
        for _ in range(self.random.randint(2, OPS_MAX)):
            self.act()
        self.crash()
        self.restore(self.chosen())
        self.recover()
        return self.judge(seed)

    def chosen(self) -> Path:
        """Return the newest backup or, at random, an older one, which may have been restored
        before."""
        is_old = self.random.randrange(5) == 0 and len(self.backups) > 1
        return self.backups[-2] if is_old else self.backups[-1]

    def act(self) -> None:
        """Run one random action: an operation of a client, or a fault."""
        actions = [self.put] * 5 + [self.put_coded, self.replace, self.delete, self.delete]
        self.random.choice([*actions, self.close, self.close, self.strike, self.settle])()

    def put(self) -> None:
        """Store a few new files in one call."""
        keys = [f"k{self.seed}/{self._version + 1 + i}" for i in range(self.random.randint(1, 3))]
        self.store(keys)

    def put_coded(self) -> None:
        """Store an erasure-coded file."""
        self.store([f"c{self.seed}/{self._version + 1}"], is_coded=True)

    def replace(self) -> None:
        """Store another version of a key."""
        keys = self.there()
        if keys:
            self.store([self.random.choice(keys)])

    def close(self) -> None:
        """Store a file and close its containers."""
        self.store([f"k{self.seed}/{self._version + 1}"], is_closed=True)

    def delete(self) -> None:
        """Delete a key."""
        keys = self.there()
        if not keys:
            return
        truth = self.truths[name := self.random.choice(keys)]
        truth.tried.add(None)
        with contextlib.suppress(SutureError):
            self.client.scm.delete_keys(scm_pb2.DeleteKeysRequest(keys=[name]))
            self.truths[name] = Truth(None)

    def strike(self) -> None:
        """Kill and restart an agent."""
        index = self.random.randrange(AGENTS)
        self.cluster.nodes[index].kill()
        self.cluster.start_again(index)

    def settle(self) -> None:
        """Wait up to two seconds, so that datanodes execute commands: close, delete, repair."""
        time.sleep(self.random.random() * 2)

    def there(self) -> list[str]:
        """Return the keys that are known to exist, in a fixed order."""
        return sorted(name for name, one in self.truths.items() if one.version is not None)

    def store(self, keys: list[str], *, is_coded: bool = False, is_closed: bool = False) -> bool:
        """Store a new version of each key, and record the acknowledged keys. Return True if the put
        succeeded."""
        sources = []
        versions = {}
        for key in keys:
            self._version += 1
            versions[key] = self._version
            path = self.root / f"put{threading.get_ident()}-{self._version}"
            path.write_bytes(data := content(key, self._version))
            sources.append(SourceFile(key, path, len(data)))
            self.truths.setdefault(key, Truth(None)).tried.add(self._version)
        try:
            stored, _ = self.client.put(
                sources,
                lanes=1,
                replace=True,
                close=is_closed,
                scheme=CODED if is_coded else None,
            )
        except SutureError:
            return False
        finally:
            for source in sources:
                source.path.unlink()
        for one in stored:
            self.truths[one.key] = Truth(versions[one.key])
            self.since.add(one.key)
            for block in one.blocks:
                local_id = block.block_id.local_id
                if local_id in self.local_ids:
                    self.reused.append(local_id)
                self.local_ids.add(local_id)
        return True

    def back_up(self) -> None:
        """Take a backup while the control plane runs."""
        now_ms = time.time_ns() // 1_000_000
        taken = take_backup(
            self._data, self.root / "backups", now_ms=now_ms, version="drill", keep_count=4
        )
        self.backups = [one for one in [*self.backups, taken.path] if one.exists()]

    def crash(self) -> None:
        """Kill the control plane at a random moment of a put."""
        putting = threading.Thread(target=self._put_until_it_fails)
        putting.start()
        time.sleep(self.random.random())  # the random moment
        self.cluster.scm.kill()
        putting.join()

    def _put_until_it_fails(self) -> None:
        with impatient_writers():
            while self.store([f"w{self.seed}/{self._version + 1}"]):
                pass

    def restore(self, backup: Path) -> None:
        """Start a control plane on a backup, at the address of the lost one."""
        self._generation += 1
        address = self.cluster.scm.address
        self._data = self.root / "cluster" / f"scm{self._generation}"
        restore_backup(backup, self._data, now_ms=time.time_ns() // 1_000_000)
        arguments = self.cluster.scm_arguments(address)
        arguments[2] = str(self._data)
        self.cluster.scm.arguments = arguments
        self.cluster.scm.start()

    def recover(self) -> None:
        """Run `suture scm recover` until it succeeds, and wait for the end of safe mode."""
        address = self.cluster.scm.address
        until_s = time.monotonic() + WAIT_S
        said = io.StringIO()
        while True:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                code = run(["scm", "recover", "--json", "--scm", address])
            if code in {0, 2}:
                break
            if time.monotonic() > until_s:
                raise AssertionError(f"not recovered: exit code {code}: {said.getvalue()[-4000:]}")
            time.sleep(0.2)
        while self.client.scm.safe_mode(scm_pb2.SafeModeRequest()).on:
            if time.monotonic() > until_s:
                raise AssertionError("safe mode does not end")
            time.sleep(0.1)

    def judge(self, seed: int) -> Verdict:
        """Read every key, and return the result. From now on, the keys that were read are the
        expected state."""
        lost, unreadable = [], []
        for name in sorted(self.truths):
            truth = self.truths[name]
            found, error = self._read(name)
            is_there = found in truth.allowed and not error
            if not is_there and truth.version is not None:
                lost.append(f"{name}: {error or found}, allowed {truth.allowed}")
            elif not is_there:
                unreadable.append(f"{name}: {error or found}")
            self.truths[name] = Truth(found)
        since = {name for name in self.since if self.truths[name].version is not None}
        return Verdict(seed, len(self.there()), len(since), lost, unreadable, self.reused)

    def _read(self, name: str) -> tuple[int | None, str]:
        """Read a key; return its version (None if there is no such key), and the error or ""."""
        try:
            data = b"".join(self.client.get(name))
        except SutureError as error:
            return None, "" if error.code is Code.KEY_NOT_FOUND else f"{error.code}: {error}"
        truth = self.truths[name]
        candidates = [v for v in truth.allowed if v is not None and v <= self._version]
        for version in candidates:
            if content(name, version) == data:
                return version, ""
        return None, f"{len(data)} bytes of no version"


@contextlib.contextmanager
def impatient_writers() -> Iterator[None]:
    """Make writers fail at once while the control plane is away, instead of after minutes."""
    ask = WriterSession._call_scm

    def ask_once(
        session: WriterSession,
        work: Callable[[], T],
        *,
        must_end: Callable[[], bool] | None = None,
    ) -> T:
        del must_end
        try:
            return work()
        except UnavailableError:
            session.stopped = True
            raise

    WriterSession._call_scm = ask_once  # type: ignore[method-assign,assignment]  # put back below
    try:
        yield
    finally:
        WriterSession._call_scm = ask  # type: ignore[method-assign]  # as it was
