"""Messages of Ozone's datanode protocol, as far as the client uses them.

The numbers are facts of Ozone's wire format (`DatanodeClientProtocol.proto`, 2.1 and 2.2). A block
is received as the bytes of its row, which `ozone.disk.blockrow` decodes from any source, and sent
as encoded by `ozone.disk.encoding`; the same applies to written chunks.
"""

from enum import IntEnum
from typing import Final

from ozone.declaration import BOOL, BYTES, NUMBER, SIGNED, TEXT, Fields, message_classes


class Command(IntEnum):
    """The commands in use: to read, and to fill shards that a reconstruction makes."""

    CREATE_CONTAINER = 1
    READ_CONTAINER = 2
    DELETE_CONTAINER = 4
    PUT_BLOCK = 6
    GET_BLOCK = 7
    LIST_BLOCK = 9
    READ_CHUNK = 10
    WRITE_CHUNK = 12
    CLOSE_CONTAINER = 17
    GET_CONTAINER_CHECKSUM_INFO = 23


MESSAGES: Final[dict[str, Fields]] = {
    "BlockId": {
        "container_id": (1, SIGNED, False),
        "local_id": (2, SIGNED, False),
        "bcsid": (3, NUMBER, False),
        "replica_index": (4, SIGNED, False),
    },
    "ChecksumData": {"type": (1, SIGNED, False), "bytes_per_checksum": (2, NUMBER, False)},
    "ChunkInfo": {
        "name": (1, TEXT, False),
        "offset": (2, NUMBER, False),
        "length": (3, NUMBER, False),
        "checksum_data": (5, "ChecksumData", False),
    },
    "Nothing": {},
    "CreateContainer": {"replica_index": (4, SIGNED, False), "state": (5, SIGNED, False)},
    "DeleteContainer": {"force": (2, BOOL, False)},
    "PutBlock": {"block": (1, BYTES, False)},
    "WriteChunk": {
        "block_id": (1, "BlockId", False),
        "chunk": (2, BYTES, False),
        "data": (3, BYTES, False),
    },
    "GetBlock": {"block_id": (1, "BlockId", False)},
    "ListBlock": {"start_local_id": (2, SIGNED, False), "count": (3, NUMBER, False)},
    "ReadChunk": {
        "block_id": (1, "BlockId", False),
        "chunk": (2, "ChunkInfo", False),
        "version": (3, SIGNED, False),
    },
    "GetContainerChecksumInfo": {"container_id": (1, SIGNED, False)},
    "Request": {
        "command": (1, SIGNED, False),
        "container_id": (3, SIGNED, False),
        "datanode_id": (4, TEXT, False),
        "create_container": (6, "CreateContainer", False),
        "read_container": (7, "Nothing", False),
        "delete_container": (9, "DeleteContainer", False),
        "close_container": (11, "Nothing", False),
        "put_block": (12, "PutBlock", False),
        "get_block": (13, "GetBlock", False),
        "list_block": (15, "ListBlock", False),
        "read_chunk": (16, "ReadChunk", False),
        "write_chunk": (17, "WriteChunk", False),
        "get_container_checksum_info": (27, "GetContainerChecksumInfo", False),
    },
    "ContainerData": {
        "container_id": (1, SIGNED, False),
        "used_bytes": (6, SIGNED, False),
        "block_count": (8, SIGNED, False),
        "state": (9, SIGNED, False),
    },
    "ContainerAnswer": {"container": (1, "ContainerData", False)},
    "BlockAnswer": {"block": (1, BYTES, False)},
    "BlocksAnswer": {"blocks": (1, BYTES, True)},
    "Buffers": {"buffers": (1, BYTES, True)},
    "ChunkAnswer": {
        "block_id": (1, "BlockId", False),
        "chunk": (2, "ChunkInfo", False),
        "data": (3, BYTES, False),
        "buffers": (4, "Buffers", False),
    },
    "ChecksumInfoAnswer": {"container_id": (1, SIGNED, False), "info": (2, BYTES, False)},
    "Answer": {
        "command": (1, SIGNED, False),
        "result": (3, SIGNED, False),
        "message": (4, BYTES, False),
        "read_container": (6, "ContainerAnswer", False),
        "get_block": (12, "BlockAnswer", False),
        "list_block": (14, "BlocksAnswer", False),
        "read_chunk": (16, "ChunkAnswer", False),
        "get_container_checksum_info": (24, "ChecksumInfoAnswer", False),
    },
}

_CLASSES: Final = message_classes("suture.ozone.datanode", MESSAGES)
REQUEST: Final = _CLASSES["Request"]
ANSWER: Final = _CLASSES["Answer"]

SUCCESS: Final = 1
RECOVERING: Final = 8  # of a container that a reconstruction fills
RESULTS: Final = {
    1: "SUCCESS",
    2: "UNSUPPORTED_REQUEST",
    3: "MALFORMED_REQUEST",
    4: "CONTAINER_INTERNAL_ERROR",
    7: "CONTAINER_EXISTS",
    9: "CONTAINER_NOT_FOUND",
    10: "IO_EXCEPTION",
    11: "UNABLE_TO_READ_METADATA_DB",
    12: "NO_SUCH_BLOCK",
    16: "CHECKSUM_MISMATCH",
    17: "UNABLE_TO_FIND_CHUNK",
    19: "INVALID_ARGUMENT",
    25: "UNCLOSED_CONTAINER_IO",
    28: "INVALID_CONTAINER_STATE",
    29: "DISK_OUT_OF_SPACE",
    31: "CONTAINER_METADATA_ERROR",
    33: "CONTAINER_CHECKSUM_ERROR",
    36: "CONTAINER_UNHEALTHY",
    37: "UNKNOWN_BCSID",
    38: "BCSID_MISMATCH",
    40: "CONTAINER_MISSING",
    41: "BLOCK_TOKEN_VERIFICATION_FAILED",
    43: "CHUNK_FILE_INCONSISTENCY",
    48: "CONTAINER_ID_MISMATCH",
}
"""Names of the results that one who reads, or fills a shard, can meet."""

STATES: Final = {
    1: "OPEN",
    2: "CLOSING",
    3: "QUASI_CLOSED",
    4: "CLOSED",
    5: "UNHEALTHY",
    6: "INVALID",
    7: "DELETED",
    RECOVERING: "RECOVERING",
}
"""Names of the states of a container on a datanode."""
