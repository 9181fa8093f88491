"""The start of the daemons: signals that arrive during the imports, and a stdout that fails."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from suture.client.cluster_client import ClusterClient
from suture.wire.v1 import scm_pb2
from tests.support.process_logs import log_events
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

WAIT_S = 60.0

SIGNALLED = """
import os, signal, sys

class SendSignal:
    def find_spec(self, name, path=None, target=None):
        if name == {during!r}:
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, SendSignal())
from {module} import main
main()
"""


def agent_config(directory: Path, scm: str = "127.0.0.1:1") -> Path:
    """Write the config of an agent with one empty volume; return its path."""
    volume = directory / "volume"
    volume.mkdir()
    config = directory / "agent.toml"
    config.write_text(
        f'[node]\nlisten = "127.0.0.1:0"\nscm = "{scm}"\n'
        f'[storage]\nvolumes = ["{volume}"]\nreserve_bytes = 0\n'
        '[scan]\nstart_jitter_s = 0\n[observe]\nlisten = ""\n'
    )
    return config


def arguments(module: str, directory: Path) -> list[str]:
    """Return the command line by which a daemon runs until it is stopped."""
    if module == "scm.start":
        own = ["--data", str(directory / "scm"), "--listen", "127.0.0.1:0"]
        return [*own, "--set", "observe_listen="]
    return ["--config", str(agent_config(directory))]


@contextmanager
def signalled(module: str, number: int, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a daemon to which a signal is sent in the middle of its imports."""
    code = SIGNALLED.format(module=module, number=number, during="structlog")
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments(module, directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("module", ["agent.start", "scm.start"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_signal_during_imports_ends_the_daemon_cleanly(
    module: str, number: int, tmp_path: Path
) -> None:
    """Without the handler the exit status names the signal; process 1 would not stop at all."""
    with signalled(module, number, tmp_path) as process:
        assert 0 == process.wait(WAIT_S), process.communicate()[1]


@pytest.mark.parametrize("module", ["agent.start", "scm.start"])
def test_reload_signal_during_imports_does_not_end_the_daemon(module: str, tmp_path: Path) -> None:
    """SIGHUP is remembered: the daemon starts, and stops when it is asked to."""
    with signalled(module, signal.SIGHUP, tmp_path) as process:
        assert process.stderr is not None
        event = json.loads(process.stderr.readline())["event"]
        process.terminate()

        assert 0 == process.wait(WAIT_S)
        assert event in {"waiting_for_scm", "scm_started"}


IGNORED_BY_DEFAULT = """
import os, signal, sys

def ignored(number):  # what the kernel does for process 1
    pass

signal.raise_signal = ignored

class SendSignal:
    def find_spec(self, name, path=None, target=None):
        if name == "agent.cli.program":
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, SendSignal())
sys.argv = ["suture", "--version"]
from agent.cli.start import main
main()
"""


def test_stop_signal_during_imports_ends_a_command_that_is_process_1() -> None:
    """The default effect of a signal does not exist for process 1 of a container."""
    ended = subprocess.run(
        [sys.executable, "-c", IGNORED_BY_DEFAULT], capture_output=True, text=True, timeout=WAIT_S
    )

    assert (130, "", "") == (ended.returncode, ended.stdout, ended.stderr)


def closed_pipe() -> int:
    """Return the writing end of a pipe that has no reader."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.parametrize("kind", ["full disk", "closed pipe", "closed descriptor"])
def test_daemons_serve_when_stdout_takes_nothing(kind: str, tmp_path: Path) -> None:
    """The line `listening` is for a script: its loss is logged, and calls are answered."""
    scm_log, agent_log = tmp_path / "scm.log", tmp_path / "agent.log"
    with running_without_stdout("scm.start", kind, tmp_path, scm_log) as scm:
        scm_address = started(scm_log, "scm_started")
        config = agent_config(tmp_path, scm_address)
        words = ("--config", str(config))
        with (
            running_without_stdout("agent.start", kind, tmp_path, agent_log, *words) as agent,
            ClusterClient(scm_address) as client,
        ):
            agent_address = started(agent_log, "agent_started")
            nodes = client.scm.list_nodes(scm_pb2.ListNodesRequest()).nodes
            assert [agent_address] == [node.address for node in nodes]
            agent.terminate()
            assert 0 == agent.wait(WAIT_S)
        scm.terminate()
        assert 0 == scm.wait(WAIT_S)
    losses = [len(log_events(log, "listening_line_write_failed")) for log in (scm_log, agent_log)]
    assert losses == ([0, 0] if kind == "closed descriptor" else [1, 1])


def started(log: Path, event: str) -> str:
    """Wait until a daemon logs that it has started; return its address."""
    wait_until(lambda: bool(log_events(log, event)))
    return str(log_events(log, event)[0]["address"])


@contextmanager
def running_without_stdout(
    module: str, kind: str, directory: Path, log: Path, *words: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a daemon whose stdout fails as `kind` says and whose stderr is the file `log`."""
    command = [sys.executable, "-m", module, *(words or arguments(module, directory))]
    stdout = os.open("/dev/full", os.O_WRONLY) if kind == "full disk" else closed_pipe()
    if kind == "closed descriptor":
        command = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    with (
        log.open("wb") as stderr,
        subprocess.Popen(command, stdout=stdout, stderr=stderr) as process,
    ):
        os.close(stdout)
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("umask", ["0000", "0777"])
def test_modes_of_new_files_do_not_depend_on_the_umask(umask: str, tmp_path: Path) -> None:
    """A directory that every user may change is refused at the next start; 0777 locks all out."""
    scm_log, agent_log = tmp_path / "scm.log", tmp_path / "agent.log"
    under = ["sh", "-c", f'umask {umask}; exec "$@"', "sh", sys.executable, "-m"]
    scm_words = arguments("scm.start", tmp_path)
    with logging_to(scm_log, [*under, "scm.start", *scm_words]) as scm:
        config = agent_config(tmp_path, started(scm_log, "scm_started"))
        for _ in range(2):
            agent_log.write_bytes(b"")
            command = [*under, "agent.start", "--config", str(config)]
            with logging_to(agent_log, command) as agent:
                started(agent_log, "agent_started")
                wait_until(lambda: bool(log_events(agent_log, "canary_found")))
                agent.terminate()
                assert 0 == agent.wait(WAIT_S)
        scm.terminate()
        assert 0 == scm.wait(WAIT_S)

    modes = {
        str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777
        for root in (tmp_path / "scm", tmp_path / "volume")
        for path in root.rglob("*")
    }
    owner = {path: mode for path, mode in modes.items() if mode & 0o600 != 0o600}
    others = {path: oct(mode) for path, mode in modes.items() if mode & 0o027}
    assert ({}, {}) == (owner, others)


@contextmanager
def logging_to(log: Path, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command whose stderr is the file `log`."""
    with (
        log.open("wb") as stderr,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr) as process,
    ):
        try:
            yield process
        finally:
            process.kill()
