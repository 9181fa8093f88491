"""Lists of the keys that have blocks in certain containers, for `scm report` and `explain`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from suture.client.cluster_client import ClusterClient
from suture.terminal.document import facts
from suture.terminal.output import pluralize, print_line, size
from suture.wire.v1 import scm_pb2

SHOWN_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class KeyList:
    """Keys that have blocks in certain containers.

    `keys` may have only the first keys; `key_count` is the number of all keys.
    """

    keys: Sequence[scm_pb2.ContainerKey]
    key_count: int
    container_count: int

    def document(self) -> dict[str, object]:
        """Return the keys as a JSON document."""
        return {
            "container_count": self.container_count,
            "key_count": self.key_count,
            "keys": [facts(key) for key in self.keys],
        }

    def show(self, what: str) -> None:
        """Print the first keys, and the number of all keys. If there are no keys, print nothing."""
        if not self.key_count:
            return
        print_line(f"{what}: {pluralize(self.key_count, 'key')}")
        for key in self.keys[:SHOWN_MAX]:
            numbers = ", ".join(map(str, key.container_ids[:SHOWN_MAX]))
            print_line(f"  {key.key}, {size(key.size)} (container {numbers})")
        left = self.key_count - len(self.keys[:SHOWN_MAX])
        if left > 0:
            print_line(f"  and {pluralize(left, 'key')} more; --json lists all")


def keys_in(
    client: ClusterClient,
    container_ids: Sequence[int] = (),
    *,
    at_risk: bool = False,
    all_of_them: bool,
) -> KeyList:
    """Return the keys that have blocks in the containers `container_ids`.

    If `at_risk` is True, return the keys in containers at risk instead. Return at most SHOWN_MAX
    keys, unless `all_of_them` is True.
    """
    keys: list[scm_pb2.ContainerKey] = []
    start_after = ""
    while True:
        page = client.scm.list_container_keys(
            scm_pb2.ListContainerKeysRequest(
                container_ids=container_ids,
                at_risk=at_risk,
                start_after=start_after,
                count=0 if all_of_them else SHOWN_MAX,
            )
        )
        keys += page.keys
        start_after = page.next_start_after
        if not all_of_them or not start_after:
            return KeyList(keys, page.key_count, page.container_count)
