"""`suture config`, as an operator runs it; and a reload of a running agent."""

import signal
import time
from pathlib import Path

import pytest

from agent.cli.main import run
from suture.runtime.exit_codes import ExitCode
from suture.wire.clients.peer import Peer
from tests.support.nursery import forked
from tests.support.printed_json import document_in
from tools.demo.cluster import Cluster

ROOT = Path(__file__).resolve().parents[3]
WAIT_S = 30.0
MIB = 1024**2


def printed(capsys: pytest.CaptureFixture[str], *words: str, code: int = ExitCode.OK) -> str:
    """Run a command; return its stdout."""
    capsys.readouterr()
    actual = run(list(words))
    shown = capsys.readouterr()
    assert code == actual, shown.out + shown.err
    return shown.out


def test_the_sample_passes_its_check(capsys: pytest.CaptureFixture[str]) -> None:
    """
    The file that a package installs is good as it is.
    """
    said = printed(capsys, "config", "check", "--config", str(ROOT / "systemd" / "agent.toml"))

    assert "good" in said


def test_a_wrong_file_is_refused_as_a_document(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    With --json the error is a document that names file and line.
    """
    path = tmp_path / "agent.toml"
    path.write_text('[storage]\nvolumes = ["/a"]\nspeed = 1\n')

    said = printed(capsys, "config", "check", "--config", str(path), "--json", code=ExitCode.FAILED)

    error = document_in(said, "config check")["error"]
    assert "INVALID_CONFIG" == error["code"]
    assert f"{path}:3 storage.speed" in error["message"]


def test_every_option_is_shown_with_its_origin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A configured option has its file and line, and any other one is a default."""
    path = tmp_path / "agent.toml"
    path.write_text('[storage]\nvolumes = ["/a"]\n')

    shown = document_in(printed(capsys, "config", "show", "--config", str(path), "--json"))[
        "options"
    ]

    assert {"value": '["/a"]', "origin": f"{path}:2"} == shown["storage.volumes"]
    assert {"value": '"7d"', "origin": "default"} == shown["scan.data_interval_s"]


def test_an_option_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """
    The name of an option gives its meaning, bounds and default.
    """
    said = printed(capsys, "config", "explain", "scan.data_interval_s")

    assert "from 1min to 90d" in said
    assert '"7d"' in said


@pytest.mark.slow
def test_an_event_of_the_log_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """The output describes the event and its fields. An unknown event is an error."""
    assert ExitCode.OK == run(["config", "explain", "--event", "volume_fenced"])
    told = capsys.readouterr().out
    assert ExitCode.OK != run(["config", "explain", "--event", "no_such"])

    assert "Nothing is served from this volume any more." in told
    assert "volume_id" in told
    assert "config explain --event" in capsys.readouterr().err


def test_a_running_agent_takes_live_options_and_refuses_wrong_ones(tmp_path: Path) -> None:
    """
    SIGHUP changes the rate of the scan that runs; a file that is wrong changes nothing.
    """
    sections = '[scan]\nstart_jitter_s = 0\nvolume_bytes_per_s = "3MiB/s"\n'
    with Cluster(tmp_path, agents=1, volumes=1, agent_sections=sections, launch=forked) as cluster:
        [process] = cluster.nodes
        assert process.popen is not None
        config = tmp_path / "datanode1.toml"
        good = config.read_text()

        def hang_up(text: str, event: str) -> None:
            seen = process.log.read_text().count(f'"{event}"')
            config.write_text(text)
            assert process.popen is not None
            process.popen.send_signal(signal.SIGHUP)
            deadline_s = time.monotonic() + WAIT_S
            while process.log.read_text().count(f'"{event}"') == seen:
                assert time.monotonic() < deadline_s, process.log.read_text()

        with Peer(process.address) as peer:
            hang_up(good.replace("3MiB/s", "5MiB/s"), "config_reloaded")
            taken = peer.scrub_status().volumes[0].rate_bytes_per_s
            hang_up(good.replace("3MiB/s", "5MiB"), "config_reload_failed")
            kept = peer.scrub_status().volumes[0].rate_bytes_per_s

        assert 5 * MIB == taken
        assert 5 * MIB == kept
        assert process.popen.poll() is None
