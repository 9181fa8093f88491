"""sample: what a few chunks, drawn at random, say of all of them. Never that they are verified."""

import secrets
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from agent.cli.terminal.output import Exit, counted, emit, items_progress, say, size
from agent.cli.terminal.typer_options import JsonFlag
from agent.salvage.sample import Sample, take_sample
from scanner.sampling import FRACTION_MIN

SHOWN_MAX: Final = 20
PERCENT_MAX: Final = 99.9999


def sample(
    volumes: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Volume directories.")],
    confidence: Annotated[
        float,
        typer.Option(
            metavar="PERCENT", min=1, max=PERCENT_MAX, help="How sure the statement is to be."
        ),
    ] = 95.0,
    fraction: Annotated[
        float,
        typer.Option(metavar="SHARE", min=FRACTION_MIN, max=1, help="Of bad chunks, to be found."),
    ] = 1e-6,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Draws the same chunks again; default: new.")
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Read chunks drawn at random, and say how likely more are bad; nothing is verified by it.

    For volumes whose agents are stopped, for instance after a transport. Chunks are drawn
    uniformly, without replacement, of all replicas on the volumes, and read past the page cache.
    2: a chunk was bad, or something could not be drawn or judged.
    """
    number = secrets.randbits(32) if seed is None else seed
    with items_progress("sample", 0, quiet=as_json) as bar:
        task = bar.tasks[0].id
        taken = take_sample(
            volumes,
            confidence=confidence / 100,
            fraction=fraction,
            seed=number,
            begin=lambda total: bar.update(task, total=total),
            progress=lambda: bar.advance(task),
        )
    if as_json:
        emit({**asdict(taken), "confidence": confidence / 100, "fraction": fraction})
    else:
        tell(taken)
    return Exit.OK if taken.is_clean else Exit.TO_DO


def tell(taken: Sample) -> None:
    """Say what was drawn, and what follows; no more than follows."""
    drawn = taken.size
    say(
        f"{taken.read_count} of {counted(drawn.chunk_count, 'chunk')} read, "
        f"{size(taken.bytes_read)}, drawn uniformly with seed {taken.seed}; "
        f"of endlessly many it would be {drawn.endless_count}"
    )
    for one in taken.bad[:SHOWN_MAX]:
        place = f"container {one.container_id} block {one.block_id} at {one.offset}"
        say(f"  {one.volume}: {place}: {one.verdict} {one.fault}: {one.evidence}")
    if taken.bad_count > SHOWN_MAX:
        say(f"  and {taken.bad_count - SHOWN_MAX} more; --json has them")
    for row in taken.damaged_rows[:SHOWN_MAX]:
        say(f"  not drawn from, its row is damaged: {row}")
    for volume, why in taken.unreadable_volumes.items():
        say(f"  not drawn from: {volume}: {why}")
    if taken.without_checksum_count:
        say(f"  {counted(taken.without_checksum_count, 'chunk')} without checksums not drawn from")
    say(said(taken))


def said(taken: Sample) -> str:
    """Return what follows from a sample."""
    drawn = taken.size
    if taken.undecided_count:
        return f"nothing follows: {counted(taken.undecided_count, 'chunk')} could not be judged"
    if taken.bad_count:
        return (
            f"{taken.bad_count} of {taken.read_count} are bad, so about "
            f"{taken.bad_count / taken.read_count:.2g} of all: read all of them "
            "(suture fsck --read-data)"
        )
    unread = drawn.chunk_count - taken.read_count
    return (
        f"none is bad: if {drawn.bad_count} or more of {drawn.chunk_count} were, one would have "
        f"been drawn with P = {drawn.power:.4%}; of {counted(unread, 'chunk')} nothing is known"
    )
