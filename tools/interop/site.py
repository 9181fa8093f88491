"""An Ozone cluster of separate processes, each of which can be killed: SCM, OM, datanodes, client.

Ports are chosen once, so that a restarted process has the same address as before.
"""

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from tools.interop.cluster import OPENED, PREFIX, Block, PrerequisiteMissing
from tools.interop.secure_site import SiteSecurity

NOT_SECURE: Final = SiteSecurity()
PORTS_FROM: Final = 21_000  # below the kernel's ephemeral ports
PORTS_TO: Final = 29_000
START_S: Final = 180.0
ANSWER_S: Final = 900.0  # Ozone's clients retry for minutes
HEAPS: Final = {"scm": "320m", "om": "320m", "client": "640m"}
DATANODE_HEAP: Final = "320m"
SCM_MAIN: Final = "org.apache.hadoop.hdds.scm.server.StorageContainerManagerStarter"
OM_MAIN: Final = "org.apache.hadoop.ozone.om.OzoneManagerStarter"
DATANODE_MAIN: Final = "org.apache.hadoop.ozone.HddsDatanodeService"
LOG: Final = """log4j.rootLogger=WARN, file
log4j.appender.file=org.apache.log4j.FileAppender
log4j.appender.file.File=${interop.log}
log4j.appender.file.layout=org.apache.log4j.PatternLayout
log4j.appender.file.layout.ConversionPattern=%d{ISO8601} %-5p [%t] %c{1}: %m%n
log4j.logger.org.apache.hadoop.ozone.container.replication=INFO
"""
COMMON: Final[Mapping[str, str]] = {
    "hdds.heartbeat.interval": "1s",
    "hdds.node.report.interval": "2s",
    "hdds.container.report.interval": "30s",
    "hdds.pipeline.report.interval": "2s",
    "hdds.command.status.report.interval": "2s",
    "hdds.datanode.volume.min.free.space": "1GB",
    "hdds.datanode.http.enabled": "false",
    "hdds.datanode.use.datanode.hostname": "false",
    "hdds.datanode.hostname": "127.0.0.1",
    "hdds.scm.safemode.min.datanode": "3",
    "hdds.scm.wait.time.after.safemode.exit": "5s",
    "hdds.scm.block.deleting.service.interval": "2s",
    "hdds.scm.replication.thread.interval": "10s",
    "hdds.scm.replication.under.replicated.interval": "3s",
    "hdds.scm.replication.over.replicated.interval": "3s",
    "hdds.scm.replication.event.timeout": "60s",
    "hdds.scm.replication.event.timeout.datanode.offset": "10s",
    "ozone.block.deleting.service.interval": "2s",
    "ozone.scm.close.container.wait.duration": "2s",
    "ozone.scm.datanode.admin.monitor.interval": "2s",
    "ozone.scm.heartbeat.thread.interval": "1s",
    "ozone.scm.stale.node.interval": "20s",
    "ozone.scm.dead.node.interval": "60s",
    "ozone.scm.pipeline.creation.interval": "10s",
    "ozone.scm.pipeline.scrub.interval": "20s",
    "ozone.scm.pipeline.allocated.timeout": "60s",
    "ozone.scm.pipeline.destroy.timeout": "5s",
    "ozone.scm.chunk.size": "1MB",
    "ozone.scm.block.size": "8MB",
    "ozone.scm.container.size": "32MB",
    "ozone.client.stream.buffer.size": "1MB",
    "ozone.client.stream.buffer.flush.size": "4MB",
    "ozone.client.stream.buffer.max.size": "8MB",
    "ozone.om.http.enabled": "false",
    "ozone.scm.http.enabled": "false",
    "ozone.filesystem.snapshot.enabled": "false",
    "hdds.ratis.client.request.write.timeout": "30s",
    "hdds.ratis.client.request.watch.timeout": "20s",
    "hdds.ratis.raft.client.rpc.request.timeout": "15s",
    "hdds.ratis.raft.client.rpc.watch.request.timeout": "20s",
}
CENTRAL_PORTS: Final = {
    "ozone.scm.client.address": "",
    "ozone.scm.block.client.address": "",
    "ozone.scm.datanode.address": "",
    "ozone.scm.security.service.address": "",
    "ozone.om.address": "",
    "ozone.scm.ratis.port": None,
    "ozone.scm.grpc.port": None,
    "ozone.om.ratis.port": None,
    "ozone.om.grpc.port": None,
}  # "" is an address, None a port
DATANODE_PORTS: Final = (
    "hdds.container.ipc.port",
    "hdds.container.ratis.ipc.port",
    "hdds.container.ratis.admin.port",
    "hdds.container.ratis.server.port",
    "hdds.container.ratis.datastream.port",
    "hdds.datanode.replication.port",
    "hdds.datanode.client.port",
)


class Ports:
    """Free ports; each is returned once."""

    def __init__(self) -> None:
        self._next = PORTS_FROM

    def one(self) -> int:
        """Return the next free port. Raise PrerequisiteMissing if there is none."""
        while self._next < PORTS_TO:
            self._next += 1
            with socket.socket() as probe:
                try:
                    probe.bind(("127.0.0.1", self._next))
                except OSError:
                    continue
            return self._next
        raise PrerequisiteMissing("no port is free")


@dataclass
class Process:
    """A process of Ozone. Its configuration, data and log are below `place`."""

    name: str
    main: str
    place: Path
    settings: Mapping[str, str]
    class_path: str
    jvm: Sequence[str] = ()
    running: "subprocess.Popen[bytes] | None" = None

    def command(self, *words: str) -> list[str]:
        """Return the command line of the process, with `words` as arguments."""
        opened = [word for name in OPENED for word in ("--add-opens", f"{name}=ALL-UNNAMED")]
        return [
            "java",
            f"-Xmx{HEAPS.get(self.name, DATANODE_HEAP)}",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            f"-Dinterop.log={self.log}",
            *self.jvm,
            *opened,
            "-cp",
            f"{self.place}:{self.class_path}",
            self.main,
            *words,
        ]

    @property
    def log(self) -> Path:
        """The path of the process's log."""
        return self.place / "log"

    def configure(self) -> None:
        """Write the configuration of the process."""
        self.place.mkdir(parents=True, exist_ok=True)
        own = {"ozone.metadata.dirs": str(self.place / "metadata")}
        rows = [
            f"<property><name>{escape(key)}</name><value>{escape(value)}</value></property>"
            for key, value in {**COMMON, **own, **self.settings}.items()
        ]
        text = "\n".join(["<configuration>", *rows, "</configuration>"])
        for name in ("ozone-site.xml", "core-site.xml"):  # a login reads the latter only
            (self.place / name).write_text(text)
        (self.place / "log4j.properties").write_text(LOG)

    def init(self) -> None:
        """Initialise the data of the process with `--init`. Raise PrerequisiteMissing if that
        fails."""
        with (self.place / "out").open("ab") as out:
            done = subprocess.run(
                self.command("--init"), stdout=out, stderr=out, cwd=self.place, check=False
            )
        if done.returncode:
            said = (self.place / "out").read_text().strip().splitlines()[-3:]
            raise PrerequisiteMissing(f"{self.name} --init: {' / '.join(said)}")

    def start(self) -> None:
        """Start the process."""
        with (self.place / "out").open("ab") as out:
            self.running = subprocess.Popen(
                self.command(), stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=self.place
            )

    def kill(self) -> None:
        """Send SIGKILL to the process, if it runs, and wait for its end."""
        if self.running is not None:
            self.running.kill()
            self.running.wait()
            self.running = None

    @property
    def is_dead(self) -> bool:
        """Return True if the process ended by itself."""
        return self.running is not None and self.running.poll() is not None


@dataclass
class Client:
    """Ozone's clients in one process. Commands run in parallel."""

    process: "subprocess.Popen[str]"
    _asked: dict[int, "Future[str]"] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _count: int = 0

    def tell(self, line: str, wait_s: float = ANSWER_S) -> str:
        """Send a command; return the answer. Raise RuntimeError if the command fails or gets no
        answer."""
        answer: Future[str] = Future()
        assert self.process.stdin is not None
        with self._lock:
            self._count += 1
            number = self._count
            self._asked[number] = answer
            try:
                self.process.stdin.write(f"{number} {line}\n")
                self.process.stdin.flush()
            except OSError as error:
                raise RuntimeError(f"the client ended: {error}") from error
        try:
            word, _, rest = answer.result(wait_s).partition(" ")
        except TimeoutError as error:
            raise RuntimeError(f"{line}: no answer within {wait_s:g} s") from error
        if word != "ok":
            raise RuntimeError(f"{line}: {rest}")
        return rest

    def listen(self) -> None:
        """Pass answers to their callers, until the process ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.startswith(PREFIX):
                continue
            number, _, answer = line.removeprefix(PREFIX).strip().partition(" ")
            if number.isdigit():
                with self._lock:
                    asked = self._asked.pop(int(number))
                asked.set_result(answer)
        with self._lock:
            for asked in self._asked.values():
                asked.set_result("error the client ended")
            self._asked.clear()

    def write(self, how: str, key: str, length_bytes: int, seed: int) -> list[Block]:
        """Write a key; return its blocks. Raise RuntimeError if the write fails; the key may exist
        nevertheless."""
        pairs = (
            text.split(":") for text in self.tell(f"{how} {key} {length_bytes} {seed}").split()
        )
        return [(int(container), int(block)) for container, block in pairs]

    def containers(self) -> dict[int, tuple[str, str, int]]:
        """Return the state, the replication type and the number of keys, by container id."""
        found = {}
        for text in self.tell("containers", 120.0).split():
            container, state, kind, keys = text.split(",")
            found[int(container)] = (state, kind, int(keys))
        return found

    def datanodes(self) -> dict[str, int]:
        """Return the port for clients of each datanode, by datanode id."""
        pairs = (text.split(",") for text in self.tell("datanodes", 120.0).split())
        return {uuid: int(port) for uuid, port in pairs}

    def report(self) -> tuple[int, dict[str, int]]:
        """Return the time of the replication manager's last report, in ms, and its counts."""
        at, *counts = self.tell("report", 120.0).split()
        pairs = (text.split("=") for text in counts)
        return int(at), {name: int(count) for name, count in pairs}


class OzoneProcessCluster:
    """All processes of an Ozone cluster, with their files below `place`. The options `more` apply
    to all of them."""

    def __init__(
        self,
        class_path: str,
        place: Path,
        count: int,
        more: Mapping[str, str] | None = None,
        *,
        security: SiteSecurity = NOT_SECURE,
    ) -> None:
        self._class_path = class_path
        self._place = place
        self.security = security
        self._ports = Ports()
        self._shared: dict[str, str] = {**(more or {}), **security.settings}
        for name, kind in CENTRAL_PORTS.items():
            port = self._ports.one()
            self._shared[name] = str(port) if kind is None else f"127.0.0.1:{port}"
        self._shared["ozone.scm.names"] = self._shared["ozone.scm.datanode.address"]
        self.scm = self._process("scm", SCM_MAIN, {})
        self.om = self._process("om", OM_MAIN, {})
        self.datanodes = [self._datanode(index) for index in range(count)]
        self.client: Client

    def _process(self, name: str, main: str, own: Mapping[str, str]) -> Process:
        settings = {**self._shared, **own}
        return Process(
            name, main, self._place / name, settings, self._class_path, self.security.jvm
        )

    def _datanode(self, index: int) -> Process:
        name = f"datanode{index}"
        own = {key: str(self._ports.one()) for key in DATANODE_PORTS}
        own["hdds.datanode.dir"] = str(self._place / name / "data")
        own["hdds.datanode.client.address"] = f"127.0.0.1:{own['hdds.datanode.client.port']}"
        own["hdds.container.ratis.datanode.storage.dir"] = str(self._place / name / "ratis")
        return self._process(name, DATANODE_MAIN, own)

    @property
    def processes(self) -> list[Process]:
        """All processes except the client."""
        return [self.scm, self.om, *self.datanodes]

    def free_port(self) -> int:
        """Return a port that no process of the cluster has."""
        return self._ports.one()

    def port_of(self, name: str) -> int:
        """Return the port of an address of the SCM or the OM, by the name of its option."""
        return int(self._shared[name].rpartition(":")[2])

    def ports_of(self, index: int) -> tuple[int, int]:
        """Return a datanode's ports for clients and for archives."""
        settings = self.datanodes[index].settings
        return int(settings[DATANODE_PORTS[0]]), int(settings["hdds.datanode.replication.port"])

    def begin(self) -> None:
        """Initialise and start all processes. Raise PrerequisiteMissing if that fails."""
        for process in self.processes:
            process.configure()
        self.scm.init()
        self.scm.start()
        self._until(lambda: _answers(self.port_of("ozone.scm.client.address")), "the SCM")
        for process in self.datanodes:
            process.start()
        self.om.init()
        self.om.start()
        self._until(lambda: _answers(self.port_of("ozone.om.address")), "the OM")
        self._join_client()
        self._until(self._is_prepared, "the bucket")

    def _join_client(self) -> None:
        client = self._process("client", "OzoneSite", {})
        client.configure()
        process = subprocess.Popen(
            client.command(*self.security.login),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(client.place / "out").open("a"),
            text=True,
            cwd=client.place,
        )
        self.client = Client(process)
        threading.Thread(target=self.client.listen, daemon=True).start()

    def _is_prepared(self) -> bool:
        try:
            self.client.tell("prepare", 60.0)
            return self.client.tell("unsafe", 60.0) == "false"
        except RuntimeError:
            return False

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        ends_at_s = time.monotonic() + START_S
        while not condition():
            dead = [process.name for process in self.processes if process.is_dead]
            if dead or time.monotonic() > ends_at_s:
                why = f"{', '.join(dead)} ended" if dead else f"not within {START_S:g} s"
                raise PrerequisiteMissing(f"{what} does not start: {why}")
            time.sleep(0.5)

    def close(self) -> None:
        """Stop all processes."""
        for process in self.processes:
            process.kill()
        if hasattr(self, "client"):
            self.client.process.kill()
            self.client.process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
