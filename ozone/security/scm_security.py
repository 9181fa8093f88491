"""Calls to the security port of Ozone's SCM: its CA, and the secret keys that sign tokens.

One of several SCMs is the leader. If an SCM is not the leader or does not answer, the call is sent
to the next SCM. Each call opens its own connection, because calls are rare.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from google.protobuf.message import DecodeError

from ozone.clients.authentication import Identity
from ozone.clients.connection import Address, Connection
from ozone.clients.frames import Answer, Method
from ozone.messages import security_pb2
from ozone.security.tokens import ALGORITHMS, SecretKey, uuid_message, uuid_of
from suture.errors import Code, RefusedError, UnavailableError
from suture.observe.terminal_escape import printable

CA_PROTOCOL: Final = "org.apache.hadoop.hdds.protocol.SCMSecurityProtocol"
KEYS_PROTOCOL: Final = "org.apache.hadoop.hdds.protocol.SecretKeyProtocolDatanode"
SECURITY_PORT: Final = ("security.service", 9961)
METHOD: Final = "submitRequest"
VERSION: Final = 1
TIMEOUT_S: Final = 20.0
CLIENT_ID_BYTES: Final = 16
SAID_CHARS_MAX: Final = 300
OK: Final = 1
CERTIFY_DATANODE: Final = 1
LIST_CA: Final = 8
CURRENT_KEY: Final = 1
NAMED_KEY: Final = 2
PORT_HINT: Final = "the port is that of ozone.scm.security.service.address, by default 9961"
ELSEWHERE: Final = frozenset(
    {"ServerNotLeaderException", "NotLeaderException", "LeaderNotReadyException"}
)


@dataclass(frozen=True, slots=True)
class ScmSecurity:
    """A client of the security service of a cluster. Thread-safe.

    Every call that fails raises RefusedError or UnavailableError.
    """

    addresses: Sequence[Address]
    identity: Identity

    def ca_certificates(self) -> list[str]:
        """Return the certificates of the root CA and of each SCM (PEM)."""
        request = security_pb2.CertificateRequest(kind=LIST_CA, list_ca_certificates={})
        response = self._call(CA_PROTOCOL, request, security_pb2.CertificateResponse)
        return list(response.listed.certificates)

    def certify(self, datanode: Any, csr: str) -> str:
        """Return the certificate for a signing request (`csr`), with its issuers (PEM)."""
        request = security_pb2.CertificateRequest(
            kind=CERTIFY_DATANODE, certify_datanode={"datanode": datanode, "csr": csr}
        )
        response = self._call(CA_PROTOCOL, request, security_pb2.CertificateResponse)
        chain: str = response.certified.certificate
        return chain

    def current_key(self) -> SecretKey:
        """Return the secret key that signs tokens now."""
        request = security_pb2.SecretKeyRequest(kind=CURRENT_KEY)
        response = self._call(KEYS_PROTOCOL, request, security_pb2.SecretKeyResponse)
        return _key_of(response.current.key)

    def key(self, key_id: UUID) -> SecretKey | None:
        """Return the secret key with this id, or None if the SCM has none."""
        request = security_pb2.SecretKeyRequest(kind=NAMED_KEY, get={"id": uuid_message(key_id)})
        response = self._call(KEYS_PROTOCOL, request, security_pb2.SecretKeyResponse)
        return _key_of(response.named.key) if response.named.HasField("key") else None

    def _call(self, protocol: str, request: Any, kind: Any) -> Any:
        """Send a request to the SCMs, one after the other, until one answers. Return its answer."""
        failures: list[str] = []
        for address in self.addresses:
            try:
                answer = self._asked(address, protocol, request)
            except UnavailableError as error:
                failures.append(str(error))
                continue
            if answer.failure is None:
                return _response(address, answer, kind)
            failure = answer.failure
            said = f"{address}: {failure.name}: {printable(failure.text[:SAID_CHARS_MAX])}"
            if failure.name not in ELSEWHERE:
                raise RefusedError(Code.PERMISSION_DENIED, said)
            failures.append(said)
        raise UnavailableError(
            Code.UNAVAILABLE, f"no SCM answered on its security port: {'; '.join(failures)}"
        )

    def _asked(self, address: Address, protocol: str, request: Any) -> Answer:
        client_id = os.urandom(CLIENT_ID_BYTES)
        connection = Connection(
            address,
            self.identity,
            client_id=client_id,
            protocol=protocol,
            timeout_s=TIMEOUT_S,
            hint=PORT_HINT,
        )
        try:
            connection.send(Method.of(client_id, protocol, METHOD, VERSION).frame(0, request))
            return connection.receive()
        finally:
            connection.close()


def _response(address: Address, answer: Answer, kind: Any) -> Any:
    try:
        response = kind.FromString(answer.body)
    except DecodeError as error:
        raise RefusedError(
            Code.MALFORMED_REQUEST, f"{address} sent {len(answer.body)} bytes that are no response"
        ) from error
    if response.status != OK:
        said = printable(response.message[:SAID_CHARS_MAX]) or f"status {response.status}"
        raise UnavailableError(Code.UNAVAILABLE, f"{address} refused: {said}")
    return response


def _key_of(message: Any) -> SecretKey:
    """Return the secret key in a message. Raise RefusedError if its algorithm is unknown."""
    if message.algorithm not in ALGORITHMS or not message.key:
        raise RefusedError(
            Code.NO_SUCH_ALGORITHM,
            f"secret key {uuid_of(message.id)} is for {message.algorithm!r}, which is unknown",
        )
    return SecretKey(
        uuid_of(message.id),
        message.created_ms,
        message.expires_ms,
        message.algorithm,
        message.key,
    )
