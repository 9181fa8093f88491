"""Command `scrub sample`: estimates the rate of damaged chunks from a random sample of chunks."""

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

from agent.cli.evidence.cluster_sample import ChunkSample, SampleRequest, sample_of
from agent.salvage.sample import run_sample
from agent.services.scan_handlers import SAMPLE_RESULT
from scanner.sampling import FRACTION_MIN, SampleSize
from suture.errors import Code, RefusedError
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.credentials import connect
from suture.terminal.datanode_queries import NodeOption, nodes_of
from suture.terminal.output import items_progress, pluralize, print_json, print_line, size
from suture.terminal.typer_options import argument, option
from suture.wire.v1 import datanode_pb2 as pb

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
        argument("DIR", "Volume directories to read; default: running datanodes."),
    ] = None,
    datanode: NodeOption = None,
    confidence: Annotated[
        float,
        option("PERCENT", "Confidence level of the estimated damage rate.", min=1, max=PERCENT_MAX),
    ] = 95.0,
    fraction: Annotated[
        float,
        option("SHARE", "Smallest fraction of damaged chunks to detect.", min=FRACTION_MIN, max=1),
    ] = 1e-6,
    seed: Annotated[
        int | None, option("N", "Seed, to draw the same chunks again; default: random.", min=0)
    ] = None,
) -> int:
    """Read random chunks and estimate the damage rate.

    Without DIR, chunks of running datanodes are read at the rate of their scans. With DIR, chunks
    of volumes with stopped agents are read, for example after disks were moved. Chunks are drawn
    uniformly from all replicas, without replacement, and are read from the disk, not from the page
    cache. A sample does not count as a verification of the chunks.

    Exit codes:
        2: a chunk was damaged, or a chunk could not be drawn or judged

    Example:
        suture scrub sample --confidence 99
    """
    if volumes and datanode is not None:
        raise RefusedError(
            Code.MALFORMED_REQUEST,
            "cannot sample DIR and --datanode together: DIR is a volume of a stopped agent",
            hint="give DIR or --datanode",
        )
    number = secrets.randbits(32) if seed is None else seed
    with items_progress("sample", 0) as bar:
        wish = SampleRequest(
            confidence=confidence / 100,
            fraction=fraction,
            seed=number,
            begin=lambda total: bar.update(bar.task_ids[0], total=total),
            progress=lambda count: bar.advance(bar.task_ids[0], count),
        )
        taken = offline_sample(volumes, wish) if volumes else live_sample(datanode, wish)
    if is_json():
        print_json({**taken.document(), "confidence": wish.confidence, "fraction": fraction})
    else:
        print_sample(taken)
    return ExitCode.OK if taken.is_clean else ExitCode.TO_DO


def offline_sample(volumes: Sequence[Path], wish: SampleRequest) -> ChunkSample:
    """Draw a random sample of chunks on volumes that no agent uses, and read it."""
    size, results, unreadable = run_sample(
        volumes,
        confidence=wish.confidence,
        fraction=wish.fraction,
        seed=wish.seed,
        begin=wish.begin,
        progress=wish.progress,
    )
    messages = {name: SAMPLE_RESULT.message(result) for name, result in results.items()}
    return ChunkSample(size, wish.seed, messages, unreadable, kind="volume")


def live_sample(datanode: str | None, wish: SampleRequest) -> ChunkSample:
    """Draw a random sample of chunks of running datanodes. The datanodes read it."""
    with connect() as client:
        return sample_of(client, nodes_of(client, datanode), wish)


def print_sample(taken: ChunkSample) -> None:
    """Print the results of a sample, and the conclusion about all chunks."""
    total = taken.total
    then = "their replicas are read next (suture findings)"
    if taken.kind == "volume":
        then = "read all of them (suture fsck --read-data)"
    read_count, bad_count = total("read_count"), total("bad_count")
    print_line(
        f"{read_count} of {pluralize(taken.size.chunk_count, 'chunk')} read, "
        f"{size(total('bytes_read'))}, drawn uniformly with seed {taken.seed}; "
        f"for unlimited data it would be {taken.size.unlimited_count}"
    )
    bad = [
        bad_text(taken.name_of(place), one)
        for place, result in taken.results.items()
        for one in result.bad
    ]
    for line in bad[:SHOWN_MAX]:
        print_line(f"  {line}")
    if bad_count > SHOWN_MAX:
        print_line(f"  and {bad_count - SHOWN_MAX} more; --json has them")
    for line in left_out_lines(taken):
        print_line(f"  {line}")
    if undecided_count := total("undecided_count"):
        print_line(f"nothing follows: {pluralize(undecided_count, 'chunk')} could not be judged")
    elif bad_count:
        share = bad_count / read_count
        print_line(f"{bad_count} of {read_count} are bad, so about {share:.2g} of all: {then}")
    else:
        print_line(none_bad_text(taken.size, read_count))


def left_out_lines(taken: ChunkSample) -> list[str]:
    """Return lines that name everything that could not be part of the sample.

    These are replicas, datanodes or volumes that could not be read, and numbers of excluded chunks
    and blocks.
    """
    left_out = [
        f"not drawn from: {taken.name_of(place)}: {why}"
        for place, result in taken.results.items()
        for why in result.unread[:SHOWN_MAX]
    ]
    cause = "" if taken.kind == "volume" else " does not answer"
    left_out += [
        f"not drawn from: {taken.name_of(place)}{cause}: {why}"
        for place, why in taken.silent.items()
    ]
    for name, (what, why) in NOT_DRAWN.items():
        if taken.total(name):
            left_out.append(f"{pluralize(taken.total(name), what)} {why}")
    return left_out


def bad_text(place: str, bad: pb.Finding) -> str:
    """Return a line of text about a damaged chunk."""
    where = f"{place}: container {bad.container_id} block {bad.local_id} at {bad.offset}"
    return f"{where}: {bad.verdict} {bad.fault}: {bad.evidence}"


def none_bad_text(drawn: SampleSize, read_count: int) -> str:
    """Return the conclusion from a sample in which no chunk was damaged."""
    unread = pluralize(drawn.chunk_count - read_count, "chunk")
    return (
        f"none is bad: if {drawn.bad_count} or more of {drawn.chunk_count} were, one would have "
        f"been drawn with P = {drawn.power:.4%}; of {unread} nothing is known"
    )
