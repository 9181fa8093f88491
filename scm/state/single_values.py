"""What a state has once: format, cluster id, the counters of ids, and whether it was restored.

While the row of a restore is there the control plane trusts nothing of the state that may have
changed since the backup (`scm.administration.after_restore`): it starts cold, and its safe mode
ends only with the recovery.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from scm.state import records

DATABASE: Final = b"meta"
RESTORED: Final = b"restored"  # the key of its row, until it is recovered
RECOVERED: Final = b"recovered"  # the same afterwards
COUNTERS: Final = (
    "next_container_id",
    "next_local_id",
    "next_command_id",
    "next_transaction_id",
    "term",
)

CONTAINER_GAP: Final = 10_000
"""Container ids left out by a restore, and again by its recovery. Few, because who goes through all
containers goes through all ids; enough, because nothing is allocated before the datanodes have
named what they have: these are for containers of which nobody who answers has a replica."""

_US: Final = 1_000  # in a millisecond


@dataclass(frozen=True, slots=True)
class SingleValues:
    """The values that a state cannot do without."""

    format_version: int
    cluster_id: str
    counters: dict[str, int]


def read(get: Callable[[bytes], Any]) -> SingleValues:
    """Read them, by their keys. Raises DamagedRow, also of a version that is not understood."""

    def value(name: str) -> Any:
        row = get(name.encode())
        if row is None:
            raise records.DamagedRow(f"{name} is missing")
        return records.unpack(bytes(row), 1)[0]

    version = value("format_version")
    if version != records.FORMAT_VERSION:
        raise records.DamagedRow(
            f"format version {version}, this program reads {records.FORMAT_VERSION}"
        )
    counters = {name: int(value(name)) for name in COUNTERS}
    return SingleValues(version, str(value("cluster_id")), counters)


@dataclass(frozen=True, slots=True)
class Restored:
    """Which backup the state was made of. `unfinished` are containers that took writes then."""

    taken_at_ms: int
    restored_at_ms: int
    first_new_container_id: int  # no container from here on is known to the backup
    unfinished: tuple[int, ...]
    end_container_id: int = 0  # containers from here on were made after the recovery; 0: none yet


def restored_row(restored: Restored) -> bytes:
    """Encode it."""
    return records.pack(
        [
            restored.taken_at_ms,
            restored.restored_at_ms,
            restored.first_new_container_id,
            restored.unfinished,
            restored.end_container_id,
        ]
    )


def restored_from(data: bytes) -> Restored:
    """Decode it. Raises DamagedRow."""
    taken_at_ms, restored_at_ms, first_new_id, unfinished, end_id = records.unpack(data, 5)
    return Restored(taken_at_ms, restored_at_ms, first_new_id, tuple(unfinished), end_id)


def counters_anew(counters: dict[str, int], now_ms: int) -> dict[str, int]:
    """Return the counters of a restored state: ahead of every number that was given out since.

    The clock says how far. Counters begin at 1, and no control plane gives out a million blocks,
    transactions or commands a second, nor starts once a second: so each counter is behind the
    clock in its unit, whatever happened since the backup, and however often it is restored.
    """
    least = {
        "next_container_id": counters["next_container_id"] + CONTAINER_GAP,
        "next_local_id": now_ms * _US,
        "next_command_id": now_ms * _US,
        "next_transaction_id": now_ms * _US,
        "term": now_ms // 1_000,
    }
    return {name: max(number, least[name]) for name, number in counters.items()}
