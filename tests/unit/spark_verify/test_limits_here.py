"""How much of its machine a process may use, as the kernel's files say it."""

import os
from pathlib import Path

import pytest

from spark_verify import session
from suture.runtime.memory import limit_bytes

GIB = 1 << 30
CORES = len(os.sched_getaffinity(0))
MEMORY_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
NO_LIMIT_V1 = 9223372036854771712  # of version 1, which has no word for it


def machine(root: Path, own: str, files: dict[str, object]) -> Path:
    """Lay out what the kernel says: of which groups the process is, and files of the groups."""
    told = {"proc/meminfo": f"MemTotal: {MEMORY_BYTES // 1024} kB", "proc/self/cgroup": own}
    told |= {f"sys/fs/cgroup/{name}": of for name, of in files.items()}
    for name, content in told.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def in_version_1(memory: str, cpu: str, *, limit: object, quota: object) -> dict[str, object]:
    """Return the files of version 1 for groups of these directories."""
    return {
        f"{memory}/memory.limit_in_bytes": limit,
        f"{cpu}/cpu.cfs_quota_us": quota,
        f"{cpu}/cpu.cfs_period_us": 100_000,
    }


OWN_1 = "9:cpu,cpuacct:/docker/c1\n4:memory:/docker/c1\n1:name=systemd:/docker/c1\n0::/docker/c1"
LIMITED: dict[str, tuple[str, dict[str, object]]] = {
    "version 2, in a container": ("0::/", {"cpu.max": "100000 100000", "memory.max": 2 * GIB}),
    "version 2, on the host": (
        "0::/system.slice/v.service",
        {
            "system.slice/v.service/cpu.max": "50000 100000",
            "system.slice/v.service/memory.max": 2 * GIB,
        },
    ),
    "version 2, by a group above": (
        "0::/pod/c1",
        {
            "pod/cpu.max": "100000 100000",
            "pod/memory.max": 2 * GIB,
            "pod/c1/cpu.max": "max 100000",
            "pod/c1/memory.max": "max",
        },
    ),
    "version 2, where a service is slowed": (
        "0::/s",
        {"s/cpu.max": "100000 100000", "s/memory.max": "max", "s/memory.high": 2 * GIB},
    ),
    "version 1, on the host": (
        OWN_1,
        in_version_1("memory/docker/c1", "cpu,cpuacct/docker/c1", limit=2 * GIB, quota=100_000),
    ),
    "version 1, in a container that sees its own group only": (
        OWN_1,
        in_version_1("memory", "cpu", limit=2 * GIB, quota=100_000),
    ),
}
FREE: dict[str, tuple[str, dict[str, object]]] = {
    "no groups at all": ("", {}),
    "version 2": ("0::/", {"cpu.max": "max 100000", "memory.max": "max"}),
    "version 1": (OWN_1, in_version_1("memory", "cpu", limit=NO_LIMIT_V1, quota=-1)),
    "more than there is": (
        "0::/",
        {"cpu.max": f"{(CORES + 1) * 100_000} 100000", "memory.max": MEMORY_BYTES * 2},
    ),
    "files that say nothing": ("0::/", {"cpu.max": "", "memory.max": "?"}),
    "another kernel's words": ("strange", {}),
}


@pytest.mark.parametrize("case", LIMITED)
def test_a_container_of_one_core_and_two_gibibytes_has_no_more(tmp_path: Path, case: str) -> None:
    """
    On a host of 64 cores it would start 64 processes of a gigabyte, and be killed for it.
    """
    root = machine(tmp_path, *LIMITED[case])

    assert limit_bytes(root) == 2 * GIB


@pytest.mark.parametrize("case", FREE)
def test_process_without_limits_has_the_whole_machine(tmp_path: Path, case: str) -> None:
    """The memory is that of the machine, whatever the kernel's files contain."""
    root = machine(tmp_path, *FREE[case])

    assert MEMORY_BYTES == limit_bytes(root)


@pytest.mark.parametrize(
    ("memory_mib", "row_count", "heap_mib"),
    [
        (512, 10**8, 1024),
        (2048, 10**8, 1024),
        (6000, 10**8, 2000),
        (64 * 1024, 10**8, 8192),
        (64 * 1024, 1, 1024),
        (64 * 1024, 2**23, 2048),
    ],
)
def test_heap_of_java_grows_with_the_rows_to_a_third_of_the_memory(
    monkeypatch: pytest.MonkeyPatch, memory_mib: int, row_count: int, heap_mib: int
) -> None:
    """The kernel kills a JVM whose heap is larger than its container. A JVM with more heap than it
    needs fills all of it.
    """
    monkeypatch.setattr(session, "limit_bytes", lambda: memory_mib << 20)

    assert f"{heap_mib}m" == session._options(row_count, "")["spark.driver.memory"]
