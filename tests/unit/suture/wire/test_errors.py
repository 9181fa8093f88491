"""Errors across the wire."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_status import rpc_status

from suture.errors import Code, RefusedError, SutureError, UnavailableError, VolumeFailed
from suture.runtime.middleware import MiddlewareStack
from suture.wire.mapping.errors import (
    FACTS_MAX,
    GRPC_CODES,
    ErrorStatusMiddleware,
    error_class,
    error_from,
    to_status,
)

ERRORS = Path(__file__).parents[4] / "docs" / "ERRORS.md"


class ReturnedCall(grpc.RpcError, grpc.Call):  # type: ignore[misc]
    """A failed call as a client sees it, made from what a server sends."""

    def __init__(self, code: grpc.StatusCode, details: str, trailers: object = ()) -> None:
        self._code, self._details, self._trailers = code, details, trailers

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> object:
        return self._trailers


def returned(error: SutureError) -> SutureError:
    """Send an error over the wire and back."""
    status = rpc_status.to_status(to_status(error))
    return error_from(ReturnedCall(status.code, status.details, status.trailing_metadata))


class TestRoundTrip:
    @pytest.mark.parametrize("code", list(Code))
    def test_every_code_comes_back_as_itself(self, code: Code) -> None:
        """Class, code, message, hint and facts survive the wire."""
        sent = error_class(code)(code, "message", hint="do this", container_id=7, offset=9)

        got = returned(sent)

        assert (type(sent), code, "message", "do this") == (type(got), got.code, str(got), got.hint)
        assert {"container_id": "7", "offset": "9"} == got.facts

    def test_error_class_follows_from_the_error_code(self) -> None:
        """A busy call may be retried, a malformed one may not, and a bad volume is left alone."""
        assert [UnavailableError, RefusedError, VolumeFailed] == [
            error_class(code) for code in (Code.BUSY, Code.MALFORMED_REQUEST, Code.IO_EXCEPTION)
        ]

    def test_long_texts_are_cut_to_what_a_trailer_carries(self) -> None:
        """A status never outgrows the 8 KiB that HTTP/2 peers allow, whatever its facts."""
        facts = {f"fact{number}": "ü" * 10_000 for number in range(100)}
        sent = RefusedError(Code.MALFORMED_REQUEST, "é" * 10_000, hint="h" * 10_000, **facts)

        status = rpc_status.to_status(to_status(sent))
        got = returned(sent)

        assert FACTS_MAX == len(got.facts)
        assert sum(len(value) for _, value in status.trailing_metadata) < 5 * 1024

    def test_a_file_name_that_is_no_unicode_can_be_told(self) -> None:
        """Names from a disk may hold anything; telling them must not fail."""
        assert "?" in str(returned(RefusedError(Code.MALFORMED_REQUEST, "file \udcff")))


class TestForeignStatus:
    @pytest.mark.parametrize(
        ("code", "details", "expected"),
        [
            (grpc.StatusCode.UNAVAILABLE, "connection refused", UnavailableError),
            (grpc.StatusCode.DEADLINE_EXCEEDED, "", UnavailableError),
            (grpc.StatusCode.CANCELLED, "", UnavailableError),
            (
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "Concurrent RPC limit exceeded!",
                UnavailableError,
            ),
            (grpc.StatusCode.RESOURCE_EXHAUSTED, "message larger than max (9 vs. 4)", RefusedError),
            (grpc.StatusCode.UNIMPLEMENTED, "Method not found!", RefusedError),
            (grpc.StatusCode.INTERNAL, "", RefusedError),
        ],
    )
    def test_a_status_of_grpc_itself_says_what_to_do(
        self, code: grpc.StatusCode, details: str, expected: type[SutureError]
    ) -> None:
        """No connection may be tried again, a too large message may not."""
        assert expected is type(error_from(ReturnedCall(code, details)))

    @pytest.mark.parametrize(
        ("details", "expected"),
        [
            ("Stream removed (RST_STREAM (Received RST_STREAM with error code 7))", Code.BUSY),
            ("Received RST_STREAM with error code 7", Code.BUSY),
            ("Received RST_STREAM with error code 2", Code.UNAVAILABLE),
            ("Socket closed", Code.UNAVAILABLE),
        ],
    )
    def test_a_stream_that_is_refused_is_one_too_many(self, details: str, expected: Code) -> None:
        """HTTP/2 has no other word for a busy server: nothing was taken of the call."""
        got = error_from(ReturnedCall(grpc.StatusCode.UNAVAILABLE, details), "the SCM at scm1:9860")

        assert (UnavailableError, expected) == (type(got), got.code)
        assert str(got).startswith(f"the SCM at scm1:9860 is {expected.lower()}: ")

    def test_an_unknown_reason_is_refused(self) -> None:
        """A newer server may know codes that we do not."""
        status = to_status(RefusedError(Code.BUSY, "x"))
        status.details[0].value = status.details[0].value.replace(b"BUSY", b"BUZZ")
        sent = rpc_status.to_status(status)

        got = error_from(ReturnedCall(sent.code, sent.details, sent.trailing_metadata))

        assert (RefusedError, Code.CONTAINER_INTERNAL_ERROR) == (type(got), got.code)


Behavior = Callable[[bytes, grpc.ServicerContext], bytes]


def served(behavior: Behavior) -> Iterator[grpc.Channel]:
    """Serve one method behind the edge and yield a channel to it."""
    handler = grpc.unary_unary_rpc_method_handler(behavior, bytes, bytes)
    with ThreadPoolExecutor(2) as executor:
        methods = MiddlewareStack([ErrorStatusMiddleware()])
        methods.add_service("suture.v1.Test", {"Do": handler})
        server = grpc.server(executor, handlers=[methods])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
        server.stop(0).wait()


class TestEdge:
    def test_a_defect_leaves_no_trace_of_values(self) -> None:
        """Details of an unexpected exception stay in the log of the server."""

        def defect(_request: bytes, _context: grpc.ServicerContext) -> bytes:
            raise FileNotFoundError("/data/secret/path")

        for channel in served(defect):
            with pytest.raises(grpc.RpcError) as raised:
                channel.unary_unary("/suture.v1.Test/Do")(b"", timeout=5)

        error = error_from(raised.value)
        assert (RefusedError, Code.CONTAINER_INTERNAL_ERROR) == (type(error), error.code)
        assert "secret" not in str(raised.value)
        assert "secret" not in repr(error.facts) + error.hint

    def test_an_error_on_purpose_arrives_as_it_was_raised(self) -> None:
        """The handler's words are the caller's words."""

        def refuse(_request: bytes, _context: grpc.ServicerContext) -> bytes:
            raise RefusedError(Code.CHUNK_GAP, "hole before 7", container_id=1)

        for channel in served(refuse):
            with pytest.raises(grpc.RpcError) as raised:
                channel.unary_unary("/suture.v1.Test/Do")(b"", timeout=5)

        error = error_from(raised.value)
        assert (Code.CHUNK_GAP, "hole before 7") == (error.code, str(error))
        assert grpc.StatusCode.FAILED_PRECONDITION is raised.value.code()


class TestDocument:
    def test_the_table_of_codes_is_that_of_the_code(self) -> None:
        """docs/ERRORS.md names every code with its gRPC status and what to do."""
        row = re.compile(r"^\| `([A-Z_]+)` \| `([A-Z_]+)` \| (\w+) \| [A-Z].+\. \|$", re.MULTILINE)

        expected = sorted(
            (code.value, status.name, error_class(code).__name__)
            for code, status in GRPC_CODES.items()
        )
        assert expected == row.findall(ERRORS.read_text())
