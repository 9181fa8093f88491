"""A Kerberos KDC (MIT's krb5kdc), and a relay that makes an insecure server a secure SCM.

The relay authenticates the caller with MIT's library, and passes the frames on to the server. It
sends answers in parts that do not end at the ends of frames, as Hadoop's servers may.
"""

import importlib.util
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.ozone.hadoop_server import (
    GREETING,
    HadoopServer,
    exactly,
    fields_of,
    frame_of,
    framed,
    number_field,
    read_varint,
    text_field,
    varint,
)
from tests.support.waiting import wait_until

REALM: Final = "SUTURE.TEST"
SCM: Final = f"scm/localhost@{REALM}"
SECURE_GREETING: Final = b"hrpc\x09\x00\xdf"
CALL: Final = 2**32 - 33
BUFFER_BYTES: Final = 65_536
PART_BYTES: Final = 10_000  # size of the parts of an answer, unrelated to the sizes of frames
PROGRAMS: Final = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
CONF: Final = """[libdefaults]
 default_realm = {realm}
 udp_preference_limit = 1
 dns_lookup_kdc = false
 rdns = false
 dns_canonicalize_hostname = false
[realms]
 {realm} = {{
  kdc = 127.0.0.1:{port}
 }}
[domain_realm]
 localhost = {realm}
"""
KDC_CONF: Final = """[kdcdefaults]
 kdc_listen = ""
 kdc_tcp_listen = 127.0.0.1:{port}
[realms]
 {realm} = {{
  database_name = {place}/principal
  key_stash_file = {place}/stash
  acl_file = {place}/acl
 }}
"""


@dataclass(frozen=True, slots=True)
class Kdc:
    """A running KDC, with its files below `place`."""

    place: Path
    environment: dict[str, str]

    def keytab(self, principal: str) -> Path:
        """Create a principal; return its keytab."""
        path = self.place / f"{principal.partition('@')[0].replace('/', '-')}.keytab"
        self.run("kadmin.local", "-q", f"addprinc -randkey {principal}")
        self.run("kadmin.local", "-q", f"ktadd -k {path} {principal}")
        return path

    def run(self, name: str, *words: str) -> None:
        """Run a program of Kerberos."""
        program = _program(name)
        assert program is not None
        done = subprocess.run(
            [program, *words], env=self.environment, capture_output=True, text=True, check=False
        )
        assert not done.returncode, done.stdout + done.stderr


def missing_programs() -> list[str]:
    """Return the programs and packages of Kerberos that are not installed."""
    missing = [name for name in PROGRAMS if _program(name) is None]
    return missing + ([] if importlib.util.find_spec("gssapi") else ["gssapi"])


@contextmanager
def kdc_in(place: Path) -> Iterator[Kdc]:
    """Run a KDC; skip the test if it is not installed."""
    if missing := missing_programs():
        pytest.skip(f"Kerberos is not installed: {', '.join(missing)}")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    (place / "krb5.conf").write_text(CONF.format(realm=REALM, port=port))
    (place / "kdc.conf").write_text(KDC_CONF.format(realm=REALM, port=port, place=place))
    (place / "acl").write_text("")
    environment = os.environ | {
        "KRB5_CONFIG": str(place / "krb5.conf"),
        "KRB5_KDC_PROFILE": str(place / "kdc.conf"),
        "KRB5CCNAME": f"FILE:{place / 'cache'}",
        "KRB5RCACHENAME": "none:",
    }
    kdc = Kdc(place, environment)
    kdc.run("kdb5_util", "create", "-s", "-r", REALM, "-P", "secret")
    program = _program("krb5kdc")
    assert program is not None
    with (place / "kdc.log").open("w") as log:
        process = subprocess.Popen([program, "-n"], env=environment, stdout=log, stderr=log)
    try:
        wait_until(lambda: _answers(port), within_s=30)
        yield kdc
    finally:
        process.kill()
        process.wait()


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@dataclass
class KerberizedPort(HadoopServer):
    """A relay that authenticates callers by Kerberos. `levels` has the bits of the protection
    levels that it offers. If `spoils`, it damages the data tokens that it sends.
    """

    target: str
    keytab: Path
    levels: int
    name: tuple[str, str] = ("scm", "localhost")
    spoils: bool = False
    tokens: list[bytes] = field(default_factory=list)
    """The received data tokens of callers."""
    callers: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.listen()
        self.address = self.address.replace("127.0.0.1", "localhost")

    def serve(self, opened: socket.socket, stream: Any) -> None:
        """Authenticate the caller, then pass its frames on."""
        import gssapi

        assert exactly(stream, len(SECURE_GREETING)) == SECURE_GREETING
        assert _message(stream) == {2: 1}  # NEGOTIATE
        service, host = self.name
        auth = text_field(1, "KERBEROS") + text_field(2, "GSSAPI")
        auth += text_field(3, service) + text_field(4, host)
        _say(opened, number_field(2, 1) + varint(4 << 3 | 2) + varint(len(auth)) + auth)
        context = gssapi.SecurityContext(
            creds=gssapi.Credentials(usage="accept", store={"keytab": f"FILE:{self.keytab}"}),
            usage="accept",
        )
        message = _message(stream)
        assert message[2] == 2  # INITIATE
        while not context.complete:
            _say(opened, number_field(2, 3) + _token(context.step(message[3]) or b""))
            message = _message(stream)
        assert message == {2: 4, 3: b""}
        offer = bytes([self.levels]) + BUFFER_BYTES.to_bytes(3, "big")
        _say(opened, number_field(2, 3) + _token(context.wrap(offer, False).message))
        choice = context.unwrap(_message(stream)[3]).message
        _say(opened, number_field(2, 0))
        self.callers.append(str(context.initiator_name))
        self._pass_on(opened, stream, context, choice[0])

    def _pass_on(self, opened: socket.socket, stream: Any, context: Any, level: int) -> None:
        host, _, port = self.target.rpartition(":")
        inner = socket.create_connection((host, int(port)))
        self._sockets.append(inner)
        inner.sendall(GREETING)
        self._start(self._answer, opened, inner, context, level)
        while True:
            if level == 1:
                inner.sendall(exactly(stream, 1) + stream.read1(65_536))
                continue
            message = _message(stream)
            assert message[2] == 5  # WRAP
            self.tokens.append(message[3])
            data = context.unwrap(message[3])
            assert data.encrypted is (level == 4)
            inner.sendall(data.message)

    def _answer(
        self, opened: socket.socket, inner: socket.socket, context: Any, level: int
    ) -> None:
        with suppress(OSError):
            while data := inner.recv(PART_BYTES):
                if level == 1:
                    opened.sendall(data)
                    continue
                token = bytearray(context.wrap(data, level == 4).message)
                if self.spoils:
                    token[-1] ^= 1
                _say(opened, number_field(2, 5) + _token(bytes(token)))
        with suppress(OSError):
            opened.shutdown(socket.SHUT_RDWR)


@contextmanager
def kerberized(target: str, keytab: Path, levels: int, **more: Any) -> Iterator[KerberizedPort]:
    """Run a `KerberizedPort` in front of the server `target`, and yield it."""
    port = KerberizedPort(target, keytab, levels, **more)
    try:
        yield port
    finally:
        port.close()


def _token(data: bytes) -> bytes:
    return varint(3 << 3 | 2) + varint(len(data)) + data


def _message(stream: Any) -> dict[int, Any]:
    """Return the fields of the next message of the exchange."""
    frame = frame_of(stream)
    assert len(frame) <= BUFFER_BYTES + 200, "Hadoop's server would refuse it"
    header_bytes, at = read_varint(frame, 0)
    assert fields_of(frame[at : at + header_bytes])[3] == 65  # -33 as a zigzag number
    body_bytes, begin = read_varint(frame, at + header_bytes)
    assert begin + body_bytes == len(frame)
    return dict(fields_of(frame[begin:]))


def _say(opened: socket.socket, body: bytes) -> None:
    header = number_field(1, CALL) + number_field(2, 0) + number_field(3, 9)
    frame = varint(len(header)) + header + varint(len(body)) + body
    opened.sendall(framed(frame))
