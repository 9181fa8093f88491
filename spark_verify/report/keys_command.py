"""The command that the report names for the keys in containers at risk."""

from collections.abc import Sequence
from typing import Final

KEYS_ASKED_MAX: Final = 20
"""Containers in the command that asks for their keys."""


def keys_command(container_ids: Sequence[int]) -> str:
    """Return the command that names the keys in some containers: a snapshot has but the first of
    them, and those of an Ozone cluster have none."""
    shown = container_ids[:KEYS_ASKED_MAX]
    return " ".join(["suture ls", *(f"--container {number}" for number in shown)]) if shown else ""
