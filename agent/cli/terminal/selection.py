"""Which datanodes a command is about: by id, by a prefix of it, or by rack."""

from collections.abc import Callable
from typing import Annotated

import typer

from agent.client.client import Client
from agent.errors import Code, Refused
from agent.rpc.v1 import scm_pb2

OnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--on", metavar="DATANODE", help="Only what is on these: ids, prefixes of them, or racks."
    ),
]


def selected(client: Client, given: list[str] | None) -> Callable[[str], bool]:
    """Return whether a datanode is among those that are named; all are if none is."""
    if not given:
        return lambda _: True
    return frozenset(datanode_ids(client, given)).__contains__


def datanode_ids(client: Client, given: list[str]) -> list[str]:
    """Return the datanodes that are named by id, prefix or rack, each once."""
    nodes = client.scm.list_nodes(scm_pb2.ListNodesRequest()).nodes
    found: list[str] = []
    for name in given:
        if not name.startswith("/"):
            found.append(datanode_id(client, name))
            continue
        rack = [node.datanode_id for node in nodes if node.rack == name]
        if not rack:
            raise Refused(Code.WRONG_DATANODE, f"no datanode is in rack {name}")
        found += rack
    return list(dict.fromkeys(found))


def datanode_id(client: Client, given: str) -> str:
    """Return the one datanode whose id begins with `given`; refuse none and several."""
    nodes = client.scm.list_nodes(scm_pb2.ListNodesRequest()).nodes
    found = [node.datanode_id for node in nodes if node.datanode_id.startswith(given)]
    if len(found) == 1:
        return found[0]
    what = "no datanode has" if not found else f"{len(found)} datanodes have"
    raise Refused(
        Code.WRONG_DATANODE, f"{what} an id that begins with {given}", hint="suture scm nodes"
    )
