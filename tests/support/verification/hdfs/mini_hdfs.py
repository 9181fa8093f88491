"""HDFS in a process of its own: the cluster that Hadoop ships for tests, fetched by Maven."""

import json
import os
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.verification.maven import class_path
from tests.support.waiting import wait_until

POM = Path(__file__).with_name("pom.xml")
START_S_MAX = 120.0
QUICK = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")  # it does little, and not long
CLUSTER = "org.apache.hadoop.test.MiniDFSClusterManager"


@dataclass(frozen=True, slots=True)
class Hdfs:
    """A name node that listens here, with one datanode."""

    host: str

    def address(self, path: str) -> str:
        """Return the address of something below a directory, as a person gives it."""
        return f"webhdfs://{self.host}/suture/{path}"

    def nowhere(self, path: str) -> str:
        """Return an address at which nobody listens."""
        return f"webhdfs://127.0.0.1:1/suture/{path}"


@contextmanager
def mini_hdfs(directory: Path) -> Iterator[Hdfs]:
    """Yield HDFS with its blocks in `directory`; skip the test where it cannot be had."""
    jars = class_path(POM, directory / "class-path")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    java = (
        str(Path(os.environ["JAVA_HOME"]) / "bin" / "java") if "JAVA_HOME" in os.environ else "java"
    )
    command = [java, *QUICK, f"-Dtest.build.data={directory}", "-cp", jars, CLUSTER]
    with (
        (directory / "hdfs.log").open("w") as log,
        subprocess.Popen(
            [
                *command,
                "-datanodes",
                "1",
                "-format",
                "-httpport",
                port,
                "-D",
                "dfs.permissions.enabled=false",
            ],
            cwd=directory,
            stdout=log,
            stderr=log,
            env={**os.environ, "HADOOP_HOME": str(directory), "HADOOP_CONF_DIR": str(directory)},
        ) as server,
    ):
        host = f"127.0.0.1:{port}"
        try:
            wait_until(lambda: _has_datanode(host, server, Path(log.name)), within_s=START_S_MAX)
            yield Hdfs(host)
        finally:
            server.kill()


def _has_datanode(host: str, server: subprocess.Popen[bytes], log: Path) -> bool:
    assert server.poll() is None, "HDFS ended: " + log.read_text()[-2000:]
    bean = "jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
    try:
        with urllib.request.urlopen(f"http://{host}/{bean}", timeout=1) as answer:
            beans = json.load(answer)["beans"]
    except OSError:
        return False
    return [bean["NumLiveDataNodes"] for bean in beans] == [1]
