"""Stand-in for the command queues of a datanode that gets no commands."""

from collections.abc import Iterable

from suture.wire.v1 import scm_pb2


class NoCommands:
    """Command queues that are always empty."""

    def queue_counts(self) -> Iterable[scm_pb2.QueueCount]:
        """Return no counts."""
        return ()
