"""Commands that tell of replicas as a whole: their trees, what they are, and that we are here."""

from collections.abc import Mapping
from typing import Final, Protocol

from agent.errors import Code, Refused
from agent.store.ports import ReadableReplicas
from ozone.disk.encoding import encode_tree_file
from ozone.serving.conversation import Answering, Asked, Body
from ozone.serving.messages import MESSAGE_BYTES_MAX, Command
from ozone.serving.trees import Folded, checked_size, ozone_view

ECHO_BYTES_MAX: Final = 4 * 1024**2
FRAME_BYTES_MAX: Final = 4 * 1024  # of an answer, around what it carries


class ToldReplicas(ReadableReplicas, Folded, Protocol):
    """What is needed of the store."""


class Telling:
    """Echo, GetContainerChecksumInfo."""

    def __init__(self, store: ToldReplicas) -> None:
        self._store = store
        self.commands: Mapping[Command, Answering] = {
            Command.ECHO: self._echo,
            Command.GET_CONTAINER_CHECKSUM_INFO: self._checksum_info,
        }

    def _echo(self, asked: Asked) -> Body:
        """Answer with as many bytes as are asked for. Nothing sleeps here."""
        count = asked.body.answer_bytes
        if not 0 <= count <= ECHO_BYTES_MAX:
            raise Refused(
                Code.MALFORMED_REQUEST,
                f"an echo of {count} bytes, possible are 0..{ECHO_BYTES_MAX}",
            )
        if asked.body.sleep_ms > 0:
            raise Refused(Code.INELIGIBLE, "an echo that sleeps would keep a thread for nothing")
        return {"echo": {"payload": bytes(count)}}

    def _checksum_info(self, asked: Asked) -> Body:
        container_id = asked.container_id
        view = ozone_view(self._store, container_id)
        data = encode_tree_file(container_id, view.tree, view.root)
        what = f"the tree of container {container_id}"
        info = checked_size(what, data, MESSAGE_BYTES_MAX - FRAME_BYTES_MAX)
        return {"get_container_checksum_info": {"container_id": container_id, "info": info}}
