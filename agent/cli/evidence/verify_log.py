"""Command `verify-log`: checks the hash chains of verification logs, and reports the first gap."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from agent.cli.evidence.anchors import show_anchors
from agent.store.verification_log.chain import ChainCheck, EntryKind, Head, check, entries
from agent.store.verification_log.log_reader import Files, read_log
from suture.errors import Code, RefusedError
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.credentials import connect
from suture.terminal.output import pluralize, print_json, print_line
from suture.terminal.typer_options import argument, flag, option
from suture.wire.v1 import scm_pb2

ANCHOR_CHECKSUM: Final = re.compile("[0-9a-f]{64}")

LogsArgument = Annotated[
    list[Path] | None, argument("DIR", "Volume directories, or copies of logs.")
]
AnchorOption = Annotated[
    list[str] | None, option("N:HASH", "Check that the log still contains this earlier head.")
]


def verify_log(
    volumes: LogsArgument = None,
    anchor: AnchorOption = None,
    from_scm: Annotated[
        bool, flag("Compare the logs with the heads that the SCM stores.", "--from-scm")
    ] = False,
    list_anchors: Annotated[
        bool, flag("List the log heads that the SCM stores, and exit.", "--list-anchors")
    ] = False,
    datanode: Annotated[
        str, option("ID|HOST:PORT", "List only log heads of this datanode; default: all.")
    ] = "",
) -> int:
    """Verify the hash chain of verification logs.

    The first gap is reported. Records after a gap are not trusted.

    Exit codes:
        2: a log was altered

    Example:
        suture verify-log /data/1
    """
    if bool(volumes) == list_anchors or (datanode and not list_anchors):
        raise typer.BadParameter("expected either DIR or --list-anchors", param_hint="DIR")
    if not volumes:
        return show_anchors(datanode)
    anchors = named_anchors(anchor or (), volumes)
    checked = {}
    for path in volumes:
        files = read_log(path)
        kept = anchors_of(path, files) if from_scm else []
        checked[str(path)] = check(files, [*anchors, *kept])
    if is_json():
        print_json({"logs": [{"log": name, **document(one)} for name, one in checked.items()]})
    else:
        for name, one in checked.items():
            print_line(f"{name}: {chain_check_text(one)}")
    return ExitCode.TO_DO if any(one.gap for one in checked.values()) else ExitCode.OK


def anchors_of(path: Path, files: Files) -> list[Head]:
    """Return the heads of the log at `path` that the SCM has stored.

    A head is the number and the hash of the last entry of a log at some time. Raise
    RefusedError(INELIGIBLE) if the log does not belong to exactly one volume, or if the SCM has
    stored none of its heads.
    """
    owners = {
        (str(entry.facts.get("datanode_id")), str(entry.facts.get("volume_id")))
        for entry in entries(files)
        if entry.facts.get("kind") == EntryKind.FILE
    }
    if len(owners) != 1:
        raise RefusedError(
            Code.INELIGIBLE, f"cannot verify {path}: the log has entries of {len(owners)} volumes"
        )
    [(datanode_id, volume_id)] = owners
    request = scm_pb2.ListAnchorsRequest(datanode_id=datanode_id, volume_id=volume_id)
    with connect() as client:
        answer = client.scm.list_anchors(request)
    kept = [Head(one.count, one.checksum.hex()) for log in answer.logs for one in log.anchors]
    if not kept:
        raise RefusedError(
            Code.INELIGIBLE,
            f"cannot verify {path}: the SCM stores no log head of volume {volume_id} of "
            f"{datanode_id}",
            hint="check that this is the right cluster; the SCM stores one head per day",
        )
    return kept


def named_anchors(texts: Sequence[str], volumes: Sequence[Path]) -> list[Head]:
    """Return the log heads that the option `--anchor` gives.

    Raise RefusedError if the option is used with more than one volume.
    """
    anchors = [anchor_of(text) for text in texts]
    if anchors and len(volumes) > 1:
        raise RefusedError(
            Code.MALFORMED_REQUEST, "cannot check --anchor: it needs exactly one volume"
        )
    return anchors


def anchor_of(text: str) -> Head:
    """Return the log head in `text`, which has the form `N:HASH`.

    Raise RefusedError(MALFORMED_REQUEST) if the text has another form.
    """
    count, _, checksum = text.partition(":")
    if not (count.isascii() and count.isdigit() and ANCHOR_CHECKSUM.fullmatch(checksum)):
        raise RefusedError(
            Code.MALFORMED_REQUEST,
            f"invalid --anchor '{text[:100]}': expected the head of a log",
            hint="for example 41:9f86d0...: entry number and SHA-256, as suture verify-log "
            "prints them",
        )
    return Head(int(count), checksum)


def chain_check_text(one: ChainCheck) -> str:
    """Return one line of text with the result of checking a verification log."""
    gap = one.gap
    if gap is None:
        anchors = f", {pluralize(one.anchors_held, 'anchor')} hold" if one.anchors_held else ""
        if not one.head.count:
            return "nothing was logged yet"
        head = f"{one.head.count}:{one.head.checksum}"
        return (
            f"entries {one.first} to {one.head.count} are as they were written{anchors}; "
            f"its head is {head}"
        )
    place = f"{gap.file}, line {gap.line}" if gap.line else gap.file
    return f"entry {gap.number} was {gap.fault} ({place}): {gap.why}"


def document(one: ChainCheck) -> dict[str, object]:
    """Return the result of checking a verification log as a JSON document."""
    gap = one.gap
    return {
        "first": one.first,
        "count": one.head.count,
        "head": one.head.checksum,
        "anchor_count": one.anchors_held,
        "gap": None
        if gap is None
        else {
            "fault": gap.fault,
            "entry": gap.number,
            "file": gap.file,
            "line": gap.line,
            "reason": gap.why,
        },
    }
