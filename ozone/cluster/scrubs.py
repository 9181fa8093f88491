"""Reads the scrub results of all hosts for the replicas of a snapshot.

`suture ozone scrub --json` prints one document per host. The results are kept in columns, with
about 40 bytes per replica, because a cluster has tens of millions of replicas.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ozone.scrub.comparison import Agreement
from ozone.scrub.result import ScrubStatus
from suture.errors import Code, RefusedError

NO_ROOT: Final = -1
ROOT_DIGITS_BASE: Final = 16
_ROW: Final = np.dtype(
    [
        ("container", np.int64),
        ("datanode", np.int32),
        ("volume", np.int32),
        ("read_at_ms", np.int64),
        ("damage", np.int32),
        ("root", np.int64),
        ("settled", np.int64),
    ]
)
_SETTLED: Final = {
    ScrubStatus.WHOLE.value: (Agreement.EQUAL.value, Agreement.EXPLAINED.value),
    ScrubStatus.DAMAGED.value: (
        Agreement.EQUAL.value,
        Agreement.EXPLAINED.value,
        Agreement.DAMAGE.value,
    ),
}
"""For each status of a scrubbed container, the results of the tree comparison with which the
settled root is known."""


@dataclass(frozen=True, slots=True)
class ScrubbedReplica:
    """The scrub results of one replica.

    `root` is the root of Ozone's tree at the time of the scrub. `settled_root` is the root that the
    scrub computed from the rows and the data of the replica, independent of Ozone's tree. It is
    None if the scrub did not read every byte.
    """

    volume_id: str
    read_at_ms: int
    damage_count: int
    root: int | None
    settled_root: int | None


@dataclass(frozen=True, slots=True)
class ScrubFindings:
    """The scrub results of replicas, sorted by container, datanode and time."""

    rows: NDArray[Any]
    names: tuple[str, ...]
    """Ids of datanodes and volumes. `rows` contains indexes into this tuple."""

    def between(self, first_id: int, last_id: int) -> dict[tuple[int, str], ScrubbedReplica]:
        """Return the newest result of each replica of the containers from `first_id` to `last_id`.

        The key is (container id, datanode id).
        """
        found = {}
        containers = self.rows["container"]
        begin = np.searchsorted(containers, first_id)
        end = np.searchsorted(containers, last_id, side="right")
        for row in self.rows[begin:end].tolist():
            container_id, datanode, volume, read_at_ms, damage, root, settled = row
            found[container_id, self.names[datanode]] = ScrubbedReplica(
                self.names[volume],
                read_at_ms,
                damage,
                None if root == NO_ROOT else root,
                None if settled == NO_ROOT else settled,
            )  # a later result replaces an earlier one
        return found


NOTHING_SCRUBBED: Final = ScrubFindings(np.zeros(0, dtype=_ROW), ())


def read_scrubs(paths: Iterable[Path]) -> ScrubFindings:
    """Return the scrub results in the documents of all hosts.

    Raise RefusedError if a document is invalid.
    """
    numbers: dict[str, int] = {}
    parts = [NOTHING_SCRUBBED.rows]
    for path in paths:
        try:
            document = json.loads(path.read_bytes())
            found = [row for volume in document["volumes"] for row in _rows(volume, numbers)]
            parts.append(np.array(found, dtype=_ROW))
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise RefusedError(
                Code.MALFORMED_REQUEST,
                f"cannot read {path} as the JSON of a scrub: {type(error).__name__}: {error}",
                hint="give the output of suture ozone scrub --json",
            ) from error
    rows = np.concatenate(parts)
    order = np.lexsort([rows["read_at_ms"], rows["datanode"], rows["container"]])
    return ScrubFindings(rows[order], tuple(numbers))


def _rows(volume: dict[str, Any], numbers: dict[str, int]) -> Iterable[tuple[int, ...]]:
    datanode = numbers.setdefault(str(volume["datanode_id"]), len(numbers))
    storage = numbers.setdefault(str(volume["storage_id"]), len(numbers))
    for found in volume["containers"]:
        if not found["read_at_ms"]:
            continue  # skipped or refused, so nothing is known
        tree = found["tree"]
        is_settled = tree["agreement"] in _SETTLED.get(found["status"], ())
        yield (
            found["container_id"],
            datanode,
            storage,
            found["read_at_ms"],
            sum(finding["is_damage"] for finding in found["findings"]),
            _root(tree["root"]),
            _root(tree["settled_root"]) if is_settled else NO_ROOT,
        )


def _root(text: str | None) -> int:
    return NO_ROOT if text is None else int(text, ROOT_DIGITS_BASE)
