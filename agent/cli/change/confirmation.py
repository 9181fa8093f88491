"""Preview, confirmation and submission of requests that change the cluster."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import typer

from suture.config.bounded_read import ANSWER_BYTES_MAX, read_file_bounded
from suture.errors import Code, RefusedError
from suture.observe.json_schema import JSON_SCHEMA
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.transient_refusals import until_decided
from suture.terminal.typer_options import flag, option

YesFlag = Annotated[bool, flag("Skip the confirmation.", "--yes")]
DryRunFlag = Annotated[bool, flag("Print the changes without making them.", "--dry-run")]
ExpectOption = Annotated[
    Path | None,
    option("FILE", "Stop if containers changed since the dry run in FILE.", "--expect"),
]

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Order(Generic[Answer]):
    """A request that changes the cluster, and that can be made as a dry run.

    `show` prints the response and returns the exit code. `preview` does the same for the response
    to a dry run; if it is None, `show` is used. `worlds` returns the fingerprints of the containers
    in the response to a dry run. The control plane rejects the request for containers that have
    changed after the dry run.
    """

    submit: Callable[[Any], Answer]
    request: Any  # a message with the field `dry_run`
    question: str
    show: Callable[..., int]
    preview: Callable[..., int] | None = None
    worlds: Callable[[Answer], list[int]] | None = None

    def confirm_and_submit(self, *, dry_run: bool, yes: bool) -> int:
        """Show the effect of the request, ask for confirmation, and submit the request.

        If `dry_run` is True, only show the effect. If `yes` is True, submit the request without a
        preview. Otherwise, the user must confirm. Raise RefusedError if this is not possible
        because stdin is not a terminal or the output is JSON.
        """
        if dry_run or not yes:
            self.request.dry_run = True
            trial = until_decided(self.submit, self.request)
            preview = self.preview or self.show
            if dry_run:
                return preview(trial)
            require_confirmation()
            is_refused = preview(trial) == ExitCode.FAILED
            if is_refused or not typer.confirm(self.question, err=True):
                return ExitCode.FAILED
            if self.worlds is not None:
                self.request.worlds[:] = self.worlds(trial)
        self.request.dry_run = False
        return self.show(until_decided(self.submit, self.request))


def is_confirmed(question: str, *, yes: bool) -> bool:
    """Return True if `yes` is True, or if the user confirms `question`."""
    if yes:
        return True
    require_confirmation()
    return typer.confirm(question, err=True)


def require_confirmation() -> None:
    """Raise RefusedError if the user cannot be asked for confirmation.

    This is the case if stdin is not a terminal or the output is JSON.
    """
    if is_json() or not sys.stdin.isatty():
        raise RefusedError(
            Code.MALFORMED_REQUEST,
            "refusing to change data without confirmation: stdin is not a terminal",
            hint="--dry-run shows the changes, --yes confirms them",
        )


def read_fingerprints(path: Path | None, ids: list[int]) -> list[int]:
    """Return the fingerprints of the containers `ids` from the file `path`, the output of a dry
    run.

    A fingerprint changes if the state of the container changes. Return an empty list if `path` is
    None. Raise RefusedError if the file is invalid.
    """
    if path is None:
        return []
    try:
        shown = {int(str(d["container_id"])): int(str(d["world"])) for d in read_decisions(path)}
        return [shown[container_id] for container_id in ids]
    except (ValueError, TypeError, KeyError) as error:
        raise RefusedError(
            Code.MALFORMED_REQUEST,
            f"cannot read {path} as a dry run of these containers: {type(error).__name__} {error}",
            hint="give the output of the same command with --dry-run --json",
        ) from error


def read_decisions(path: Path) -> list[dict[str, object]]:
    """Return the decisions in the file `path`, the JSON output of a dry run.

    Raise ValueError, TypeError or KeyError if the file is not such a document.
    """
    document = json.loads(read_file_bounded(path, bytes_max=ANSWER_BYTES_MAX))
    if document["schema"] != JSON_SCHEMA:
        raise ValueError(f"schema {document['schema']!r}: expected {JSON_SCHEMA}")
    decisions: list[dict[str, object]] = document["decisions"]
    return decisions
