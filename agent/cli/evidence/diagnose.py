"""Command `diagnose`: writes all evidence about one container to one file."""

import io
import json
import os
import tarfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import typer

from agent.cli.evidence.replay import replay
from agent.cli.evidence.verdict_inputs import JudgedReplica, Question
from merkle.replica import ContainerId
from merkle.tree import Tree
from suture.client.cluster_client import ClusterClient
from suture.errors import Code, RefusedError, SutureError
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.credentials import connect
from suture.terminal.document import facts
from suture.terminal.outcomes import outcomes_in
from suture.terminal.output import checksum, print_json, print_line
from suture.terminal.transient_refusals import until_free
from suture.terminal.tree_document import block_facts
from suture.terminal.typer_options import OptionalContainerArgument, option
from suture.wire.v1 import scm_pb2

LEAVES_MAX: Final = 100_000  # per replica, so that a bundle can be sent by mail


def diagnose(
    container_id: OptionalContainerArgument = None,
    bundle: Annotated[
        Path | None, option("BUNDLE", "Recompute the verdicts of this bundle, offline.", "--replay")
    ] = None,
    output: Annotated[
        Path | None, option("FILE", "File to write; default: a new one in this directory.")
    ] = None,
) -> int:
    """Write the evidence about a container to a .tar.gz file.

    The file has no data, keys or file names. With --replay, every verdict in a bundle is computed
    again, offline, from the recorded checksums.

    Exit codes:
        2: a verdict differs, or some evidence is missing

    Example:
        suture diagnose 42 --output container-42.tar.gz
    """
    if (container_id is None) == (bundle is None):
        raise typer.BadParameter("expected CONTAINER or --replay BUNDLE", param_hint="CONTAINER")
    if bundle is not None:
        return replay(bundle)
    assert container_id is not None
    path = output or Path(f"container-{container_id}.tar.gz")
    try:
        file = path.open("xb")
    except FileExistsError as error:
        hint = "--output names another file"
        raise RefusedError(Code.KEY_EXISTS, f"cannot write {path}: it exists", hint=hint) from error
    try:
        with file, connect() as client:
            documents = dict(evidence(client, ContainerId(container_id)))
            bundle_into(file, container_id, documents)
    except BaseException:
        path.unlink(missing_ok=True)  # created by this command
        raise
    failed = [name for name, document in documents.items() if "error" in document]
    if is_json():
        print_json({"file": str(path), "documents": sorted(documents), "failed": failed})
    else:
        print_line(f"{path}: {len(documents)} documents, {path.stat().st_size} bytes")
        for name in failed:
            print_line(f"  {name} could not be had: {documents[name]['error']}")
    return ExitCode.TO_DO if failed else ExitCode.OK


def bundle_into(file: BinaryIO, container_id: int, documents: Mapping[str, object]) -> None:
    """Write documents to `file` as one .tar.gz bundle, then sync the file."""
    at_s = int(time.time())
    with tarfile.open(fileobj=file, mode="w:gz") as bundle:
        for name, document in documents.items():
            content = (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()
            member = tarfile.TarInfo(f"container-{container_id}/{name}.json")
            member.size, member.mtime, member.mode = len(content), at_s, 0o600
            bundle.addfile(member, io.BytesIO(content))
    file.flush()
    os.fsync(file.fileno())


def evidence(
    client: ClusterClient, container_id: ContainerId
) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the name and the content of every document of a bundle.

    If a document cannot be fetched, its content is the error.
    """
    yield "about", {"suture": version("suture"), "at_ms": int(time.time() * 1000)}
    request = scm_pb2.ListContainerInfosRequest(start_container_id=container_id, count=1)
    known = client.scm.list_container_infos(request).containers
    info = next((item for item in known if item.container_id == container_id), None)
    if info is None:
        raise RefusedError(
            Code.CONTAINER_NOT_FOUND,
            f"the SCM has no container {container_id}",
            hint="suture scm containers lists them",
        )
    yield "container", facts(info)
    yield "outcomes", {"newest_first": [facts(o) for o in outcomes_in(client, container_id)]}
    for replica in info.replicas:
        node, peer = replica.datanode.datanode_id, client.peer(replica.datanode)
        judged = JudgedReplica(peer, container_id)
        for name, ask in QUESTIONS.items():
            try:
                yield f"{node}/{name}", until_free(node, partial(ask, judged))
            except SutureError as error:
                yield f"{node}/{name}", {"error": str(error), "code": error.code.value}


def _history(judged: JudgedReplica) -> dict[str, object]:
    entries = judged.peer.history(judged.container_id)
    return {"oldest_first": [facts(entry) for entry in entries]}


def _disks(judged: JudgedReplica) -> dict[str, object]:
    """Return a document with the output of smartctl and the kernel's log about each disk.

    If one of them is missing, the document has the reason.
    """
    disks = []
    for disk in judged.peer.list_disks().disks:
        document = facts(disk)
        document["smart"] = json.loads(disk.smart) if disk.smart else None
        disks.append(document)
    return {"disks": disks}


QUESTIONS: Final[Mapping[str, Question]] = {
    "replica": lambda judged: facts(judged.peer.replica(judged.container_id)),
    "findings": JudgedReplica.findings_document,
    "tree": lambda judged: tree_document(judged.tree),
    "rows": JudgedReplica.rows_document,
    "medium": JudgedReplica.medium_document,
    "history": _history,
    "status": lambda judged: facts(judged.peer.status()),
    "scrub": lambda judged: facts(judged.peer.scrub_status()),
    "disks": _disks,
}


def tree_document(tree: Tree) -> dict[str, object]:
    """Return a tree as a JSON document.

    If the tree has more than LEAVES_MAX leaves, only its first blocks are included.
    """
    blocks: list[dict[str, object]] = []
    leaf_count = 0
    for index in range(len(tree.block_ids)):
        leaf_count += len(tree.leaves_at(index))
        if leaf_count > LEAVES_MAX:
            break
        blocks.append(block_facts(tree, index))
    return {
        "algorithm": tree.algorithm.value,
        "root": checksum(tree.root),
        "generation": tree.generation,
        "block_count": tree.block_count,
        "tombstone_count": tree.tombstone_count,
        "blocks": blocks,
        "complete": leaf_count <= LEAVES_MAX,
    }
