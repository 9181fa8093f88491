"""Command `scrub sample`: estimate the state of all chunks from a random sample of them."""

import secrets
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from agent.cli.evidence.cluster_sample import LiveSample, SampleRequest, sample_of
from agent.cli.terminal.ask import NodeOption, nodes_of
from agent.cli.terminal.credentials import connect
from agent.cli.terminal.output import items_progress, pluralize, print_json, print_line, short, size
from agent.cli.terminal.typer_options import SCM_DEFAULT, JsonFlag, ScmOption
from agent.errors import Code, RefusedError
from agent.runtime.exits import ExitCode
from agent.salvage.sample import OfflineSample, run_sample
from scanner.sampling import FRACTION_MIN, SampleSize

SHOWN_MAX: Final = 20
PERCENT_MAX: Final = 99.9999
NOT_DRAWN: Final = {
    "gone_count": ("chunk", "deleted or written anew before they were read"),
    "damaged_row_count": ("block", "with damaged rows not drawn from"),
    "without_checksum_count": ("chunk", "without checksums not drawn from"),
}


def sample(
    volumes: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[DIR]...",
            help="Volume directories of stopped agents; none: what running datanodes have.",
        ),
    ] = None,
    scm: ScmOption = SCM_DEFAULT,
    datanode: NodeOption = None,
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
        int | None,
        typer.Option(metavar="N", min=0, help="Draws the same chunks again; default: new."),
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Read random chunks, and estimate the rate of bad ones.

    By default chunks of running datanodes are read, at the pace of their scans; with DIR, chunks of
    volumes with stopped agents, for instance after a transport. Chunks are drawn uniformly, without
    replacement, of all replicas, and read past the page cache. Nothing counts as verified
    afterwards. Exit code 2: a chunk was bad, or something could not be drawn or judged.
    """
    if volumes and datanode is not None:
        raise RefusedError(
            Code.MALFORMED_REQUEST,
            "DIR is a volume of a stopped agent, --datanode one that runs",
            hint="name one of the two",
        )
    number = secrets.randbits(32) if seed is None else seed
    with items_progress("sample", 0, quiet=as_json) as bar:
        wish = SampleRequest(
            confidence=confidence / 100,
            fraction=fraction,
            seed=number,
            begin=lambda total: bar.update(bar.task_ids[0], total=total),
            progress=lambda count: bar.advance(bar.task_ids[0], count),
        )
        taken = offline_sample(volumes, wish) if volumes else live_sample(scm, datanode, wish)
    if as_json:
        document = taken.document() if isinstance(taken, LiveSample) else asdict(taken)
        print_json({**document, "confidence": wish.confidence, "fraction": fraction})
    elif isinstance(taken, LiveSample):
        print_live_sample(taken)
    else:
        print_sample(taken)
    return ExitCode.OK if taken.is_clean else ExitCode.TO_DO


def offline_sample(volumes: Sequence[Path], wish: SampleRequest) -> OfflineSample:
    """Draw a sample from volumes that no agent uses."""
    return run_sample(
        volumes,
        confidence=wish.confidence,
        fraction=wish.fraction,
        seed=wish.seed,
        begin=wish.begin,
        progress=lambda: wish.progress(1),
    )


def live_sample(scm: str, datanode: str | None, wish: SampleRequest) -> LiveSample:
    """Draw a sample from running datanodes."""
    with connect(scm) as client:
        return sample_of(client, nodes_of(client, datanode), wish)


def print_sample(taken: OfflineSample) -> None:
    """Print the sample of volumes, and exactly the conclusions that it allows."""
    print_line(
        headline(taken.size, taken.seed, read_count=taken.read_count, bytes_read=taken.bytes_read)
    )
    for one in taken.bad[:SHOWN_MAX]:
        place = f"container {one.container_id} block {one.block_id} at {one.offset}"
        print_line(f"  {one.volume}: {place}: {one.verdict} {one.fault}: {one.evidence}")
    say_more(taken.bad_count)
    for row in taken.damaged_rows[:SHOWN_MAX]:
        print_line(f"  not drawn from, its row is damaged: {row}")
    for volume, why in taken.unreadable_volumes.items():
        print_line(f"  not drawn from: {volume}: {why}")
    if taken.without_checksum_count:
        print_line(
            f"  {pluralize(taken.without_checksum_count, 'chunk')} without checksums not drawn from"
        )
    print_line(
        conclusion_text(
            taken.size,
            "read all of them (suture fsck --read-data)",
            read_count=taken.read_count,
            bad_count=taken.bad_count,
            undecided_count=taken.undecided_count,
        )
    )


def print_live_sample(taken: LiveSample) -> None:
    """Print the sample of datanodes, and exactly the conclusions that it allows."""
    read_count, bytes_read = taken.total("read_count"), taken.total("bytes_read")
    print_line(headline(taken.size, taken.seed, read_count=read_count, bytes_read=bytes_read))
    bad = [(node, item) for node, result in taken.results.items() for item in result.bad]
    for node, item in bad[:SHOWN_MAX]:
        place = f"container {item.container_id} block {item.local_id} at {item.offset}"
        print_line(f"  {short(node)}: {place}: {item.verdict} {item.fault}: {item.evidence}")
    say_more(taken.total("bad_count"))
    for node, result in taken.results.items():
        for why in result.unread[:SHOWN_MAX]:
            print_line(f"  not drawn from: {short(node)}: {why}")
    for node, why in taken.silent.items():
        print_line(f"  not drawn from: {short(node)} does not answer: {why}")
    for name, (what, why) in NOT_DRAWN.items():
        if taken.total(name):
            print_line(f"  {pluralize(taken.total(name), what)} {why}")
    print_line(
        conclusion_text(
            taken.size,
            "their replicas are read next (suture findings)",
            read_count=read_count,
            bad_count=taken.total("bad_count"),
            undecided_count=taken.total("undecided_count"),
        )
    )


def headline(drawn: SampleSize, seed: int, *, read_count: int, bytes_read: int) -> str:
    """Return how much was read, and of how much."""
    return (
        f"{read_count} of {pluralize(drawn.chunk_count, 'chunk')} read, "
        f"{size(bytes_read)}, drawn uniformly with seed {seed}; "
        f"of endlessly many it would be {drawn.endless_count}"
    )


def say_more(bad_count: int) -> None:
    """Print how many bad chunks are not shown."""
    if bad_count > SHOWN_MAX:
        print_line(f"  and {bad_count - SHOWN_MAX} more; --json has them")


def conclusion_text(
    drawn: SampleSize, then: str, *, read_count: int, bad_count: int, undecided_count: int
) -> str:
    """Return the conclusion of a sample; `then` is the advice if something is bad."""
    if undecided_count:
        return f"nothing follows: {pluralize(undecided_count, 'chunk')} could not be judged"
    if bad_count:
        return (
            f"{bad_count} of {read_count} are bad, so about "
            f"{bad_count / read_count:.2g} of all: {then}"
        )
    unread = drawn.chunk_count - read_count
    return (
        f"none is bad: if {drawn.bad_count} or more of {drawn.chunk_count} were, one would have "
        f"been drawn with P = {drawn.power:.4%}; of {pluralize(unread, 'chunk')} nothing is known"
    )
