"""What Ozone's datanodes are asked and answer, as far as it is used here.

The numbers are facts of Ozone's wire format (`DatanodeClientProtocol.proto`, 2.1 and 2.2). A block
comes as the bytes of its row, which `ozone.disk.blockrow` reads wherever they come from.
"""

from enum import IntEnum
from typing import Final

from ozone.declaration import BYTES, NUMBER, SIGNED, TEXT, Fields, message_classes


class Command(IntEnum):
    """What may be asked: to read, and nothing else."""

    READ_CONTAINER = 2
    GET_BLOCK = 7
    LIST_BLOCK = 9
    READ_CHUNK = 10
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
    "ReadContainer": {},
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
        "read_container": (7, "ReadContainer", False),
        "get_block": (13, "GetBlock", False),
        "list_block": (15, "ListBlock", False),
        "read_chunk": (16, "ReadChunk", False),
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
RESULTS: Final = {
    1: "SUCCESS",
    2: "UNSUPPORTED_REQUEST",
    3: "MALFORMED_REQUEST",
    4: "CONTAINER_INTERNAL_ERROR",
    9: "CONTAINER_NOT_FOUND",
    10: "IO_EXCEPTION",
    11: "UNABLE_TO_READ_METADATA_DB",
    12: "NO_SUCH_BLOCK",
    17: "UNABLE_TO_FIND_CHUNK",
    19: "INVALID_ARGUMENT",
    25: "UNCLOSED_CONTAINER_IO",
    28: "INVALID_CONTAINER_STATE",
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
"""Names of the results that a reader can meet."""

STATES: Final = {
    1: "OPEN",
    2: "CLOSING",
    3: "QUASI_CLOSED",
    4: "CLOSED",
    5: "UNHEALTHY",
    6: "INVALID",
    7: "DELETED",
    8: "RECOVERING",
}
"""Names of the states of a container on a datanode."""
