"""What the nursery forks is a process of its own, and ends as its program does."""

import os
import signal
from pathlib import Path

import pytest

from tests.support.control.scm_process import spawn
from tests.support.nursery import Child


def line_of(child: Child) -> str:
    """Return the first line that it says."""
    return str(child.stdout.readline())


def test_forked_child_has_its_own_process_session_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child works in the starter's current directory, and has no descriptor of another
    child.
    """
    first = spawn(tmp_path / "first")
    monkeypatch.chdir(tmp_path)
    second = spawn(tmp_path / "second")
    with first, second:
        assert '"listening"' in line_of(first)
        assert '"listening"' in line_of(second)
        mine, one, other = os.getpid(), first.pid, second.pid

        assert 3 == len({mine, one, other})
        assert 3 == len({os.getsid(pid) for pid in (mine, one, other)})
        assert tmp_path == Path(f"/proc/{other}/cwd").readlink()
        assert tmp_path != Path(f"/proc/{one}/cwd").readlink()
        pipes = {Path(f"/proc/{pid}/fd/1").readlink() for pid in (one, other)}
        assert 2 == len(pipes)
        theirs = {path.readlink() for path in Path(f"/proc/{other}/fd").iterdir()}
        assert not theirs & {Path(f"/proc/{one}/fd/{number}").readlink() for number in (1, 2)}

        first.kill()
        second.terminate()

        assert (-signal.SIGKILL, 0) == (first.wait(30), second.wait(30))


def test_exit_code_and_output_of_a_child_are_returned(tmp_path: Path) -> None:
    """Both are returned even if the child ended before the caller waits."""
    refused = spawn(tmp_path, sede=1)

    out, err = refused.communicate(30)

    assert (1, "") == (refused.returncode, out)
    assert "sede: no such option" in err
    assert refused.poll() == 1
    refused.kill()  # harmless: its id may be another's by now
