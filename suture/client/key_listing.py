"""Validates, lists and deletes keys.

A delete first asks the SCM which version of each key exists, and then deletes exactly these
versions. If the control plane does not answer, the client repeats the delete for as long as a
restart takes. If a repeated delete finds no such key, the first attempt has deleted it.
"""

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from suture.errors import Code, RefusedError, SutureError
from suture.wire.clients.channel import retry_while
from suture.wire.clients.scm import ScmClient
from suture.wire.mapping.bounds import KEY_BYTES_MAX
from suture.wire.v1 import scm_pb2

KEYS_PER_PAGE: Final = 1000
SHOWN_CHARS: Final = 40  # maximum length of an invalid key in a message
OK: Final = "OK"
REPEATED: Final = frozenset({Code.UNAVAILABLE, Code.BUSY})
REFUSED: Final = frozenset({"Cc", "Cs"})  # control characters; bytes that were not UTF-8


def key_fault(text: str, *, is_beginning: bool = False) -> str:
    """Return the reason why `text` is not a valid key, or "" if it is valid. If `is_beginning` is
    True, `text` is a prefix of keys and may be empty."""
    if not text and not is_beginning:
        return "is empty"
    if any(unicodedata.category(character) in REFUSED for character in text):
        return "is not UTF-8, or has a control character"
    size_bytes = len(text.encode())
    if size_bytes > KEY_BYTES_MAX:
        return f"has {size_bytes} bytes, more than {KEY_BYTES_MAX}"
    return ""


def checked_key(text: str, where: str = "KEY", *, is_beginning: bool = False) -> str:
    """Return `text` unchanged if it is a valid key or key prefix. Otherwise raise RefusedError.

    `where` is the name of the argument for the message. If `is_beginning` is True, `text` is a
    prefix of keys.
    """
    fault = key_fault(text, is_beginning=is_beginning)
    if fault:
        shown = text[:SHOWN_CHARS].encode("unicode_escape").decode()  # it may not be printable
        raise RefusedError(Code.MALFORMED_REQUEST, f"{where}: '{shown}' {fault}")
    return text


def key_pages(
    scm: ScmClient, prefix: str, container_ids: frozenset[int] = frozenset()
) -> Iterator[list[scm_pb2.KeyInfo]]:
    """Yield lists of the keys that begin with `prefix`, one list per request to the control plane.
    If `container_ids` is not empty, only keys with a block in one of these containers are returned.
    """
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
        yield list(page.keys)
        start_after = page.next_start_after
        if not start_after:
            return


def delete_keys(
    scm: ScmClient,
    names: Sequence[str],
    *,
    dry_run: bool = False,
    waits: Callable[[SutureError], None] = lambda _: None,
) -> Sequence[scm_pb2.KeyDeletion]:
    """Delete keys. Return the result for each key in the order given: OK or KEY_NOT_FOUND.

    If the control plane stops answering after it has listed the keys, the client assumes a restart
    and repeats the request for up to two minutes. `waits` is called with each error. Only the
    listed versions are deleted. If a file is stored under the same name in the meantime, it is
    kept.
    """
    names = list(dict.fromkeys(names))
    shown = scm.show_deletions(scm_pb2.DeleteKeysRequest(keys=names, dry_run=True)).deletions
    there = [one for one in shown if one.code == OK]
    if dry_run or not there:
        return shown
    request = scm_pb2.DeleteKeysRequest(
        keys=[one.key for one in there], worlds=[one.world for one in there]
    )
    tries = 0

    def ask() -> scm_pb2.DeleteKeysResponse:
        nonlocal tries
        tries += 1
        return scm.delete_keys(request)

    answer = retry_while(ask, codes=REPEATED, must_end=lambda: False, waits=waits)
    gone = {Code.STALE_PLAN, Code.KEY_NOT_FOUND} if tries > 1 else {Code.STALE_PLAN}
    made = {one.key: one for one in answer.deletions}
    for one in there:
        one.transaction_ids.extend(made[one.key].transaction_ids)
        one.code = OK if made[one.key].code in gone else made[one.key].code
    return shown
