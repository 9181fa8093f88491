"""Measures the response times and failures of datanodes, so that a client asks slow or failed
datanodes last.

Each datanode has a moving average of its response times. A datanode is slow if its average is far
above those of the other datanodes. Slowness and failures are forgotten after a while, because a
datanode that is not asked may have recovered. This is the replica selection of C3 (Suresh et al.,
NSDI 2015) without the lengths of queues, which Suture's datanodes do not send.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Final

WEIGHT: Final = 0.1  # weight of the last answer in the mean
SLOW_RATIO: Final = 3.0  # multiple of the median of all means that counts as slow
SLOW_S_MIN: Final = 0.1  # minimum excess over that median; less is noise on a busy host
SLOW_FOR_S: Final = 10.0  # after that, a slow datanode is tried again
FAULTY_FOR_S: Final = 60.0  # after that, a failure is forgotten
ANSWERS_KEPT: Final = 256  # number of recent response times, over all datanodes
ANSWERS_MIN: Final = 32  # answers before the first request is hedged
PATIENT_WITH: Final = 0.95  # quantile of the answers after which a request is hedged
PATIENCE_S_MIN: Final = 0.02  # smaller delays are noise on a busy host
HEDGES_PER_ANSWER: Final = 0.05  # limits the extra load on a cluster that is slow as a whole
HEDGES_MAX: Final = 10.0  # maximum number of hedges in reserve


class DatanodeStats:
    """Response times and failures of each datanode, from which replicas are ranked. Thread-safe."""

    def __init__(self, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._means: dict[str, tuple[float, float]] = {}  # mean, and time of its last update
        self._recent: deque[float] = deque(maxlen=ANSWERS_KEPT)
        self._usual_s = 0.0  # quantile of response times; 0.0 = unknown
        self._since_usual = 0
        self._hedges_left = HEDGES_MAX
        self._faults: dict[str, tuple[int, float]] = {}  # failed blocks, and time of the last

    def record_latency(self, datanode_id: str, duration_s: float) -> None:
        """Record the time in seconds from a request for a block until its first data arrived from
        the datanode."""
        now_s = self._monotonic_s()
        mean_s, noted_s = self._means.get(datanode_id, (duration_s, now_s))
        if now_s - noted_s > SLOW_FOR_S:
            mean_s = duration_s
        self._means[datanode_id] = (mean_s + WEIGHT * (duration_s - mean_s), now_s)
        self._hedges_left = min(self._hedges_left + HEDGES_PER_ANSWER, HEDGES_MAX)
        self._recent.append(duration_s)
        self._since_usual += 1
        if self._since_usual >= ANSWERS_MIN:
            self._since_usual = 0
            answers = sorted(self._recent)
            self._usual_s = answers[int(PATIENT_WITH * len(answers))]

    def record_hedge(self, datanode_id: str, waited_s: float) -> None:
        """Record that the datanode did not answer in `waited_s` seconds, so that another datanode
        is asked."""
        self._hedges_left -= 1
        self.record_latency(datanode_id, waited_s)

    def patience_s(self) -> float | None:
        """Return the number of seconds to wait for a datanode before another datanode is asked,
        too.

        Return None if there is no limit: if too few response times are known, or if another
        datanode was asked too often recently.
        """
        if not self._usual_s or self._hedges_left < 1:
            return None
        return max(self._usual_s, PATIENCE_S_MIN)

    def record_failure(self, datanode_id: str) -> None:
        """Record that a block could not be read completely from a datanode."""
        self._faults[datanode_id] = (self.fault_count(datanode_id) + 1, self._monotonic_s())

    def is_unremarkable(self) -> bool:
        """Return True if all datanodes have the same rank: none has failed, and no average is high
        enough to be slow."""
        if self._faults:
            return False
        for mean_s, _ in list(self._means.values()):  # noqa: SIM110 - each read asks; see ADR 0041
            if mean_s > SLOW_S_MIN:
                return False
        return True

    def rank(self, datanode_id: str) -> tuple[int, bool]:
        """Return the sort key of a datanode: the number of its recent failures, then True if it is
        slow. The datanode with the lowest key is asked first."""
        return self.fault_count(datanode_id), self.is_slow(datanode_id)

    def fault_count(self, datanode_id: str) -> int:
        """Return the number of recent blocks that could not be read completely from the
        datanode."""
        count, noted_s = self._faults.get(datanode_id, (0, 0.0))
        return count if count and self._monotonic_s() - noted_s <= FAULTY_FOR_S else 0

    def is_slow(self, datanode_id: str) -> bool:
        """Return True if a datanode recently took far longer than the others."""
        mean_s, noted_s = self._means.get(datanode_id, (0.0, 0.0))
        if mean_s <= SLOW_S_MIN or self._monotonic_s() - noted_s > SLOW_FOR_S:
            return False
        others = [mean for who, (mean, _) in list(self._means.items()) if who != datanode_id]
        if not others:
            return False
        usual_s = statistics.median(others)
        return mean_s > SLOW_RATIO * usual_s and mean_s - usual_s > SLOW_S_MIN
