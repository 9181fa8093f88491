"""A cluster of Spark on this machine: a master and two workers, each a process, on 127.0.0.1.

A worker has a core and a GiB. Its Python has numpy, pyarrow and pyspark and no other packages.
Anything else that tasks import must be delivered with the job.
"""

import json
import os
import signal
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pyspark

from tests.support.waiting import wait_until
from tools.demo.cluster import free_port

MASTER: Final = "org.apache.spark.deploy.master.Master"
WORKER: Final = "org.apache.spark.deploy.worker.Worker"
START_S_MAX: Final = 300.0
ON_WORKERS: Final = ("numpy", "numpy.libs", "pyarrow", "pyarrow.libs", "pyspark", "py4j")
QUICK: Final = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:MetaspaceSize=128m "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Options for a JVM that runs only some seconds, and needs most of this time to load and compile
classes."""


SETTINGS: Final = {
    # Half of a worker's memory for its JVM, half for its Python, which cannot take more.
    "spark.executor.memory": "512m",
    "spark.executor.pyspark.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": QUICK,
    "spark.driver.extraJavaOptions": QUICK,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    # Nothing starts before both workers are there.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    # The data of a dead worker is requested once more, not for a quarter of a minute.
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "1s",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
}


@dataclass(slots=True)
class SparkCluster:
    """A master that listens, and its workers."""

    directory: Path
    python: Path
    """The Python of the workers."""
    port: int
    page_port: int
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    @property
    def address(self) -> str:
        """The address for `--master`."""
        return f"spark://127.0.0.1:{self.port}"

    @property
    def workers(self) -> list[int]:
        """The processes of the running workers."""
        return [one.pid for one in self.processes[1:] if one.poll() is None]

    def add_workers(self, count: int) -> None:
        """Start workers, and wait until the master knows all running workers."""
        for _ in range(count):
            number = len(self.processes)
            place = ["--work-dir", str(self.directory / f"worker-{number}")]
            size = ["--cores", "1", "--memory", "1g", "--host", "127.0.0.1", "--webui-port", "0"]
            self._start(f"worker-{number}.log", WORKER, *place, *size, self.address)
        self._await(lambda: self._alive() == len(self.workers))

    def start_master(self) -> None:
        """Start the master, and wait until it answers."""
        ports = ["--port", str(self.port), "--webui-port", str(self.page_port)]
        self._start("master.log", MASTER, "--host", "127.0.0.1", *ports)
        self._await(lambda: self._alive() == 0)

    def stop(self) -> None:
        """Kill all processes that were started, with their children."""
        for one in self.processes:
            if one.poll() is None:
                kill_tree(one.pid)
            one.wait()

    def environment(self) -> dict[str, str]:
        """Return the environment of a client: without the checkout."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYTHON"))}
        return kept | {
            "SPARK_HOME": str(home()),
            "SPARK_LOCAL_DIRS": str(self.directory),  # killed processes leave files there
            "PYSPARK_PYTHON": str(self.python),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }

    def settings(self, log: Path, more: Mapping[str, str] = MappingProxyType({})) -> list[str]:
        """Return the settings of a client; its events are logged in a new directory."""
        log.mkdir(parents=True)
        given = SETTINGS | {"spark.eventLog.dir": log.as_uri()} | dict(more)
        return [word for name, value in given.items() for word in ("--conf", f"{name}={value}")]

    def _start(self, log: str, *command: str) -> None:
        environment = self.environment() | {
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        with (self.directory / log).open("wb") as output:
            # It dies with this process, however this process ends.
            tied = ["setpriv", "--pdeathsig", "KILL", str(home() / "bin" / "spark-class")]
            self.processes.append(
                subprocess.Popen(
                    [*tied, *command],
                    cwd=self.directory,
                    env=environment,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )

    def _await(self, condition: Callable[[], bool]) -> None:
        def is_so() -> bool:
            assert self.processes[-1].poll() is None, f"a process ended; see {self.directory}"
            return condition()

        wait_until(is_so, within_s=START_S_MAX)

    def _alive(self) -> int:
        """Return how many workers the master knows; -1 if the master does not answer."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.page_port}/json/", timeout=5
            ) as page:
                count: int = json.load(page)["aliveworkers"]
                return count
        except (OSError, ValueError):  # it starts
            return -1


@contextmanager
def spark_cluster(directory: Path, also: Sequence[str] = ()) -> Iterator[SparkCluster]:
    """Yield a master with two workers; afterwards none of their processes runs. `also` are packages
    that the workers have installed in addition to ON_WORKERS."""
    python = bare_python(directory / "python", also)
    cluster = SparkCluster(directory, python, free_port(), free_port())
    try:
        cluster.start_master()
        cluster.add_workers(2)
        yield cluster
    finally:
        cluster.stop()


def bare_python(directory: Path, also: Sequence[str] = ()) -> Path:
    """Return a Python without this repository, with only the packages of the workers."""
    venv.create(directory, symlinks=True, with_pip=False)
    installed = Path(sysconfig.get_path("purelib"))
    (target,) = directory.glob("lib/python3*/site-packages")
    for name in (*ON_WORKERS, *also):
        if (installed / name).exists():
            (target / name).symlink_to(installed / name)
    return directory / "bin" / "python"


def home() -> Path:
    """Return the directory of Spark's own scripts."""
    return Path(pyspark.__path__[0])


def tree(pid: int) -> list[int]:
    """Return a process and all processes that it started, directly or not."""
    found = [pid]
    with suppress(OSError):
        for listed in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in listed.read_text().split():
                found += tree(int(child))
    return found


def kill_tree(pid: int) -> list[int]:
    """Kill a process and all processes that it started, as if its machine had died; return them."""
    doomed = tree(pid)
    for one in doomed:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)
    return doomed
