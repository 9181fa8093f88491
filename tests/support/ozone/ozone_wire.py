"""Ozone's own messages of `DatanodeClientProtocol.proto` (2.2.0), copied for tests.

Field names and numbers are Ozone's. `COMMANDS` and `RESULTS` are Ozone's enumerations `Type` and
`Result`.
"""

from tests.support.ozone.declaration import (
    BOOL,
    BYTES,
    NUMBER,
    SIGNED,
    TEXT,
    Fields,
    message_classes,
)


def _fields(text: str) -> Fields:
    """Return the fields of a line such as `blockID 1 BlockID, chunks 4 ChunkInfo*`."""
    fields: Fields = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, number, kind = item.split()
        kinds = {"text": TEXT, "bytes": BYTES, "uint": NUMBER, "int": SIGNED, "bool": BOOL}
        plain = kind.rstrip("*")
        fields[name] = (int(number), kinds.get(plain, plain), kind.endswith("*"))
    return fields


_TABLE = {
    "KeyValue": "key 1 text, value 2 text",
    "BlockID": "containerID 1 int, localID 2 int, bcsid 3 uint, replicaIndex 4 int",
    "ChecksumData": "type 1 int, bytesPerChecksum 2 uint, checksums 3 bytes*",
    "ChunkInfo": "chunkName 1 text, offset 2 uint, len 3 uint, metadata 4 KeyValue*, "
    "checksumData 5 ChecksumData, stripeChecksum 6 bytes",
    "BlockData": "blockID 1 BlockID, flags 2 int, metadata 3 KeyValue*, chunks 4 ChunkInfo*, "
    "size 5 int",
    "CreateContainer": "metadata 2 KeyValue*, containerType 3 int, replicaIndex 4 int, state 5 int",
    "Empty": "",
    "DeleteContainer": "forceDelete 2 bool",
    "ListContainer": "count 2 uint",
    "PutBlock": "blockData 1 BlockData, eof 2 bool",
    "GetBlock": "blockID 1 BlockID",
    "ListBlock": "startLocalID 2 int, count 3 uint",
    "ReadChunk": "blockID 1 BlockID, chunkData 2 ChunkInfo, readChunkVersion 3 int",
    "WriteChunk": "blockID 1 BlockID, chunkData 2 ChunkInfo, data 3 bytes, block 4 PutBlock",
    "Echo": "payload 1 bytes, payloadSizeResp 2 int, sleepTimeMs 3 int, readOnly 4 bool",
    "GetChecksumInfo": "containerID 1 int",
    "ReadBlock": "blockID 1 BlockID, offset 2 uint, length 3 uint, responseDataSize 4 uint",
    "Request": "cmdType 1 int, traceID 2 text, containerID 3 int, datanodeUuid 4 text, "
    "pipelineID 5 text, createContainer 6 CreateContainer, readContainer 7 Empty, "
    "updateContainer 8 Empty, deleteContainer 9 DeleteContainer, listContainer 10 ListContainer, "
    "closeContainer 11 Empty, putBlock 12 PutBlock, getBlock 13 GetBlock, listBlock 15 ListBlock, "
    "readChunk 16 ReadChunk, writeChunk 17 WriteChunk, putSmallFile 20 Empty, "
    "getCommittedBlockLength 22 GetBlock, encodedToken 23 text, version 24 uint, "
    "finalizeBlock 25 Empty, echo 26 Echo, getContainerChecksumInfo 27 GetChecksumInfo, "
    "readBlock 28 ReadBlock, clientId 100 bytes, callId 101 uint",
    "ContainerData": "containerID 1 int, metadata 2 KeyValue*, containerPath 4 text, "
    "bytesUsed 6 int, size 7 int, blockCount 8 int, state 9 int, containerType 10 int",
    "OneContainer": "containerData 1 ContainerData",
    "ManyContainers": "containerData 1 ContainerData*",
    "Closed": "hash 1 text, containerID 2 int",
    "Length": "blockID 1 BlockID, blockLength 2 int",
    "Written": "committedBlockLength 1 Length",
    "OneBlock": "blockData 1 BlockData",
    "ManyBlocks": "blockData 1 BlockData*",
    "Buffers": "buffers 1 bytes*",
    "Chunk": "blockID 1 BlockID, chunkData 2 ChunkInfo, data 3 bytes, dataBuffers 4 Buffers",
    "Payload": "payload 1 bytes",
    "Info": "containerID 1 int, containerChecksumInfo 2 bytes",
    "Piece": "checksumData 1 ChecksumData, offset 2 uint, data 3 bytes",
    "Response": "cmdType 1 int, traceID 2 text, result 3 int, message 4 text, "
    "createContainer 5 Empty, readContainer 6 OneContainer, deleteContainer 8 Empty, "
    "listContainer 9 ManyContainers, closeContainer 10 Closed, putBlock 11 Written, "
    "getBlock 12 OneBlock, listBlock 14 ManyBlocks, writeChunk 15 Written, readChunk 16 Chunk, "
    "getCommittedBlockLength 21 Length, echo 23 Payload, getContainerChecksumInfo 24 Info, "
    "readBlock 25 Piece, clientId 100 bytes, callId 101 uint",
    "Upload": "containerID 1 int, offset 2 uint, data 3 bytes, checksum 4 int, compression 5 int, "
    "size 6 int",
    "Wish": "containerID 1 int, readOffset 2 uint, len 3 uint, version 4 uint, compression 5 int",
    "Part": "containerID 1 int, readOffset 2 uint, len 3 uint, eof 4 bool, data 5 bytes, "
    "checksum 6 int",
}

WIRE = message_classes("tests.ozone", {name: _fields(text) for name, text in _TABLE.items()})

COMMANDS = {
    "createContainer": 1, "readContainer": 2, "updateContainer": 3, "deleteContainer": 4,
    "listContainer": 5, "putBlock": 6, "getBlock": 7, "deleteBlock": 8, "listBlock": 9,
    "readChunk": 10, "deleteChunk": 11, "writeChunk": 12, "listChunk": 13, "compactChunk": 14,
    "putSmallFile": 15, "getSmallFile": 16, "closeContainer": 17, "getCommittedBlockLength": 18,
    "streamInit": 19, "streamWrite": 20, "finalizeBlock": 21, "echo": 22,
    "getContainerChecksumInfo": 23, "readBlock": 24, "streamInitWithPutBlock": 25,
}  # fmt: skip

RESULTS = {
    1: "SUCCESS", 2: "UNSUPPORTED_REQUEST", 3: "MALFORMED_REQUEST", 4: "CONTAINER_INTERNAL_ERROR",
    7: "CONTAINER_EXISTS", 8: "NO_SUCH_ALGORITHM", 9: "CONTAINER_NOT_FOUND", 10: "IO_EXCEPTION",
    12: "NO_SUCH_BLOCK", 13: "OVERWRITE_FLAG_REQUIRED", 15: "INVALID_WRITE_SIZE",
    16: "CHECKSUM_MISMATCH", 17: "UNABLE_TO_FIND_CHUNK", 19: "INVALID_ARGUMENT",
    22: "CLOSED_CONTAINER_IO", 25: "UNCLOSED_CONTAINER_IO", 26: "DELETE_ON_OPEN_CONTAINER",
    28: "INVALID_CONTAINER_STATE", 29: "DISK_OUT_OF_SPACE", 36: "CONTAINER_UNHEALTHY",
    37: "UNKNOWN_BCSID", 38: "BCSID_MISMATCH", 41: "BLOCK_TOKEN_VERIFICATION_FAILED",
    43: "CHUNK_FILE_INCONSISTENCY", 44: "DELETE_ON_NON_EMPTY_CONTAINER",
}  # fmt: skip
