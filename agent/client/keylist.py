"""The names of keys: which can be, and which there are."""

import unicodedata
from collections.abc import Iterable, Iterator
from typing import Final

from agent.rpc.calls.scm import ScmClient
from agent.rpc.v1 import scm_pb2

KEYS_PER_PAGE: Final = 1000
REFUSED: Final = frozenset({"Cc", "Cs"})  # control characters; bytes that were no UTF-8


def is_key(text: str) -> bool:
    """Whether this can be the name of a key."""
    return bool(text) and not any(unicodedata.category(character) in REFUSED for character in text)


def key_pages(
    scm: ScmClient, prefix: str, container_ids: frozenset[int] = frozenset()
) -> Iterator[list[scm_pb2.KeyInfo]]:
    """Yield every key that begins with `prefix`, page by page as the control plane is asked; with
    `container_ids` those with a block in one of these."""
    start_after = ""
    while True:
        page = scm.list_keys(
            scm_pb2.ListKeysRequest(
                prefix=prefix,
                start_after=start_after,
                count=KEYS_PER_PAGE,
                container_ids=sorted(container_ids),
            )
        )
        # a control plane from before sends all of them
        yield [key for key in page.keys if not container_ids or _has_one(key, container_ids)]
        start_after = page.next_start_after
        if not start_after:
            return


def all_keys(
    scm: ScmClient, prefix: str, container_ids: frozenset[int] = frozenset()
) -> Iterable[scm_pb2.KeyInfo]:
    """Yield the same key by key."""
    for page in key_pages(scm, prefix, container_ids):
        yield from page


def _has_one(key: scm_pb2.KeyInfo, container_ids: frozenset[int]) -> bool:
    return any(block.block_id.container_id in container_ids for block in key.blocks)
