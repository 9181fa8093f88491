"""Several SCMs hear the same of this datanode, and the one with the highest term leads.

An SCM that leads no more may not know it yet. Its commands carry its term and are refused as stale;
what it says about our replicas is passed over.
"""

import threading


class Terms:
    """The highest term that any SCM has shown."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._highest = 0

    def leads(self, term: int) -> bool:
        """Note a term; return whether who has it leads, as far as we know."""
        with self._lock:
            self._highest = max(self._highest, term)
            return term >= self._highest
