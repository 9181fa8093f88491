"""The request to stop, by real signals."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from suture.runtime.stop_request import STOP_SIGNALS, StopRequest


@pytest.fixture
def stop() -> Iterator[StopRequest]:
    """Return a request that listens to signals; restore the handlers."""
    before = {each: signal.getsignal(each) for each in (*STOP_SIGNALS, signal.SIGHUP)}
    wakeup = signal.set_wakeup_fd(-1)
    request = StopRequest()
    request.on_signals()
    yield request
    signal.set_wakeup_fd(wakeup)
    for each, handler in before.items():
        signal.signal(each, handler)


def run(code: str) -> "subprocess.CompletedProcess[str]":
    """Run Python code in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_asks_for_a_clean_stop(stop: StopRequest, number: signal.Signals) -> None:
    """SIGTERM and SIGINT set the request and end nothing."""
    signal.raise_signal(number)

    assert stop.is_set()
    assert stop.wait()


LINES_OF_WAIT = sorted({line for _, _, line in StopRequest.wait.__code__.co_lines() if line})


@pytest.mark.usefixtures("stop")
def test_no_line_of_the_wait_is_deaf() -> None:
    """A signal before any line of `wait` ends it, also after another's wake-up."""
    heard = [_signalled_at(line) for line in LINES_OF_WAIT]

    assert heard.count(True) >= 5, "the signals were not injected"


def _signalled_at(line: int) -> bool:
    """Wait, with a signal before `line`; return whether that line was reached."""
    hit = False

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal hit
        if frame.f_code is not StopRequest.wait.__code__:
            return None
        if event == "line" and frame.f_lineno == line and not hit:
            hit = True
            signal.raise_signal(signal.SIGTERM)
        return trace

    request = StopRequest()
    request.on_signals()
    os.write(request._writing, b"x")  # as of a signal that is not ours
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        request.wait(0.05)
    finally:
        sys.settrace(before)
    assert hit == request.is_set()
    return hit


def test_a_hang_up_asks_to_reload_and_not_to_stop(stop: StopRequest) -> None:
    """SIGHUP wakes the main thread once; the request to stop stays unset."""
    signal.raise_signal(signal.SIGHUP)

    assert not stop.wait_or_reload()
    assert not stop.is_set()
    signal.raise_signal(signal.SIGTERM)
    assert stop.wait_or_reload()


def test_a_hang_up_during_another_wait_is_remembered(stop: StopRequest) -> None:
    """A reload that was asked for while the process starts is done once it runs."""
    signal.raise_signal(signal.SIGHUP)
    assert not stop.wait(0.001)

    assert not stop.wait_or_reload()


def test_a_thread_can_ask_too() -> None:
    """A request of a dying thread wakes the main thread."""
    request = StopRequest()

    thread = threading.Thread(target=request.set)
    thread.start()

    assert request.wait(60.0)
    thread.join()


def test_the_wait_ends_with_its_time() -> None:
    """Without a request the answer is no."""
    assert not StopRequest().wait(0.001)


def test_asking_without_end_blocks_nobody() -> None:
    """The pipe fills; the request stands."""
    request = StopRequest()

    for _ in range(70_000):
        request.set()

    assert request.wait()


def test_the_second_signal_ends_the_process() -> None:
    """An operator who insists is obeyed."""
    result = run(
        "import signal\n"
        "from suture.runtime.stop_request import StopRequest\n"
        "StopRequest().on_signals()\n"
        "signal.raise_signal(signal.SIGTERM)\n"
        "print('still here', flush=True)\n"
        "signal.raise_signal(signal.SIGTERM)\n"
        "print('not reached', flush=True)\n"
    )

    assert "still here\n" == result.stdout
    assert -signal.SIGTERM == result.returncode


def test_an_ignored_signal_stays_ignored() -> None:
    """Started by nohup, a hang-up or interrupt that the parent ignored ends nothing."""
    result = run(
        "import signal\n"
        "from suture.runtime.stop_request import StopRequest\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "stop = StopRequest()\n"
        "stop.on_signals()\n"
        "signal.raise_signal(signal.SIGINT)\n"
        "print(stop.is_set(), flush=True)\n"
    )

    assert "False\n" == result.stdout
