"""Runs a Spark Connect server in its own process."""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from spark_verify.session import QUICK_START
from tests.support.verification.spark_cluster import bare_python
from tools.demo.cluster import free_port

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
START_TIMEOUT_S = 300


@contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    """Run a server on two cores in `directory`. Its Python has none of this repository's packages.
    Yield its sc:// address when it listens."""
    home = Path(pyspark.__path__[0])
    port = free_port()
    python = bare_python(directory / "python")
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "localhost",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.log.level": "INFO",  # the line that says it listens is one
    }
    given = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command = [str(home / "bin" / "spark-class"), "org.apache.spark.deploy.SparkSubmit"]
    command += ["--class", SERVER, "--master", "local[2]", "--driver-memory", "1g", *given]
    command += ["--driver-java-options", QUICK_START]
    log = directory / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*command, "spark-internal"],
            cwd=directory,
            env={**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": str(python)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        _await_listening(server, log, port)
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def _await_listening(server: "subprocess.Popen[bytes]", log: Path, port: int) -> None:
    polls = START_TIMEOUT_S * 2
    for _ in range(polls):
        try:
            server.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
        else:
            break
    raise RuntimeError(f"no Spark Connect server: {log.read_text(errors='replace')[-2000:]}")
