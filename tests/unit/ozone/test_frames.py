"""Hadoop's RPC as bytes, against what a real SCM said."""

import pytest

from merkle.damaged_data import DamagedData
from ozone.clients.connection import Address, parse_addresses
from ozone.clients.frames import Failure, connection_header, context_frame, parse_answer
from suture.wire.mapping.varint import varint
from tests.support.ozone import hadoop_server
from tests.support.ozone.recorded_scm import recorded


def told() -> list[bytes]:
    """Return answers of each kind, the shortest."""
    answers = recorded("scm").values()
    failed = next(answer for answer in answers if b"ContainerNotFound" in answer)
    return [*sorted(answers, key=len)[:3], failed]


def test_truncated_scm_answer_is_damaged() -> None:
    """No part of a truncated answer is used, wherever it ends."""
    for frame in told():
        assert 0 <= parse_answer(frame).call_id
        for end in range(len(frame)):
            with pytest.raises(DamagedData):
                parse_answer(frame[:end])
    with pytest.raises(DamagedData, match="9 bytes breaks off at byte 0"):
        parse_answer(b"\xff" * 9)  # a length that does not end


def test_bytes_behind_an_answer_are_not_passed_over() -> None:
    """
    A frame is one answer.
    """
    with pytest.raises(DamagedData, match="in a frame with"):
        parse_answer(told()[0] + b"\x00")


def test_a_failure_names_the_exception_and_its_first_line() -> None:
    """The rest of the text is a stack trace of the SCM."""
    frame = next(a for a in recorded("scm").values() if b"Container #999 not found\n" in a)

    failure = parse_answer(frame).failure

    assert isinstance(failure, Failure)
    assert ("ContainerNotFoundException", "Container #999 not found") == (
        failure.name,
        failure.text,
    )
    assert not failure.is_fatal


def test_a_failure_of_the_connection_has_no_call() -> None:
    """
    Its number is negative, and travels as an unsigned one of 32 bits.
    """
    frame = hadoop_server.failure(-3, hadoop_server.NO_ACCESS, "no", status=2, detail=15)

    answer = parse_answer(frame)

    assert -3 == answer.call_id
    assert answer.failure == Failure(hadoop_server.NO_ACCESS, "no", True, True)


def test_an_answer_to_no_call_is_none() -> None:
    """An empty header is valid for protobuf and has no content."""
    with pytest.raises(DamagedData, match="name no call"):
        parse_answer(b"\x00")


def test_a_connection_begins_as_hadoop_wants_it() -> None:
    """The bytes are written out by hand: the magic word, version 9, service class 0, SIMPLE;
    then call -3 with user and protocol.
    """
    header = b"\x08\x02\x10\x00\x18\x05\x22\x02ID\x28\x01"
    context = b"\x12\x04\x0a\x02me\x1a\x01P"

    assert connection_header(0) == b"hrpc\x09\x00\x00"
    body = bytes([len(header)]) + header + bytes([len(context)]) + context
    assert context_frame(b"ID", "me", "P") == len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    ("number", "expected"),
    [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**32 - 1, "ffffffff0f")],
)
def test_a_length_is_a_varint(number: int, expected: str) -> None:
    """
    The examples of protobuf's own description among them.
    """
    assert expected == varint(number).hex()


def test_addresses_are_told_apart() -> None:
    """An IPv6 address is parsed, and a repeated address is returned once."""
    assert (Address("a", 9860), Address("::1", 1)) == parse_addresses("a:9860, [::1]:1,a:9860")
    assert "[::1]:1" == str(Address("::1", 1))


@pytest.mark.parametrize("text", ["", "a", "a:", ":1", "a:b", "a:1,", "a:65536", "a:-1"])
def test_invalid_ozone_address_is_refused(text: str) -> None:
    """The error names the invalid part."""
    with pytest.raises(ValueError, match="HOST:PORT"):
        parse_addresses(text)
