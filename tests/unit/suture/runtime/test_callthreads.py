"""The threads of calls: work is done by no more threads than there may be, and its end is told."""

import threading
from typing import Any

import pytest

from suture.runtime.call_thread_pool import CallCompletion, CallThreadPool
from tests.support.heard import logged

WAIT_S = 30.0


def told(ending: Any) -> threading.Event:
    """Return what is set at the end of a call."""
    event = threading.Event()
    ending.add_done_callback(lambda _: event.set())
    return event


class TestEnding:
    def test_a_callback_is_called_once_whenever_it_is_added(self) -> None:
        """
        Before the end it waits for it; after the end it is called at once.
        """
        ending, seen = CallCompletion(), []
        ending.add_done_callback(seen.append)
        assert not seen
        ending.come()
        ending.come()
        assert [ending] == seen
        ending.add_done_callback(seen.append)
        assert [ending, ending] == seen

    def test_an_end_that_comes_while_a_callback_is_added_calls_it_once(self) -> None:
        """Both threads run at the same time, a thousand times."""
        with CallThreadPool(2, 2) as threads:
            for _ in range(1000):
                called: list[Any] = []
                told_it = threading.Event()

                def note(
                    ending: Any, called: list[Any] = called, done: threading.Event = told_it
                ) -> None:
                    called.append(ending)
                    done.set()

                ending = threads.submit(lambda: None)
                ending.add_done_callback(note)
                assert told_it.wait(WAIT_S)
                assert [ending] == called


class TestCallThreads:
    def test_admitted_calls_run_in_at_most_the_configured_threads(self) -> None:
        """Four calls run at once, and a fifth waits for one of them. Later calls create no
        further thread.
        """
        with CallThreadPool(2, 4) as threads:
            running, may_end = threading.Semaphore(0), threading.Event()
            names: list[str] = []

            def work() -> None:
                names.append(threading.current_thread().name)
                running.release()
                may_end.wait(WAIT_S)

            ends = [told(threads.submit(work)) for _ in range(5)]
            for _ in range(4):
                assert running.acquire(timeout=WAIT_S)
            assert not running.acquire(blocking=False)
            assert 4 == len(set(names))
            may_end.set()
            assert all(end.wait(WAIT_S) for end in ends)
            ends = [told(threads.submit(work)) for _ in range(20)]
            assert all(end.wait(WAIT_S) for end in ends)
            assert 4 == len(set(names))

    def test_sequential_calls_need_one_thread(self) -> None:
        """Threads are created on demand, so a server with few calls has few."""
        names: set[str] = set()
        with CallThreadPool(8, 100) as threads:
            for _ in range(50):
                end = told(threads.submit(lambda: names.add(threading.current_thread().name)))
                assert end.wait(WAIT_S)
        assert 1 == len(names)

    def test_call_at_the_end_of_a_call_reuses_its_thread(self) -> None:
        """The thread counts as free before its caller is notified."""
        second = threading.Event()
        with CallThreadPool(2, 4) as threads:
            begun, may_end = threading.Event(), threading.Event()

            def work() -> None:
                begun.set()
                may_end.wait(WAIT_S)

            first = threads.submit(work)
            assert begun.wait(WAIT_S)
            first.add_done_callback(lambda _: threads.submit(second.set))
            may_end.set()
            assert second.wait(WAIT_S)
            assert 1 == len(threads.threads)

    def test_calls_that_come_while_all_threads_work_get_new_ones(self) -> None:
        """
        Work that waits in the queue is not taken for a thread that is free.
        """
        with CallThreadPool(2, 64) as threads:
            for count in range(1, 33):
                gate = threading.Barrier(count + 1)
                ends = [told(threads.submit(gate.wait, WAIT_S)) for _ in range(count)]
                gate.wait(WAIT_S)  # all of them are here at once, or it breaks
                assert all(end.wait(WAIT_S) for end in ends)

    def test_a_call_that_raises_takes_no_thread_with_it(self) -> None:
        """The error is logged, the call ends, and the thread takes the next one."""

        def fail() -> None:
            raise KeyError("a fault of ours")

        with logged() as entries, CallThreadPool(1, 1) as threads:
            assert told(threads.submit(fail)).wait(WAIT_S)
            assert told(threads.submit(lambda: None)).wait(WAIT_S)
        assert ["rpc_thread_failed"] == [entry["event"] for entry in entries]

    def test_after_shutdown_nothing_is_taken_and_no_thread_is_left(self) -> None:
        """Running work ends first. Work that has not started ends without running, if it is
        dropped.
        """
        threads = CallThreadPool(1, 1)
        begun, may_end, ran = threading.Event(), threading.Event(), threading.Event()

        def work() -> None:
            begun.set()
            may_end.wait(WAIT_S)

        first = told(threads.submit(work))
        dropped = told(threads.submit(ran.set))
        assert begun.wait(WAIT_S)
        threads.shutdown(wait=False, cancel_futures=True)
        assert dropped.wait(WAIT_S)
        assert not first.is_set()
        with pytest.raises(RuntimeError, match="shutdown"):
            threads.submit(work)
        may_end.set()
        threads.shutdown(wait=True)
        assert first.is_set()
        assert not ran.is_set()
        assert not [one for one in threads.threads if one.is_alive()]

    def test_without_a_new_thread_those_that_are_there_do_the_work(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If the host has no thread left, calls wait for a running one to finish, or for the
        next that can be created. Later there is no thread too few.
        """

        def refuse(_self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with CallThreadPool(2, 4) as threads:
            gate = threading.Event()
            busy = told(threads.submit(gate.wait, WAIT_S))
            with monkeypatch.context() as patched:
                patched.setattr(threading.Thread, "start", refuse)
                late = told(threads.submit(lambda: None))
            gate.set()
            assert busy.wait(WAIT_S)
            assert late.wait(WAIT_S)
        with CallThreadPool(2, 4) as threads:
            with monkeypatch.context() as patched:
                patched.setattr(threading.Thread, "start", refuse)
                late = told(threads.submit(lambda: None))
            gate = threading.Barrier(5)
            ends = [told(threads.submit(gate.wait, WAIT_S)) for _ in range(4)]
            gate.wait(WAIT_S)
            assert all(end.wait(WAIT_S) for end in (late, *ends))
