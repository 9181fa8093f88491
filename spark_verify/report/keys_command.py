"""Builds the command with which the report's reader lists the keys in containers at risk."""

from collections.abc import Sequence
from typing import Final

KEYS_ASKED_MAX: Final = 20
"""Maximum number of containers in that command."""


def keys_command(container_ids: Sequence[int]) -> str:
    """Return the command that lists the keys in some containers, because a snapshot has only the
    first keys, and none of an Ozone cluster.
    """
    shown = container_ids[:KEYS_ASKED_MAX]
    return " ".join(["suture ls", *(f"--container {number}" for number in shown)]) if shown else ""
