"""put, get, ls: files into containers and back."""

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from agent.cli.output import (
    SCM_DEFAULT,
    JsonFlag,
    ScmOption,
    bytes_progress,
    emit,
    grid,
    say,
    show,
    size,
)
from agent.client import LANES_DEFAULT, Client
from agent.errors import Code, Refused
from agent.rpc.v1 import scm_pb2
from agent.writer import Source

KEYS_PER_PAGE: Final = 1000


def put(
    paths: Annotated[list[Path], typer.Argument(help="Files, or directories taken whole.")],
    scm: ScmOption = SCM_DEFAULT,
    prefix: Annotated[str, typer.Option(help="Put before every key.")] = "",
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite existing keys.")] = False,
    close: Annotated[
        bool, typer.Option("--close", help="Close the containers when all is written.")
    ] = False,
    lanes: Annotated[
        int, typer.Option(min=1, max=64, help="Writer sessions side by side.")
    ] = LANES_DEFAULT,
    as_json: JsonFlag = False,
) -> None:
    """Store files, each on three datanodes; acknowledged means durable."""
    sources = list(sources_of(paths, prefix))
    total_bytes = sum(source.size_bytes for source in sources)
    with Client(scm) as client, bytes_progress("storing", total_bytes, quiet=as_json) as bar:
        stored, containers = client.put(
            sources,
            lanes=lanes,
            replace=replace,
            close=close,
            progress=lambda item: bar.advance(bar.task_ids[0], item.size_bytes),
        )
    fewest = min((item.replicas_min for item in stored), default=0)
    if as_json:
        keys = [{"key": s.key, "bytes": s.size_bytes, "replicas": s.replicas_min} for s in stored]
        emit({"stored": keys, "bytes": total_bytes, "container_ids": containers})
        return
    say(
        f"stored {len(stored)} files, {size(total_bytes)}, in containers "
        f"{', '.join(map(str, containers))}; every file is on {fewest} datanodes or more"
    )


def sources_of(paths: Sequence[Path], prefix: str) -> Iterable[Source]:
    """Yield the files named by `paths`; a directory stands for all files below it."""
    for path in paths:
        if path.is_dir():
            for below in sorted(path.rglob("*")):
                if below.is_file() and not below.is_symlink():
                    key = f"{prefix}{path.name}/{below.relative_to(path).as_posix()}"
                    yield Source(key, below, below.stat().st_size)
        elif path.is_file():
            yield Source(f"{prefix}{path.name}", path, path.stat().st_size)
        else:
            raise Refused(Code.KEY_NOT_FOUND, f"no such file or directory: {path}")


def get(
    key: Annotated[str, typer.Argument(help="What `suture ls` shows.")],
    output: Annotated[
        Path | None, typer.Option("--output", help="File to write; default: stdout.")
    ] = None,
    scm: ScmOption = SCM_DEFAULT,
    datanode: Annotated[
        str | None, typer.Option(help="Read only the replica of this datanode.")
    ] = None,
) -> None:
    """Fetch a file; every byte is verified, and a bad replica is passed over."""
    with Client(scm) as client:
        pieces = client.get(key, datanode_id=datanode)
        if output is None:
            for piece in pieces:
                sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
        else:
            write_whole(output, pieces)


def write_whole(path: Path, pieces: Iterable[bytes]) -> None:
    """Write `pieces` beside `path` and rename: the file appears whole or not at all."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise Refused(Code.IO_EXCEPTION, f"cannot write {path}: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            for piece in pieces:
                file.write(piece)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def ls(
    prefix: Annotated[str, typer.Argument(help="Only keys that begin so.")] = "",
    scm: ScmOption = SCM_DEFAULT,
    as_json: JsonFlag = False,
) -> None:
    """List keys with their size and the blocks that hold them."""
    with Client(scm) as client:
        keys = list(all_keys(client, prefix))
    if as_json:
        emit([key_facts(key) for key in keys])
        return
    rows = [(key.key, size(key.size), locations(key)) for key in keys]
    show(grid("", ["key", "size#", "container/block"], rows))
    say(f"{len(keys)} keys, {size(sum(key.size for key in keys))}")


def all_keys(client: Client, prefix: str) -> Iterable[scm_pb2.KeyInfo]:
    """Yield every key that begins with `prefix`, page by page."""
    start_after = ""
    while True:
        page = client.scm.list_keys(
            scm_pb2.ListKeysRequest(prefix=prefix, start_after=start_after, count=KEYS_PER_PAGE)
        )
        yield from page.keys
        start_after = page.next_start_after
        if not start_after:
            return


def key_facts(key: scm_pb2.KeyInfo) -> dict[str, object]:
    """Return a key as JSON shows it."""
    blocks = [
        {
            "container_id": b.block_id.container_id,
            "block_id": b.block_id.local_id,
            "bytes": b.length,
        }
        for b in key.blocks
    ]
    return {
        "key": key.key,
        "bytes": key.size,
        "created_at_ms": key.created_at_ms,
        "blocks": blocks,
    }


def locations(key: scm_pb2.KeyInfo) -> str:
    """Return where a key's blocks are, as `container/block`."""
    return (
        json.dumps([f"{b.block_id.container_id}/{b.block_id.local_id}" for b in key.blocks])
        .strip("[]")
        .replace('"', "")
    )
