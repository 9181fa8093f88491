"""Messages of Ozone's datanode protocol, as far as an agent serves it.

The numbers are facts of Ozone's wire format (`DatanodeClientProtocol.proto`, 2.1 and 2.2). Received
texts may be invalid Unicode, so they are bytes here and are decoded where they are used.
"""

from enum import IntEnum
from typing import Any, Final

from google.protobuf.message import DecodeError

from agent.errors import Code, Refused
from ozone.declaration import BOOL, BYTES, NUMBER, SIGNED, Fields, message_classes

METHOD: Final = "/hadoop.hdds.datanode.XceiverClientProtocolService/send"
MESSAGE_BYTES_MAX: Final = 32 * 1024**2  # Ozone's own limit, both ways
FRAME_BYTES_MAX: Final = 4 * 1024  # of an answer, around its payload


class Command(IntEnum):
    """All commands of Ozone, including those that agents do not carry out."""

    CREATE_CONTAINER = 1
    READ_CONTAINER = 2
    UPDATE_CONTAINER = 3
    DELETE_CONTAINER = 4
    LIST_CONTAINER = 5
    PUT_BLOCK = 6
    GET_BLOCK = 7
    DELETE_BLOCK = 8
    LIST_BLOCK = 9
    READ_CHUNK = 10
    DELETE_CHUNK = 11
    WRITE_CHUNK = 12
    LIST_CHUNK = 13
    COMPACT_CHUNK = 14
    PUT_SMALL_FILE = 15
    GET_SMALL_FILE = 16
    CLOSE_CONTAINER = 17
    GET_COMMITTED_BLOCK_LENGTH = 18
    STREAM_INIT = 19
    STREAM_WRITE = 20
    FINALIZE_BLOCK = 21
    ECHO = 22
    GET_CONTAINER_CHECKSUM_INFO = 23
    READ_BLOCK = 24
    STREAM_INIT_WITH_PUT_BLOCK = 25


_OF_BLOCK: Final[Fields] = {"block_id": (1, "BlockId", False)}
_LENGTH: Final[Fields] = {"committed": (1, "CommittedLength", False)}

MESSAGES: Final[dict[str, Fields]] = {
    "Nothing": {},
    "KeyValue": {"key": (1, BYTES, False), "value": (2, BYTES, False)},
    "BlockId": {
        "container_id": (1, SIGNED, False),
        "local_id": (2, SIGNED, False),
        "bcsid": (3, NUMBER, False),
        "replica_index": (4, SIGNED, False),
    },
    "ChecksumData": {
        "type": (1, SIGNED, False),
        "bytes_per_checksum": (2, NUMBER, False),
        "checksums": (3, BYTES, True),
    },
    "ChunkInfo": {
        "name": (1, BYTES, False),
        "offset": (2, NUMBER, False),
        "length": (3, NUMBER, False),
        "metadata": (4, "KeyValue", True),
        "checksum_data": (5, "ChecksumData", False),
        "stripe_checksum": (6, BYTES, False),
    },
    "BlockData": {
        "block_id": (1, "BlockId", False),
        "metadata": (3, "KeyValue", True),
        "chunks": (4, "ChunkInfo", True),
        "size": (5, SIGNED, False),
    },
    "CreateContainer": {"replica_index": (4, SIGNED, False), "state": (5, SIGNED, False)},
    "DeleteContainer": {"force": (2, BOOL, False)},
    "ListContainer": {"count": (2, NUMBER, False)},
    "PutBlock": {"block": (1, "BlockData", False)},
    "GetBlock": _OF_BLOCK,
    "ListBlock": {"start_local_id": (2, SIGNED, False), "count": (3, NUMBER, False)},
    "ReadChunk": {
        "block_id": (1, "BlockId", False),
        "chunk": (2, "ChunkInfo", False),
        "version": (3, SIGNED, False),
    },
    "WriteChunk": {
        "block_id": (1, "BlockId", False),
        "chunk": (2, "ChunkInfo", False),
        "data": (3, BYTES, False),
        "commit": (4, "PutBlock", False),
    },
    "Echo": {
        "payload": (1, BYTES, False),
        "answer_bytes": (2, SIGNED, False),
        "sleep_ms": (3, SIGNED, False),
    },
    "GetContainerChecksumInfo": {"container_id": (1, SIGNED, False)},
    "ReadBlock": {
        "block_id": (1, "BlockId", False),
        "offset": (2, NUMBER, False),
        "length": (3, NUMBER, False),
        "answer_bytes": (4, NUMBER, False),
    },
    "Request": {
        "command": (1, SIGNED, False),
        "trace_id": (2, BYTES, False),
        "container_id": (3, SIGNED, False),
        "datanode_id": (4, BYTES, False),
        "create_container": (6, "CreateContainer", False),
        "read_container": (7, "Nothing", False),
        "delete_container": (9, "DeleteContainer", False),
        "list_container": (10, "ListContainer", False),
        "close_container": (11, "Nothing", False),
        "put_block": (12, "PutBlock", False),
        "get_block": (13, "GetBlock", False),
        "list_block": (15, "ListBlock", False),
        "read_chunk": (16, "ReadChunk", False),
        "write_chunk": (17, "WriteChunk", False),
        "get_committed_block_length": (22, "GetBlock", False),
        "echo": (26, "Echo", False),
        "get_container_checksum_info": (27, "GetContainerChecksumInfo", False),
        "read_block": (28, "ReadBlock", False),
        "client_id": (100, BYTES, False),
        "call_id": (101, NUMBER, False),
    },
    "ContainerData": {
        "container_id": (1, SIGNED, False),
        "path": (4, BYTES, False),
        "used_bytes": (6, SIGNED, False),
        "size": (7, SIGNED, False),
        "block_count": (8, SIGNED, False),
        "state": (9, SIGNED, False),
        "type": (10, SIGNED, False),
    },
    "ContainerAnswer": {"container": (1, "ContainerData", False)},
    "ContainersAnswer": {"containers": (1, "ContainerData", True)},
    "Closed": {"container_id": (2, SIGNED, False)},
    "CommittedLength": {"block_id": (1, "BlockId", False), "length": (2, SIGNED, False)},
    "Committed": _LENGTH,
    "BlockAnswer": {"block": (1, BYTES, False)},
    "BlocksAnswer": {"blocks": (1, BYTES, True)},
    "Buffers": {"buffers": (1, BYTES, True)},
    "ChunkAnswer": {
        "block_id": (1, "BlockId", False),
        "chunk": (2, "ChunkInfo", False),
        "data": (3, BYTES, False),
        "buffers": (4, "Buffers", False),
    },
    "EchoAnswer": {"payload": (1, BYTES, False)},
    "ChecksumInfoAnswer": {"container_id": (1, SIGNED, False), "info": (2, BYTES, False)},
    "BlockPiece": {
        "checksum_data": (1, "ChecksumData", False),
        "offset": (2, NUMBER, False),
        "data": (3, BYTES, False),
    },
    "Answer": {
        "command": (1, SIGNED, False),
        "trace_id": (2, BYTES, False),
        "result": (3, SIGNED, False),
        "message": (4, BYTES, False),
        "create_container": (5, "Nothing", False),
        "read_container": (6, "ContainerAnswer", False),
        "delete_container": (8, "Nothing", False),
        "list_container": (9, "ContainersAnswer", False),
        "close_container": (10, "Closed", False),
        "put_block": (11, "Committed", False),
        "get_block": (12, "BlockAnswer", False),
        "list_block": (14, "BlocksAnswer", False),
        "write_chunk": (15, "Committed", False),
        "read_chunk": (16, "ChunkAnswer", False),
        "get_committed_block_length": (21, "CommittedLength", False),
        "echo": (23, "EchoAnswer", False),
        "get_container_checksum_info": (24, "ChecksumInfoAnswer", False),
        "read_block": (25, "BlockPiece", False),
        "client_id": (100, BYTES, False),
        "call_id": (101, NUMBER, False),
    },
}

_CLASSES: Final = message_classes("suture.ozone.serving", MESSAGES)
REQUEST: Final = _CLASSES["Request"]
ANSWER: Final = _CLASSES["Answer"]

BODIES: Final = {
    command: name for command in Command if (name := command.name.lower()) in MESSAGES["Request"]
}
"""The field of a request that a command has, by the command: those that an agent may carry out."""


def parse_request(data: bytes) -> Any:
    """Return the request in `data`. Raise Refused(MALFORMED_REQUEST)."""
    try:
        return REQUEST.FromString(data)
    except DecodeError as error:
        raise Refused(
            Code.MALFORMED_REQUEST, f"{len(data)} bytes that are no ContainerCommandRequestProto"
        ) from error
