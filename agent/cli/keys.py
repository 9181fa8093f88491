"""Commands `put`, `get` and `ls`, which store, fetch and list files."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from suture.client.cluster_client import LANES_DEFAULT
from suture.client.download import write_whole
from suture.client.file_pieces import SourceFile
from suture.client.key_listing import checked_key, key_fault, key_pages
from suture.client.spool import Spool
from suture.client.writer import StoredFile
from suture.ec.scheme import parse_scheme
from suture.errors import Code, RefusedError, SutureError
from suture.runtime.memory import share_heaps
from suture.terminal.common_options import is_json
from suture.terminal.credentials import connect
from suture.terminal.long_lists import print_json_pages, print_row_pages
from suture.terminal.output import (
    bytes_progress,
    pluralize,
    print_json,
    print_line,
    print_note,
    print_waiting_once,
    size,
)
from suture.terminal.selection import datanode_id, fetch_container
from suture.terminal.typer_options import ID_MAX, argument, flag, option
from suture.wire.mapping.blockpieces import Data
from suture.wire.v1 import scm_pb2

STDOUT = Path("-")


def put(
    paths: Annotated[
        list[str], argument("FILE|DIR", "Files, or directories with all files below.")
    ],
    prefix: Annotated[str, option("PREFIX", "Prefix for every key; default: none.")] = "",
    replace: Annotated[bool, flag("Overwrite existing keys.", "--replace")] = False,
    close: Annotated[bool, flag("Close the containers after the last write.", "--close")] = False,
    sessions: Annotated[
        int, option("N", "Number of parallel write sessions.", min=1, max=64)
    ] = LANES_DEFAULT,
    replication: Annotated[
        str, option("SCHEME", "Erasure code, for example rs-6-3; default: 3 replicas.")
    ] = "",
) -> None:
    """Store files as keys, replicated or erasure-coded.

    The key of FILE is its name. The key of a file below DIR is its path, beginning with the name of
    DIR. Symbolic links below DIR are skipped.

    Example:
        suture put --close report.pdf photos/
    """
    share_heaps()  # before any thread starts, because each message of a write has megabytes
    scheme = parse_scheme(replication) if replication else None
    checked_key(prefix, "--prefix", is_beginning=True)
    with Spool() as spool:
        sources = checked(sources_of(paths, prefix, spool))
        total_bytes = sum(source.size_bytes for source in sources)
        with connect() as client, bytes_progress("storing", total_bytes) as bar:
            try:
                stored, containers = client.put(
                    sources,
                    lanes=sessions,
                    replace=replace,
                    close=close,
                    scheme=scheme,
                    progress=lambda length_bytes: bar.advance(bar.task_ids[0], length_bytes),
                    waits=print_waiting_once(),
                )
            except SutureError as error:
                if error.code is Code.KEY_EXISTS:
                    error.hint = "overwrite it with --replace"
                stored_files = error.facts.get("stored_files", "0")
                if not is_json() and stored_files != "0":
                    print_note(f"stored {stored_files} of {len(sources)} files, then stopped")
                raise
    if is_json():
        keys = list(map(stored_facts, stored))
        print_json({"keys": keys, "bytes": total_bytes, "container_ids": containers})
        return
    if not stored:
        print_line("nothing to store: there are no files in what was given")
        return
    fewest = min(item.replicas_min for item in stored)
    print_line(
        f"stored {pluralize(len(stored), 'file')}, {size(total_bytes)}, in "
        f"{'container' if len(containers) == 1 else 'containers'} "
        f"{', '.join(map(str, containers))}; every file is on {fewest} datanodes or more"
    )


def stored_facts(stored: StoredFile) -> dict[str, object]:
    """Return a stored file as a JSON document."""
    return {
        "key": stored.key,
        "bytes": stored.size_bytes,
        "replica_count": stored.replicas_min,
    }


def sources_of(paths: Sequence[str], prefix: str, spool: Spool) -> Iterable[SourceFile]:
    """Yield the files that `paths` name. For a directory, yield all files below it.

    If the size of a file is unreliable, the file is copied into `spool`. Raise RefusedError if a
    path does not exist, or is neither a file nor a directory.
    """
    for given in paths:
        if not given:  # Path("") would be the current directory
            raise RefusedError(
                Code.MALFORMED_REQUEST,
                "invalid path '': expected a file or a directory",
                hint="check for an unset shell variable; . is the current directory",
            )
        path = Path(given)
        name = path.resolve().name if path.name in {"", ".."} else path.name  # also for `.`
        if path.is_dir():
            for below in files_below(path):
                key = "/".join(filter(None, (name, below.relative_to(path).as_posix())))
                yield spool.file(prefix + key, below)
        elif path.is_file():
            yield spool.file(prefix + name, path)
        elif path.exists():
            raise RefusedError(
                Code.INELIGIBLE, f"cannot store {path}: it is neither a file nor a directory"
            )
        else:
            raise RefusedError(
                Code.MALFORMED_REQUEST, f"cannot store {path}: no such file or directory"
            )


def files_below(directory: Path) -> Iterator[Path]:
    """Yield the regular files below `directory`, sorted by name.

    Raise OSError if a directory is unreadable. It is not skipped, because the user would assume
    that its files were stored.
    """

    def refuse(error: OSError) -> None:
        raise error

    for parent, names, files in os.walk(directory, onerror=refuse):
        names.sort()
        for name in sorted(files):
            path = Path(parent, name)
            if path.is_file() and not path.is_symlink():
                yield path


def checked(sources: Iterable[SourceFile]) -> list[SourceFile]:
    """Check the keys of all sources before any file is stored, and return the sources as a list.

    Raise RefusedError if a key is invalid or occurs twice.
    """
    by_key: dict[str, SourceFile] = {}
    for source in sources:
        path = str(source.path).encode("unicode_escape").decode()  # for unprintable characters
        if fault := key_fault(source.key):
            raise RefusedError(
                Code.MALFORMED_REQUEST,
                f"cannot store {path}: its key {fault}",
                hint="rename the file or a directory above it, or take a shorter --prefix",
            )
        if source.key in by_key:
            other = by_key[source.key].path
            raise RefusedError(
                Code.KEY_EXISTS,
                f"cannot store {other} and {path}: both have the key {source.key}",
                hint="store them separately, each with its own --prefix",
            )
        by_key[source.key] = source
    return list(by_key.values())


def get(
    key: Annotated[str, argument("KEY", "Key, as `suture ls` shows it.")],
    output: Annotated[
        Path | None, option("FILE", "File to write; - = stdout; default: stdout.", "--output")
    ] = None,
    datanode: Annotated[
        str | None, option("ID|HOST:PORT", "Read only the replica of this datanode.")
    ] = None,
) -> None:
    """Fetch a file and verify every byte.

    If a chunk is damaged in one replica, the chunk is read from another replica. Lost or damaged
    cells of an erasure-coded file are reconstructed from the other shards, and reported.

    Example:
        suture get report.pdf --output report.pdf
    """
    output = None if output == STDOUT else output
    if is_json() and output is None:
        raise typer.BadParameter(
            "cannot combine --json with output to stdout; give --output", param_hint="--json"
        )
    checked_key(key)
    with connect() as client:
        found = client.find(key)
        only = None if datanode is None else datanode_id(client, datanode)
        pieces = client.read(found, datanode_id=only)
        if output is None:
            for piece in pieces:
                sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
            print_degraded(key, client.degraded)
            return
        with bytes_progress("fetching", found.key.size) as bar:
            write_whole(output, advancing(pieces, bar))
    if is_json():
        print_json(
            {
                "key": key,
                "bytes": found.key.size,
                "output": str(output),
                "degraded": client.degraded,
            }
        )
    else:
        print_degraded(key, client.degraded)


def print_degraded(key: str, degraded: Mapping[str, str]) -> None:
    """Print the shards of an erasure-coded file that could not be read, and the reasons.

    If all shards could be read, print nothing.
    """
    if degraded:
        reasons = "; ".join(f"{who}: {why}" for who, why in sorted(degraded.items()))
        print_note(f"{key} was read degraded: {reasons}")


def advancing(pieces: Iterable[Data], bar: Progress) -> Iterator[Data]:
    """Yield `pieces` unchanged. Advance the progress bar by the length of each piece."""
    for piece in pieces:
        yield piece
        bar.advance(bar.task_ids[0], len(piece))


def ls(
    prefix: Annotated[
        str, argument("PREFIX", "List only keys with this prefix; default: all.")
    ] = "",
    container: Annotated[
        list[int] | None,
        option(
            "ID", "List keys with blocks in this container; may be repeated.", min=1, max=ID_MAX
        ),
    ] = None,
) -> None:
    """List keys with their sizes and blocks.

    Example:
        suture ls photos/
    """
    checked_key(prefix, "PREFIX", is_beginning=True)
    with connect() as client:
        found = filter(None, key_pages(client.scm, prefix, frozenset(container or ())))
        first = next(found, [])
        for container_id in () if first else container or ():  # raises if it does not exist
            fetch_container(client, container_id)
        pages = chain([first], found)
        if is_json():
            print_json_pages("keys", (map(key_facts, page) for page in pages))
        else:
            print_keys(pages)


def print_keys(pages: Iterable[Sequence[scm_pb2.KeyInfo]]) -> None:
    """Print a table row for each key, then the number of all keys and their total size."""
    key_count = lost_count = total_bytes = 0

    def rows(page: Sequence[scm_pb2.KeyInfo]) -> Iterator[tuple[str, str, str]]:
        nonlocal key_count, lost_count, total_bytes
        for key in page:
            key_count += 1
            lost_count += bool(key.lost_container_ids)
            total_bytes += key.size
            lost = "LOST " if key.lost_container_ids else ""
            yield key.key, size(key.size), lost + locations(key)

    print_row_pages(["key", "bytes#", "container/block"], (list(rows(page)) for page in pages))
    print_line(f"{pluralize(key_count, 'key')}, {size(total_bytes)}")
    if lost_count:
        print_line(
            f"{pluralize(lost_count, 'key')} lost: their container is marked as lost "
            "(scm mark-lost)"
        )


def key_facts(key: scm_pb2.KeyInfo) -> dict[str, object]:
    """Return a key as a JSON document."""
    blocks = [
        {
            "container_id": b.block_id.container_id,
            "block_id": b.block_id.local_id,
            "length_bytes": b.length,
        }
        for b in key.blocks
    ]
    return {
        "key": key.key,
        "bytes": key.size,
        "created_at_ms": key.created_at_ms,
        "blocks": blocks,
        "lost_container_ids": list(key.lost_container_ids),
    }


def locations(key: scm_pb2.KeyInfo) -> str:
    """Return the blocks of a key as text, in the form `container/block` or
    `container/first-last`."""
    runs: list[tuple[int, int, int]] = []  # container, first and last of consecutive blocks
    for block in key.blocks:
        container_id, block_id = block.block_id.container_id, block.block_id.local_id
        if runs and (runs[-1][0], runs[-1][2] + 1) == (container_id, block_id):
            runs[-1] = (container_id, runs[-1][1], block_id)
        else:
            runs.append((container_id, block_id, block_id))
    return ", ".join(
        f"{container_id}/{first}" + (f"-{last}" if last > first else "")
        for container_id, first, last in runs
    )
