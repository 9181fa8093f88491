"""A peer is not trusted: the nodes of its tree are the checksums of their children, or refused."""

from collections.abc import Iterator

import pytest

from merkle.checksum import Algorithm
from merkle.replica import ContainerId
from merkle.tree import Leaf
from merkle.tree_building import TreeBuilder
from suture.errors import Code, RefusedError
from suture.wire.clients.peer import Peer
from suture.wire.mapping import tree_pages
from suture.wire.v1 import datanode_pb2 as pb

ONE = ContainerId(1)


def two_pages() -> list[pb.HashesPage]:
    """Return a tree of two blocks as a peer sends it."""
    builder = TreeBuilder(Algorithm.XXH3_64)
    for block_id in (1, 2):
        builder.add_block(block_id)
        builder.add_leaf(Leaf(0, 10, block_id, True))
    question = pb.GetContainerHashesRequest(container_id=ONE, level=pb.CHUNKS)
    return list(tree_pages.pages(builder.build(generation=1), tree_pages.parse_selection(question)))


class Scripted(Peer):
    """A peer that answers every question about its tree with the same pages."""

    def __init__(self, pages: list[pb.HashesPage]) -> None:
        super().__init__("127.0.0.1:1")
        self.pages = pages

    def _pages(self, *_: object) -> Iterator[pb.HashesPage]:
        yield from self.pages


def test_a_tree_that_does_not_fold_to_its_root_is_refused() -> None:
    """
    Every node of a tree that is returned is the checksum of its children, the root too.
    """
    pages = two_pages()
    with Scripted(pages) as honest:
        root = honest.tree(ONE).root
    pages[0].summary.root ^= 1

    with (
        Scripted(pages) as liar,
        pytest.raises(RefusedError, match="the root of the blocks is") as caught,
    ):
        liar.tree(ONE)

    assert pages[0].summary.root ^ 1 == root
    assert Code.MALFORMED_REQUEST is caught.value.code
