"""Spark starts on any host, and where it does not the reason is told in a line."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spark_verify.session import reason_of
from tests.support.verification.java import skip_without_java
from tests.support.verification.snapshots import container, gather
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]

STACK = """WARNING: Using incubator modules: jdk.incubator.vector
Exception in thread "main" java.lang.ExceptionInInitializerError
\tat org.apache.spark.deploy.SparkSubmit.main(SparkSubmit.scala)
Caused by: java.net.UnknownHostException: node7: node7: Name or service not known
\t... 10 more
Caused by: java.net.UnknownHostException: node7: Name or service not known
"""
UNANSWERED = """Setting default log level to "WARN".
To adjust logging level use sc.setLogLevel(newLevel).
Setting Spark log level to "ERROR".
spark: ERROR StandaloneSchedulerBackend: Application has been killed. Reason: no master answers
spark: ERROR TransportResponseHandler: Still have 3 requests outstanding
"""


def verified(directory: Path, *before: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Verify a container on Spark in a process of its own, which a command may start."""
    snapshot = gather([container(1, "R CLOSED 10", "C=7x3")]).write(directory / "s")
    job = ["-m", "spark_verify.job", str(snapshot), "--out", str(directory / "out")]
    return subprocess.run(
        [*before, sys.executable, *job, "--master", "local[1]"],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if not k.startswith("SPARK_")} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.spark
def test_a_host_without_an_address_and_a_user_without_an_entry_run_spark(tmp_path: Path) -> None:
    """
    A local session listens on loopback by itself, also with keys of a store in its environment,
    of which Spark notes the host that they come from. No system file has the user's id.
    """
    skip_without_java()
    become = "exec unshare --user --map-user=54321"
    rename = f'hostname no-such-host.invalid && {become} "$0" "$@"'
    asked = ["/usr/bin/env", "unshare", "-ru", "true"]
    if subprocess.run(asked, capture_output=True, check=False).returncode:
        pytest.skip("no host can be renamed here: it takes a user namespace, or root")

    keys = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "secret"}
    done = verified(tmp_path, "unshare", "-ru", "sh", "-c", rename, **keys)

    assert 0 == done.returncode, done.stderr
    assert "judging 1 containers" in done.stderr


def test_a_start_that_fails_is_told_in_a_line(tmp_path: Path) -> None:
    """No Java is found. The message has the shell's error, without a traceback."""
    failed = verified(tmp_path, JAVA_HOME="/nonexistent")

    assert 1 == failed.returncode
    *_, last, hint = failed.stderr.strip().splitlines()
    assert "openjdk-17" in hint
    assert last.startswith("suture-verify: cannot start Spark: ")
    assert "/nonexistent/bin/java: No such file or directory" in last
    assert "Traceback" not in failed.stderr
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.spark
def test_a_host_without_the_loopback_of_ipv4_is_told_what_it_lacks(tmp_path: Path) -> None:
    """
    PySpark connects to no other address, whatever Java prefers.
    """
    skip_without_java()
    begin = 'ip link set lo up && ip address del 127.0.0.1/8 dev lo && exec "$0" "$@"'
    asked = ["/usr/bin/env", "unshare", "-rn", "sh", "-c", begin, "true"]
    if subprocess.run(asked, capture_output=True, check=False).returncode:
        pytest.skip("no network can be made here: it takes a user namespace, or root")

    failed = verified(tmp_path, "unshare", "-rn", "sh", "-c", begin)

    assert 1 == failed.returncode
    *_, last, hint = failed.stderr.strip().splitlines()
    assert "cannot start Spark: " in last
    assert "ip address add 127.0.0.1/8 dev lo" in hint


JAVA = r"""#!/bin/sh
printf '\0\nsh\0-c\0echo $$ > {started}.part; mv {started}.part {started}; exec sleep 600\0'
"""


def test_interrupt_during_the_start_of_spark_leaves_no_java(tmp_path: Path) -> None:
    """A Java process that stays holds gigabytes, and the output that the caller waits for."""
    started, java = tmp_path / "started", tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(JAVA.format(started=started))
    java.chmod(0o755)
    snapshot = gather([container(1, "R CLOSED 10", "C=7x3")]).write(tmp_path / "s")
    job = ["-m", "spark_verify.start", str(snapshot), "--out", str(tmp_path / "out")]
    with (tmp_path / "said").open("w") as said:
        own = {k: v for k, v in os.environ.items() if not k.startswith("SPARK_")}
        with subprocess.Popen(
            [sys.executable, *job, "--master", "local[1]"],
            cwd=ROOT,
            env=own | {"JAVA_HOME": str(tmp_path / "java")},
            stdout=said,
            stderr=said,
        ) as verifying:
            wait_until(started.exists, within_s=120)
            verifying.send_signal(signal.SIGINT)
    pid = int(started.read_text())

    try:
        wait_until(lambda: not Path(f"/proc/{pid}/cwd").exists(), within_s=60)
    finally:
        if Path(f"/proc/{pid}/cwd").exists():
            os.kill(pid, signal.SIGKILL)
    assert 130 == verifying.returncode
    assert "Traceback" not in (tmp_path / "said").read_text()


def test_interrupt_during_the_imports_prints_no_traceback(tmp_path: Path) -> None:
    """The libraries take seconds to load, and the exit code is the same as later."""
    words = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "typer.py").write_text(words)
    done = subprocess.run(
        [sys.executable, "-m", "spark_verify.start", "s", "--out", "o"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (130, "", "") == (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (STACK, "java.net.UnknownHostException: node7: Name or service not known"),
        ('Exception in thread "main" a.B: no port\n\tat a.C\n', "a.B: no port"),
        ("WARNING: x\nspark-class: no java\nline 97: CMD\n", "spark-class: no java"),
        (UNANSWERED, "Application has been killed. Reason: no master answers"),
        ('Setting default log level to "WARN".\nTo adjust it use x.\n', "the gateway ended"),
        ("", "the gateway ended"),
    ],
)
def test_the_innermost_reason_is_told(said: str, reason: str) -> None:
    """The reason is the cause in Java's output. Without one, it is Python's error."""
    assert reason == reason_of(RuntimeError("the gateway ended\nmore"), said)
