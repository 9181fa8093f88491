"""Window checksums in a separate process, computed by code that scans do not use.

    python -m agent.scan.shadow.reference_checksums      stdin: type, window, length, bytes
                                            stdout: length, sums

It uses `merkle.second_checksum`: other libraries, in another process. A changed library, or faulty
memory of the agent, therefore does not affect both results. The process ends when its stdin closes.
"""

import os
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO, Final

from merkle.replica import CHUNK_BYTES_MAX, ChecksumType
from merkle.second_checksum import witness_checksums

ASKED: Final = struct.Struct(">BII")
ANSWERED: Final = struct.Struct(">I")
NICE: Final = 10
STOP_S: Final = 5.0


class ReferenceUnavailable(Exception):
    """The second process has failed, so there is no second checksum."""


class ReferenceChecksums:
    """Client of the process that computes second checksums. Thread-safe.

    The process starts with the first request.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def sums(self, checksum_type: ChecksumType, window_bytes: int, data: bytes) -> bytes:
        """Return the window checksums of `data`, computed by the second process.

        Raise ReferenceUnavailable if the process fails.
        """
        with self._lock:
            try:
                if self._process is None:
                    self._process = _started()
                return _asked(self._process, checksum_type, window_bytes, data)
            except (OSError, EOFError, ValueError, struct.error) as error:
                self._end()
                raise ReferenceUnavailable(str(error)) from error

    def close(self) -> None:
        """Stop the process that computes the second checksums."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _started() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "agent.scan.shadow.reference_checksums"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C at the terminal stops only the agent
    )


def _asked(
    process: "subprocess.Popen[bytes]", checksum_type: ChecksumType, window_bytes: int, data: bytes
) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(ASKED.pack(checksum_type, window_bytes, len(data)))
    process.stdin.write(data)
    process.stdin.flush()
    (length,) = ANSWERED.unpack(_read(process.stdout, ANSWERED.size))
    return _read(process.stdout, length)


def _read(pipe: IO[bytes], length_bytes: int) -> bytes:
    """Return `length_bytes` bytes from a pipe. Raise EOFError if the other end has closed it."""
    data = pipe.read(length_bytes)
    if len(data) < length_bytes:
        raise EOFError(f"{len(data)} of {length_bytes} bytes, then nothing more")
    return data


def main() -> None:
    """Answer the requests on stdin until it ends."""
    with suppress(PermissionError):  # a unit's SystemCallFilter= may refuse it
        os.nice(NICE)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    with suppress(EOFError, BrokenPipeError):
        while True:
            kind, window_bytes, length = ASKED.unpack(_read(source, ASKED.size))
            if length > CHUNK_BYTES_MAX:
                raise ValueError(f"a chunk of {length} bytes")
            data = _read(source, length)
            sums = witness_checksums(ChecksumType(kind), window_bytes, data)
            sink.write(ANSWERED.pack(len(sums)))
            sink.write(sums)
            sink.flush()


if __name__ == "__main__":
    main()
