"""Finds the datanodes and volumes that a command line names by id, prefix of an id, address or
rack."""

from collections.abc import Callable, Sequence
from typing import Annotated, Final

from suture.client.cluster_client import ClusterClient
from suture.errors import Code, RefusedError
from suture.terminal.typer_options import option
from suture.wire.v1 import scm_pb2

OnOption = Annotated[
    list[str] | None,
    option("DATANODE", "Show only these datanodes or /racks; default: all.", "--on"),
]
NAMED_MAX: Final = 5  # maximum number of datanodes that an error names
VOLUME_SIGN: Final = ":/"  # separates a datanode from the path of its volume


def known_nodes(client: ClusterClient) -> Sequence[scm_pb2.NodeInfo]:
    """Return all datanodes that the SCM knows."""
    return client.scm.list_nodes(scm_pb2.ListNodesRequest()).nodes


def fetch_container(client: ClusterClient, container_id: int) -> scm_pb2.ContainerInfo:
    """Return the SCM's record of one container. Raise RefusedError if the SCM does not know the
    container."""
    request = scm_pb2.GetContainerInfoRequest(container_id=container_id)
    return client.scm.get_container_info(request).container


def selected(client: ClusterClient, given: list[str] | None) -> Callable[[str], bool]:
    """Return a function that returns True for the ids of the given datanodes, or for all ids if
    none is given."""
    if not given:
        return lambda _: True
    return frozenset(datanode_ids(client, given)).__contains__


def datanode_ids(
    client: ClusterClient, given: list[str], *, may_be_gone: bool = False
) -> list[str]:
    """Return the ids of the datanodes that are given by id, prefix of an id, address or rack,
    without duplicates.

    If `may_be_gone` is True, an unknown id is returned unchanged, and the control plane decides
    about it. Otherwise, raise RefusedError for an unknown datanode.
    """
    nodes = known_nodes(client)
    found: list[str] = []
    for name in given:
        is_free = not any(node.datanode_id.startswith(name) for node in nodes)
        if may_be_gone and is_free and not {"/", ":"} & set(name):
            found.append(name)
        else:
            found += [node.datanode_id for node in _nodes_named(nodes, name)]
    return list(dict.fromkeys(found))


def datanode_id(client: ClusterClient, given: str) -> str:
    """Return the id of the datanode with this address, id or prefix of an id. Raise RefusedError
    unless exactly one datanode matches."""
    return one_node(known_nodes(client), given).datanode_id


def one_node(nodes: Sequence[scm_pb2.NodeInfo], given: str) -> scm_pb2.NodeInfo:
    """Return the datanode with this address, id or prefix of an id. Raise RefusedError unless
    exactly one datanode matches."""
    found = [node for node in nodes if given and given in {node.address, node.datanode_id}]
    found = found or [node for node in nodes if given and node.datanode_id.startswith(given)]
    if len(found) == 1:
        return found[0]
    raise RefusedError(
        Code.WRONG_DATANODE, _not_one(found, given), hint="suture scm nodes lists all datanodes"
    )


def resolve_targets(
    client: ClusterClient, given: list[str]
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the ids of the given datanodes, and (datanode id, volume id) of the given volumes.

    A volume is given by its id, a prefix of its id, or as DATANODE:/its/path. Raise RefusedError if
    a name is unknown or ambiguous.
    """
    nodes = known_nodes(client)
    ids: list[str] = []
    volumes: list[tuple[str, str]] = []
    for name in given:
        if not name.startswith("/") and VOLUME_SIGN in name:
            volumes.append(_volume_at(nodes, name))
            continue
        own = [
            (node.datanode_id, volume.volume_id)
            for node in nodes
            for volume in node.volumes
            if name and volume.volume_id.startswith(name)
        ]
        is_node = any(node.datanode_id.startswith(name) for node in nodes)
        if len(own) > 1 or (own and is_node):
            raise RefusedError(
                Code.WRONG_DATANODE,
                f"{name} names {len(own)} volumes" + (" and a datanode" if is_node else ""),
                hint="give more characters of the id, or DATANODE:/path",
            )
        if own:
            volumes += own
        else:
            ids += [node.datanode_id for node in _nodes_named(nodes, name)]
    return list(dict.fromkeys(ids)), list(dict.fromkeys(volumes))


def one_volume(nodes: Sequence[scm_pb2.NodeInfo], given: str) -> tuple[scm_pb2.NodeInfo, str]:
    """Return the datanode and the id of the given volume. Raise RefusedError unless exactly one
    volume matches."""
    if not given.startswith("/") and VOLUME_SIGN in given:
        datanode_id, volume_id = _volume_at(nodes, given)
        return one_node(nodes, datanode_id), volume_id
    found = [
        (node, volume.volume_id)
        for node in nodes
        for volume in node.volumes
        if (volume.path == given if given.startswith("/") else volume.volume_id.startswith(given))
    ]
    if len(found) == 1 and given:
        return found[0]
    what = f"{len(found)} volumes are" if found else "no volume is"
    if given and any(given in {node.address, node.datanode_id} for node in nodes):
        what = "a datanode instead of a volume is"
    raise RefusedError(
        Code.WRONG_DATANODE,
        f"{what} named {given!r}",
        hint="suture volumes lists all volumes; name one by DATANODE:/path",
    )


def _volume_at(nodes: Sequence[scm_pb2.NodeInfo], given: str) -> tuple[str, str]:
    name, _, rest = given.partition(VOLUME_SIGN)
    node, path = one_node(nodes, name), "/" + rest
    for volume in node.volumes:
        if volume.path.rstrip("/") == path.rstrip("/"):
            return node.datanode_id, volume.volume_id
    known = ", ".join(volume.path for volume in node.volumes) or "none that is known now"
    raise RefusedError(
        Code.WRONG_DATANODE,
        f"datanode {node.datanode_id} has no volume {path}; its volumes: {known}",
        hint="suture volumes lists all volumes",
    )


def _nodes_named(nodes: Sequence[scm_pb2.NodeInfo], name: str) -> list[scm_pb2.NodeInfo]:
    if not name.startswith("/"):
        return [one_node(nodes, name)]
    rack = [node for node in nodes if node.rack == name]
    if not rack:
        raise RefusedError(
            Code.WRONG_DATANODE,
            f"no datanode is in rack {name}",
            hint="name a volume by its id, or by DATANODE:/path",
        )
    return rack


def _not_one(found: Sequence[scm_pb2.NodeInfo], given: str) -> str:
    if found:
        have = "the address" if found[0].address == given else "an id that begins with"
        each = ", ".join(
            f"{node.datanode_id} ({node.health}, {node.op_state})" for node in found[:NAMED_MAX]
        )
        rest = f" and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
        return f"{len(found)} datanodes have {have} {given}: {each}{rest}"
    if ":" in given:
        return f"the SCM knows no datanode at {given}"
    if "." in given:
        return f"{given!r} is neither HOST:PORT nor the beginning of a datanode id"
    return f"no datanode has an id that begins with {given!r}"
