"""verify-log: prove the verification log of volumes, or name the gap."""

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from agent.cli.terminal.output import Exit, counted, emit, say
from agent.cli.terminal.typer_options import JsonFlag
from agent.errors import Code, Refused
from agent.store.verification.chain import Checked, Head, check
from agent.store.verification.reading import read_log

ANCHOR_CHECKSUM: Final = re.compile("[0-9a-f]{64}")


def verify_log(
    volumes: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Volume directories, or copies of logs.")
    ],
    anchor: Annotated[
        list[str] | None,
        typer.Option(metavar="N:HASH", help="A head that was told before; of one volume."),
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Prove that the log of what was verified, repaired and deleted is what was written.

    2: it is not; the first gap is named, and nothing behind it is believed.
    """
    anchors = [anchor_of(text) for text in anchor or ()]
    if anchors and len(volumes) > 1:
        raise Refused(Code.MALFORMED_REQUEST, "an anchor is of one volume: name one")
    checked = {str(path): check(read_log(path), anchors) for path in volumes}
    if as_json:
        emit([{"log": name, **document(one)} for name, one in checked.items()])
    else:
        for name, one in checked.items():
            say(f"{name}: {spoken(one)}")
    return Exit.TO_DO if any(one.gap for one in checked.values()) else Exit.OK


def anchor_of(text: str) -> Head:
    """Return the head that somebody kept. Raise Refused(MALFORMED_REQUEST)."""
    count, _, checksum = text.partition(":")
    if not (count.isascii() and count.isdigit() and ANCHOR_CHECKSUM.fullmatch(checksum)):
        raise Refused(
            Code.MALFORMED_REQUEST,
            f"--anchor {text[:100]}: is no head of a log",
            hint="as suture verify-log prints it: the number of an entry, a colon, its SHA-256",
        )
    return Head(int(count), checksum)


def spoken(one: Checked) -> str:
    """Say in a line what a walk through a log came to."""
    gap = one.gap
    if gap is None:
        anchors = f", {counted(one.anchors_held, 'anchor')} hold" if one.anchors_held else ""
        if not one.head.count:
            return "nothing was logged yet"
        head = f"{one.head.count}:{one.head.checksum}"
        return (
            f"entries {one.first} to {one.head.count} are as they were written{anchors}; "
            f"its head is {head}"
        )
    place = f"{gap.file}, line {gap.line}" if gap.line else gap.file
    return f"entry {gap.number} was {gap.fault} ({place}): {gap.why}"


def document(one: Checked) -> dict[str, object]:
    """Return it as JSON shows it."""
    gap = one.gap
    return {
        "first": one.first,
        "count": one.head.count,
        "head": one.head.checksum,
        "anchors_held": one.anchors_held,
        "gap": None
        if gap is None
        else {
            "fault": gap.fault,
            "entry": gap.number,
            "file": gap.file,
            "line": gap.line,
            "why": gap.why,
        },
    }
