"""A datanode that gets no commands."""

from collections.abc import Iterable

from suture.wire.v1 import scm_pb2


class NoCommands:
    """Pools without a command."""

    def queue_counts(self) -> Iterable[scm_pb2.QueueCount]:
        """Count none."""
        return ()
