"""How much memory a process may have, and how much of it may be in flight."""

import threading
from pathlib import Path

import pytest

from suture.errors import Code, UnavailableError
from suture.runtime import memory
from suture.runtime.memory import MemoryBudget, in_flight_bytes, limit_bytes
from tests.support.waiting import wait_until

MIB = 1024**2
MACHINE = "MemTotal:        8388608 kB\nMemFree:  1 kB\n"


def system(root: Path, groups: str, **limits: str) -> Path:
    """Write what a kernel says below `root`; `limits` by file, with __ for each slash."""
    files = {"proc/meminfo": MACHINE, "proc/self/cgroup": groups}
    files |= {f"sys/fs/cgroup/{name.replace('__', '/')}": text for name, text in limits.items()}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


class TestLimit:
    """What a process may have."""

    def test_without_a_group_it_is_the_machines(self, tmp_path: Path) -> None:
        """
        A kernel without control groups, or a group without a limit.
        """
        assert 8192 * MIB == limit_bytes(system(tmp_path, ""))
        path = system(tmp_path, "0::/a\n", **{"a__memory.max": "max\n"})
        assert 8192 * MIB == limit_bytes(path)

    def test_the_least_of_all_groups_counts(self, tmp_path: Path) -> None:
        """
        A unit has more than its slice: the slice is the limit.
        """
        limits = {"a__b__memory.max": f"{4096 * MIB}\n", "a__memory.max": f"{512 * MIB}\n"}

        assert 512 * MIB == limit_bytes(system(tmp_path, "0::/a/b\n", **limits))

    def test_the_first_version_of_groups_counts_too(self, tmp_path: Path) -> None:
        """
        Within a container the path of the group is not there, but its root is.
        """
        groups = "9:cpu:/x\n4:memory:/docker/1\n"
        limits = {"memory__memory.limit_in_bytes": f"{256 * MIB}\n"}

        assert 256 * MIB == limit_bytes(system(tmp_path, groups, **limits))

    @pytest.mark.parametrize(
        ("configured", "memory_bytes", "expected"),
        [
            (0, 512 * MIB, 192 * MIB),
            (0, 256 * MIB, 128 * MIB),
            (0, 8192 * MIB, 4032 * MIB),
            (7 * MIB, 8192 * MIB, 7 * MIB),
        ],
    )
    def test_half_of_the_rest_may_be_in_flight(
        self, configured: int, memory_bytes: int, expected: int
    ) -> None:
        """The operator may configure another size."""
        assert expected == in_flight_bytes(configured, memory_bytes)


class TestBudget:
    """Bytes that are taken and given back."""

    def test_memory_requests_that_do_not_fit_are_served_in_order(self) -> None:
        """Small requests do not overtake a large one for ever."""
        budget = MemoryBudget(10)
        order: list[int] = []
        threads = []

        def take(size_bytes: int) -> None:
            with budget.hold(size_bytes):
                order.append(size_bytes)

        with budget.hold(6):
            for waiting, size in enumerate((8, 3, 2), start=1):
                threads.append(threading.Thread(target=take, args=(size,)))
                threads[-1].start()
                wait_until(lambda waiting=waiting: len(budget._waiting) == waiting)  # type: ignore[misc]
            assert [] == order
        for thread in threads:
            thread.join(10.0)

        assert 8 == order[0]
        assert 0 == budget.used_bytes

    def test_an_owner_with_much_gives_way_to_one_with_less(self) -> None:
        """
        A caller that opens very many streams does not keep others from the next bytes.
        """
        budget = MemoryBudget(10)
        order: list[str] = []
        threads = []

        def take(owner: str) -> None:
            with budget.hold(5, owner=owner):
                order.append(owner)

        with budget.hold(5, owner="third"):
            with budget.hold(5, owner="many"):
                for waiting, owner in enumerate(("many", "many", "few"), start=1):
                    threads.append(threading.Thread(target=take, args=(owner,)))
                    threads[-1].start()
                    wait_until(lambda waiting=waiting: len(budget._waiting) == waiting)  # type: ignore[misc]
            for thread in threads:
                thread.join(10.0)

        assert ["few", "many", "many"] == order

    def test_whoever_waits_too_long_is_told(self) -> None:
        """The waiter gets BUSY and keeps no memory, and neither does a cancelled request."""
        budget = MemoryBudget(10)
        with budget.hold(10):
            for wish in ({"timeout_s": 0.0}, {"stop": lambda: True}):
                with pytest.raises(UnavailableError) as refusal, budget.hold(1, **wish):  # type: ignore[arg-type]
                    pass
                assert Code.BUSY is refusal.value.code

        with budget.hold(10, timeout_s=0.0):
            assert 10 == budget.used_bytes

    def test_more_than_there_is_is_all_there_is(self) -> None:
        """
        The largest call can be made on the smallest host, alone.
        """
        budget = MemoryBudget(10)

        with budget.hold(1_000, timeout_s=0.0):
            assert 10 == budget.used_bytes

    def test_memory_is_tried_only_if_it_is_free_and_nobody_waits(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A call that does not wait takes nothing that a waiting call needs. A release wakes the
        waiting call at once."""
        monkeypatch.setattr(memory, "LOOK_S", 60.0)
        budget = MemoryBudget(10)
        assert budget.try_acquire(6, "first")
        assert not budget.try_acquire(5, "second")

        def wait() -> None:
            budget.acquire(8, "third", timeout_s=30.0, stop=lambda: False, while_short=lambda: None)

        waiter = threading.Thread(target=wait)
        waiter.start()
        wait_until(lambda: len(budget._waiting) == 1)
        assert not budget.try_acquire(1, "second")
        budget.release(6, "first")
        waiter.join(10.0)
        assert not waiter.is_alive()

        assert budget.try_acquire(2, "second")
        assert 10 == budget.used_bytes
        for size_bytes, owner in ((2, "second"), (8, "third")):
            budget.release(size_bytes, owner)
        assert budget.try_acquire(1_000, "all")
        assert 10 == budget.used_bytes
