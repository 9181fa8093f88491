"""A cluster of Apache Ozone. Maven builds it. It runs in one Java process (the driver), which reads
commands line by line.

INTEROP_REPOSITORY names a Maven repository that contains Ozone. Without it, 262 MB are downloaded
into build/interop.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

ROOT: Final = Path(__file__).resolve().parents[2]
HERE: Final = Path(__file__).resolve().parent
BUILT: Final = ROOT / "build" / "interop"
PROGRAMS: Final = ("java", "javac", "mvn")
DRIVERS: Final = ("OzoneDriver.java", "OzoneClients.java", "OzoneNodes.java", "OzoneSite.java")
PREFIX: Final = "interop: "
HEAP: Final = "-Xmx2g"
STAND_IN: Final = "hdds-hadoop-dependency-client"
OPENED: Final = ("java.base/java.lang", "java.base/java.nio", "java.base/sun.nio.ch")


class PrerequisiteMissing(Exception):
    """Raised if a requirement of the cluster is missing; the text names it."""


def build() -> str:
    """Compile the drivers and fetch Ozone, if needed; return the class path.

    Raise PrerequisiteMissing if Java, Maven or a download is missing.
    """
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        raise PrerequisiteMissing(f"not installed: {', '.join(missing)}")
    classes, listed = BUILT / "classes", BUILT / "class-path"
    path = f"{classes}:{listed.read_text()}" if listed.exists() else ""
    if path and _is_built(classes, listed):
        return path
    classes.mkdir(parents=True, exist_ok=True)
    repository = os.environ.get("INTEROP_REPOSITORY") or str(BUILT / "repository")
    maven = ["mvn", "-q", "-B", f"-Dmaven.repo.local={repository}"]
    stand_in = HERE / "standin.xml"
    _run(
        *maven,
        "install:install-file",
        f"-Dfile={stand_in}",
        f"-DpomFile={stand_in}",
        "-DgroupId=org.apache.ozone",
        f"-DartifactId={STAND_IN}",
        "-Dversion=2.2.0",
        "-Dpackaging=pom",
    )
    pom = str(HERE / "pom.xml")
    _run(*maven, "-f", pom, "dependency:build-classpath", f"-Dmdep.outputFile={listed}")
    shutil.copy(HERE / "log4j.properties", classes)
    path = f"{classes}:{listed.read_text()}"
    _run("javac", "-d", str(classes), "-cp", path, *(str(HERE / name) for name in DRIVERS))
    return path


def _is_built(classes: Path, listed: Path) -> bool:
    """Return True if the build is newer than its sources."""
    sources = [*(HERE / name for name in DRIVERS), HERE / "pom.xml", HERE / "standin.xml"]
    made = [(classes / name).with_suffix(".class") for name in DRIVERS]
    jars = listed.read_text().split(":")
    if not all(path.exists() for path in (*made, *map(Path, jars))):
        return False
    changed_s = max(path.stat().st_mtime for path in sources)
    return changed_s < min(path.stat().st_mtime for path in made)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines()[-3:]
        raise PrerequisiteMissing(f"{command[0]} failed: {' / '.join(said)}")


@dataclass(frozen=True, slots=True)
class Node:
    """A datanode."""

    index: int
    datanode_id: str
    port: int
    data_dir: Path

    @property
    def peer(self) -> str:
        """The datanode as an argument of `suture ozone repair --peer`."""
        return f"127.0.0.1:{self.port}/{self.datanode_id}"

    def file(self, container_id: int, block_id: int) -> Path:
        """Return the path of a block's file. Search all volumes for the container."""
        pattern = f"hdds/*/current/*/{container_id}/chunks"
        (chunks,) = self.data_dir.glob(pattern)
        return chunks / f"{block_id}.block"


T = TypeVar("T")

Block = tuple[int, int]
"""Container id and block id."""


class Ozone:
    """The running cluster."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def tell(self, line: str) -> str:
        """Send a command line; return the answer. Raise RuntimeError if the command fails."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        word, _, answer = self.answer().partition(" ")
        if word != "ok":
            raise RuntimeError(f"{line}: {answer}")
        return answer

    def answer(self) -> str:
        """Wait for the driver's next answer, and return it. Raise RuntimeError if the driver
        ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(PREFIX):
                return line.removeprefix(PREFIX).strip()
        raise RuntimeError(f"the cluster ended: {self._process.wait()}")

    def write(self, key: str, length_bytes: int, seed: int, *, how: str = "write") -> list[Block]:
        """Write a key with Ozone's client; return its blocks."""
        found = self.tell(f"{how} {key} {length_bytes} {seed}").split()
        pairs = (text.split(":") for text in found)
        return [(int(container), int(block)) for container, block in pairs]

    def nodes(self) -> list[Node]:
        """Return the present datanodes of the cluster."""
        found = []
        for text in self.tell("datanodes").split():
            index, datanode_id, port, directory = text.split(",")
            path = directory.removeprefix("file://").removeprefix("[DISK]")
            found.append(Node(int(index), datanode_id, int(port), Path(path)))
        return found

    def settled_nodes(self, wait_s: float) -> list[Node]:
        """Wait until no datanode is starting; return the datanodes. Raise RuntimeError if this
        takes longer than `wait_s`."""
        return self._settled(self.nodes, wait_s)

    def settled_replicas(self, wait_s: float) -> dict[tuple[int, int], tuple[str, str]]:
        """Wait until no datanode is starting; return the replicas, as `replicas` does."""
        return self._settled(self.replicas, wait_s)

    def _settled(self, ask: Callable[[], T], wait_s: float) -> T:
        end_s = time.monotonic() + wait_s
        while True:
            try:
                return ask()
            except RuntimeError:
                if time.monotonic() > end_s or self._process.poll() is not None:
                    raise
            time.sleep(0.5)

    def replicas(self) -> dict[tuple[int, int], tuple[str, str]]:
        """Return the state and the root of each replica, by index of the datanode and container
        id."""
        found = {}
        for text in self.tell("replicas").split():
            node, container, state, root = text.split(",")
            found[int(node), int(container)] = (state, root)
        return found


@contextmanager
def running(class_path: str, directory: Path, *how: str) -> Iterator[Ozone]:
    """Run a cluster with its data below `directory` during the block, and yield it. Raise
    PrerequisiteMissing if it cannot be started.

    `how` has arguments of the driver: "led" for a replication manager that runs only on command,
    and the number of datanodes.
    """
    with _driven(class_path, directory, "OzoneDriver", *how) as process:
        yield Ozone(process)


@contextmanager
def _driven(class_path: str, directory: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a driver during the block; yield its process when it is ready. Raise PrerequisiteMissing
    if it cannot be started."""
    opened = [word for name in OPENED for word in ("--add-opens", f"{name}=ALL-UNNAMED")]
    command = [
        "java",
        HEAP,
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        f"-Dtest.build.data={directory / 'data'}",
        f"-Dinterop.log={directory / 'log'}",
        *opened,
        "-cp",
        class_path,
        *words,
    ]
    with (directory / "errors").open("w") as errors:
        process = subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        try:
            Ozone(process).answer()
        except RuntimeError as error:
            said = (directory / "errors").read_text().strip().splitlines()
            why = next((line for line in said if "Exception" in line), "")
            raise PrerequisiteMissing(f"{words[0]} does not start: {error}: {why}") from error
        yield process
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True, slots=True)
class BareDatanode:
    """A datanode of Ozone without a cluster (OzoneNodes)."""

    index: int
    datanode_id: str
    port: int
    replication_port: int
    data_dir: Path

    @property
    def peer(self) -> str:
        """The datanode as an argument of commands of OzoneNodes."""
        return f"127.0.0.1:{self.port}:{self.datanode_id}"


class Stacks(Ozone):
    """Ozone's datanodes, clients and reconstruction coordinator, without SCM and OM."""

    def stacks(self) -> list[BareDatanode]:
        """Return the datanodes."""
        found = []
        for text in self.tell("datanodes").split():
            index, datanode_id, port, replication_port, directory = text.split(",")
            found.append(
                BareDatanode(
                    int(index), datanode_id, int(port), int(replication_port), Path(directory)
                )
            )
        return found


@contextmanager
def stacks(class_path: str, directory: Path, count: int) -> Iterator[Stacks]:
    """Run `count` datanodes of Ozone below `directory` during the block, and yield their driver.
    Raise PrerequisiteMissing if they cannot be started."""
    with _driven(class_path, directory, "OzoneNodes", str(directory), str(count)) as process:
        yield Stacks(process)
