"""Entries of the audit log about commands and closed containers.

- `sent`: a command was sent to a datanode, for the first time or again.
- `ended`: a command ended, because the datanode reported its outcome or the SCM dropped it.
- `closed_short`: a container was closed without its last commits.

An entry is written after its change is durable. It contains only Suture's own ids and words, and
the names of keys that lose a block. It contains no other data of clients, no address and no secret.
Only `write` does I/O.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from scm.state.entities import CommandOutcome, Container, OutcomeState, PendingCommand
from suture.wire.server.authorization import DONE, LISTED_COUNT_MAX, Audit

SENT: Final = "SENT"
WHO: Final = "scm"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An entry of the audit log."""

    action: str
    result: str
    facts: Mapping[str, object]


def sent(command: PendingCommand) -> AuditEntry:
    """Return the audit log entry for a command that is sent."""
    facts: dict[str, object] = {"why": command.why, "deadline_ms": command.deadline_ms}
    for name in ("target_id", "bcsid", "force", "keep_count", "op_state", "op_expiry_ms"):
        value = getattr(command, name)
        if value:
            facts[name] = value
    if command.shards:
        facts["shards"] = dict(command.shards)
    if command.transactions:
        ids = [transaction.transaction_id for transaction in command.transactions]
        facts["transaction_ids"] = ids[:LISTED_COUNT_MAX]
        facts["transaction_count"] = len(ids)
        facts["block_count"] = sum(len(t.local_ids) for t in command.transactions)
    return _entry_from_row(command, SENT, facts)


def ended(command: PendingCommand, outcome: CommandOutcome) -> AuditEntry:
    """Return the audit log entry for the outcome of a command."""
    if outcome.state is OutcomeState.EXECUTED:
        return _entry_from_row(command, outcome.code or DONE, {})
    facts = {"state": outcome.state.value, "message": outcome.message, "why": command.why}
    return _entry_from_row(command, outcome.code or outcome.state.value, facts)


def closed_short(
    before: Container, bcsid: int, keys: Sequence[str], *, reason: str, kept: str
) -> AuditEntry:
    """Return the audit log entry for a container that is closed without its last commits."""
    return AuditEntry(
        "close container",
        DONE,
        {
            "who": WHO,
            "container_id": before.container_id,
            "bcsid": bcsid,
            "given_up_to": before.sequence_id,
            "keys": list(keys[:LISTED_COUNT_MAX]),
            "key_count": len(keys),
            "kept": kept,
            "why": reason,
        },
    )


def write(audit: Audit, notes: Iterable[AuditEntry]) -> None:
    """Write entries to the audit log, in order."""
    for note in notes:
        audit.record(note.action, note.result, **note.facts)


def _entry_from_row(
    command: PendingCommand, result: str, facts: Mapping[str, object]
) -> AuditEntry:
    named: dict[str, object] = {
        "who": WHO,
        "command_id": command.command_id,
        "container_id": command.container_id,
        "datanode_id": command.datanode_id,
    }
    return AuditEntry(f"command {command.kind}", result, {**named, **facts})
