"""How datanodes behave, as one client sees it: who failed or is slow is asked after the others.

The mean time of a datanode follows its answers; whose mean is far above that of the others is slow.
Both are forgotten after a while, because nobody asks it and it might be well again (the replica
selection of C3, Suresh et al., NSDI 2015, without its queue lengths, which our datanodes do not
send).
"""

import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Final

WEIGHT: Final = 0.1  # of the last answer in a mean
SLOW_RATIO: Final = 3.0  # of the median of all means
SLOW_S_MIN: Final = 0.1  # above that median: less is the mood of a busy host
SLOW_FOR_S: Final = 10.0  # after which a datanode that was slow is tried again
FAULTY_FOR_S: Final = 60.0  # after which one that failed is asked as if it had not
ANSWERS_KEPT: Final = 256  # of all datanodes: what a usual answer takes is known by them
ANSWERS_MIN: Final = 32  # before that nobody is hurried
PATIENT_WITH: Final = 0.95  # of the answers
PATIENCE_S_MIN: Final = 0.02  # less is the mood of a busy host
HEDGES_PER_ANSWER: Final = 0.05  # so a cluster that is slow as a whole does not get more to do
HEDGES_MAX: Final = 10.0  # saved up


class Conduct:
    """What is remembered of datanodes. Threads may note at the same time."""

    def __init__(self, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._means: dict[str, tuple[float, float]] = {}  # mean, and when it was last noted
        self._recent: deque[float] = deque(maxlen=ANSWERS_KEPT)
        self._usual_s = 0.0  # what nearly all answers take; 0.0: that is not known
        self._since_usual = 0
        self._hedges_left = HEDGES_MAX
        self._faults: dict[str, tuple[int, float]] = {}  # how many blocks, and when the last was

    def answered(self, datanode_id: str, duration_s: float) -> None:
        """Note that the first data of a block came after so many seconds."""
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

    def hedged(self, datanode_id: str, waited_s: float) -> None:
        """Note that another datanode is asked because this one let us wait for so long."""
        self._hedges_left -= 1
        self.answered(datanode_id, waited_s)

    def patience_s(self) -> float | None:
        """Return how long to wait before another is asked; None: as long as it takes, because
        nothing is known yet, or too many were asked twice of late."""
        if not self._usual_s or self._hedges_left < 1:
            return None
        return max(self._usual_s, PATIENCE_S_MIN)

    def failed(self, datanode_id: str) -> None:
        """Note that something of a block was not to be had."""
        self._faults[datanode_id] = (self.fault_count(datanode_id) + 1, self._monotonic_s())

    def is_unremarkable(self) -> bool:
        """Whether nobody failed, and nobody's mean is such that it could be slow: all ranks are the
        same then."""
        if self._faults:
            return False
        for mean_s, _ in list(self._means.values()):  # noqa: SIM110 - each read asks; see ADR 0041
            if mean_s > SLOW_S_MIN:
                return False
        return True

    def rank(self, datanode_id: str) -> tuple[int, bool]:
        """Return what to sort datanodes by: the lower, the earlier it is asked."""
        return self.fault_count(datanode_id), self.is_slow(datanode_id)

    def fault_count(self, datanode_id: str) -> int:
        """Return how many blocks were not whole there, as far as that is remembered."""
        count, noted_s = self._faults.get(datanode_id, (0, 0.0))
        return count if count and self._monotonic_s() - noted_s <= FAULTY_FOR_S else 0

    def is_slow(self, datanode_id: str) -> bool:
        """Whether a datanode takes far longer than the others, as far as that is remembered."""
        mean_s, noted_s = self._means.get(datanode_id, (0.0, 0.0))
        if mean_s <= SLOW_S_MIN or self._monotonic_s() - noted_s > SLOW_FOR_S:
            return False
        others = [mean for who, (mean, _) in list(self._means.items()) if who != datanode_id]
        if not others:
            return False
        usual_s = statistics.median(others)
        return mean_s > SLOW_RATIO * usual_s and mean_s - usual_s > SLOW_S_MIN
