"""A secure cluster of Apache Ozone: Kerberos, TLS and tokens, with the commands and an agent.

    export     at each level of hadoop.rpc.protection; refused below the required level
    repair     a stopped datanode's volume, from peers over TLS with tokens
    agent      gets a certificate, and a container that a datanode of Ozone pushes to it
    tokens     the agent answers right and wrong tokens as a datanode of Ozone does
    reconcile  refused for a user, ordered for an administrator; it heals the agent's copy
    read       Ozone's client reads the key from the agent alone

The SCM rotates the secret keys each minute.
Exits 1 if a check fails. Exits 0 also if no cluster is available, and prints the reason.
INTEROP_KEEP names a directory for the files of a failed trial.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import grpc

from merkle.replica import ContainerId
from ozone.clients.site_config import read_site_config
from ozone.security.datanode_access import scm_security
from suture.errors import SutureError
from suture.wire.clients.peer import Peer
from tests.support.ozone.kerberos import REALM
from tests.support.ozone.ozone_wire import COMMANDS, RESULTS, WIRE
from tests.support.ozone.token_cases import Signer, TokenCase, body_of, right, wrong
from tools.interop.agents import Agent, Scm, Steps, awaited
from tools.interop.cluster import Block, PrerequisiteMissing, build
from tools.interop.secure_site import ADMIN, LEVELS, PROTECTION, USER, secured
from tools.interop.site import OzoneProcessCluster

SUTURE: Final = Path(sys.executable).parent / "suture"
VERIFY: Final = Path(sys.executable).parent / "suture-verify"
SEND: Final = "/hadoop.hdds.datanode.XceiverClientProtocolService/send"
DATANODES: Final = 3
KEY: Final = ("key", 3_000_000, 1)  # name, bytes, seed
ENVELOPE: Final = frozenset({"cmdType", "traceID", "result", "message", "clientId", "callId"})
DEAD_S: Final = 240.0  # a dead datanode is noticed, then its container is copied


@contextmanager
def running(place: Path) -> Iterator["SecureTrial"]:
    """Run a secure cluster. Raise PrerequisiteMissing if it cannot be started."""
    with ExitStack() as ends:
        security = ends.enter_context(secured(place))
        site = OzoneProcessCluster(build(), place, DATANODES, security=security)
        ends.callback(site.close)
        site.scm.settings = {**site.scm.settings, PROTECTION: LEVELS[0]}
        site.begin()
        yield SecureTrial(site, place)


class SecureTrial(Steps):
    """A trial with one secure cluster. Each step is a method."""

    def __init__(self, site: OzoneProcessCluster, place: Path) -> None:
        super().__init__()
        self.site = site
        self._place = place
        self._address = site.security.address
        self._conf = site.datanodes[0].place
        self._security = scm_security(read_site_config(self._conf))
        self._scm = Scm(site.port_of("ozone.scm.client.address"), site.security.identity())
        self._block: Block = (0, 0)
        self._keys = {self._security.current_key().key_id}

    def write(self) -> None:
        """Write a key, and wait until its container is closed on all datanodes."""
        (self._block,) = self.site.client.write("write", *KEY)
        self.site.client.tell(f"close {self._block[0]}")
        awaited("three closed replicas", lambda: self._equal() == DATANODES)
        self.tell("a key written, its container closed", f"{DATANODES} equal replicas", True)

    def _equal(self) -> int:
        """Return the number of CLOSED replicas if all have the same root; otherwise 0."""
        try:
            replicas = self._scm.replicas(self._block[0]).values()
        except SutureError:
            return 0  # the SCM restarts
        is_equal = len(set(replicas)) == 1 and next(iter(replicas))[0] == "CLOSED"
        return len(replicas) if is_equal else 0

    def export(self) -> None:
        """Run `suture ozone export` once per protection level, with an SCM that offers only this
        level. The export must fail if the client requires a higher level."""
        said = self._as(USER, "export", "--to", self._place / "no", conf=self._files(LEVELS[-1]))
        self._judge("export, if privacy is required", said, 1, "privacy is required")
        for level in LEVELS:
            if level != LEVELS[0]:
                self._restart_scm(level)
            awaited("three replicas", lambda: self._equal() == DATANODES)
            to = ["--to", self._place / f"snapshot-{level}"]
            said = self._as(USER, "export", *to, conf=self._files(level))
            self._judge(f"export at level {level}", said, 0, f"{DATANODES} replicas")

    def _files(self, level: str) -> Path:
        """Write the configuration of a client that requires a protection level; return its
        directory."""
        client = replace(self.site.scm, place=self._place / f"conf-{level}")
        client.settings = {**client.settings, PROTECTION: level}
        client.configure()
        return client.place

    def _restart_scm(self, level: str) -> None:
        scm = self.site.scm
        scm.kill()
        scm.settings = {**scm.settings, PROTECTION: level}
        scm.configure()
        scm.start()

    def _as(
        self, name: str, *words: object, conf: Path | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command of `suture ozone` as a principal."""
        keytab = self.site.security.keytabs[name]
        login = ["--principal", f"{name}@{REALM}", "--keytab", keytab]
        return _run(SUTURE, "ozone", *words, "--ozone-conf", conf or self._conf, *login)

    def _judge(
        self, what: str, done: "subprocess.CompletedProcess[str]", code: int, text: str
    ) -> None:
        """Add a row about a command: it must have ended with `code` and printed `text`."""
        said = " ".join((done.stdout + done.stderr).split())
        shown = said[max(said.find(text) - 60, 0) :][:120]
        self.tell(
            what, f"exit code {done.returncode}: {shown}", done.returncode == code and text in said
        )

    def repair(self) -> None:
        """Stop a datanode, damage and repair its volume, and read the key from this datanode
        alone."""
        container, block = self._block
        stopped, *others = self.site.datanodes
        stopped.kill()
        data = stopped.place / "data"
        (file,) = data.glob(f"hdds/*/current/*/{container}/chunks/{block}.block")
        whole = file.read_bytes()
        file.write_bytes(whole[:70_000] + bytes(octet ^ 1 for octet in whole[70_000:70_006])
                         + whole[70_006:])  # fmt: skip
        peers = [f"--peer={self._address}:{self.site.ports_of(index)[0]}" for index in (1, 2)]
        words = ["ozone", "repair", data, "--container", container, *peers, "--yes",
                 "--state-dir", stopped.place / "repair"]  # fmt: skip
        self._judge("repair without the cluster's files", _run(SUTURE, *words), 3, "TLS")
        done = _run(SUTURE, *words, "--ozone-conf", self._conf)
        self._judge("repair from peers over TLS with tokens", done, 0, "is whole")
        self.tell("its bytes, compared", len(whole), file.read_bytes() == whole)
        stopped.start()
        for process in others:
            process.kill()
        self._read("Ozone's client reads the key from it alone")
        others[0].start()  # the last one stays dead

    def _read(self, what: str) -> None:
        """Read the key with Ozone's client, which may need time to find a datanode."""
        said = ""

        def is_read() -> bool:
            nonlocal said
            try:
                said = self.site.client.tell("read {} {} {}".format(*KEY))
            except RuntimeError:
                return False
            return True

        awaited(what, is_read)
        self.tell(what, said, said == "equal")

    def lead(self) -> None:
        """Start an agent, and wait until it has a copy of the dead datanode's container."""
        place, security = self._place / "agent", self.site.security
        config = security.agent_config(place, self._conf, self.site.free_port)
        agent = Agent(place, self.site.port_of("ozone.scm.datanode.address"), config)
        try:
            awaited("healthy", lambda: self._scm.node(agent.datanode_id) == "HEALTHY IN_SERVICE")
            mode = (place / "tls" / "key.pem").stat().st_mode & 0o777
            self.tell("the agent registers; mode of its key", oct(mode), mode == 0o600)
            pushed = {"action": "ImportContainer", "result": "OK", "container_id": self._block[0]}

            def pushes() -> list[dict[str, Any]]:
                return [one for one in agent.events("audit") if pushed.items() <= one.items()]

            awaited("a container is pushed", lambda: bool(pushes()), DEAD_S)
            who = pushes()[0]["who"]
            self.tell("a datanode of Ozone pushes; its certificate", who, "@" in who)
            awaited("three replicas", lambda: self._equal() == DATANODES)
            self.compare_tokens(agent)
            self.reconcile(agent)
            for process in self.site.datanodes:
                process.kill()
            self._read("Ozone's client reads the key from the agent alone")
        finally:
            code = agent.end(signal.SIGTERM)
        self.tell("SIGTERM to the agent", f"exit code {code}", code == 0)

    def compare_tokens(self, agent: Agent) -> None:
        """Send all requests of `token_cases` to the agent and to a datanode of Ozone, and compare
        the answers."""
        port = self.site.ports_of(1)[0]
        uuids = {port: uuid for uuid, port in self.site.client.datanodes().items()}
        theirs = self._answers(f"{self._address}:{port}", uuids[port])
        ours = self._answers(agent.door, agent.datanode_id)
        differ = [pair for pair in zip(theirs, ours, strict=True) if pair[0] != pair[1]]
        wrong_ones = [one for one in ours if not one.is_right]
        served = sum(one.is_served for one in wrong_ones)
        refused = sum(not one.is_served for one in ours if one.is_right)
        value = (
            f"{len(wrong_ones)} wrong ones, {served} served; {len(ours) - len(wrong_ones)} right "
            f"ones, {refused} refused; answered otherwise: {differ or 'none'}"
        )
        self.tell("tokens at the agent and at Ozone", value, not (differ or served or refused))
        self.tell("secret keys that signed", len(self._keys), len(self._keys) > 1)

    def _answers(self, target: str, datanode_id: str) -> list["TokenAnswer"]:
        """Return the answers of one server to all requests of `token_cases`."""
        key = self._security.current_key()
        self._keys.add(key.key_id)
        signer = Signer(key.key_id, key.key, int(time.time() * 1000))
        ca = "\n".join(self._security.ca_certificates()).encode()
        credentials = grpc.ssl_channel_credentials(ca)
        cases = [(case, False) for case in wrong(signer, *self._block)]
        cases += [(case, True) for case in right(signer, *self._block)]
        found = []
        with grpc.secure_channel(target, credentials) as channel:
            call: Any = channel.stream_stream(SEND)
            for case, is_right in cases:
                request = _request(case, self._block, datanode_id)
                (data,) = call(iter([request]), timeout=20)
                answer = WIRE["Response"].FromString(data)
                parts = {part.name for part, _ in answer.ListFields()} - ENVELOPE
                result = RESULTS[answer.result]
                found.append(TokenAnswer(case.name, case.command, is_right, result, bool(parts)))
        return found

    def reconcile(self, agent: Agent) -> None:
        """Damage the agent's copy. An export, a verification and a reconcile must repair it if an
        administrator runs them."""
        container_id, file = self._block[0], agent.file(*self._block)
        whole = file.read_bytes()
        file.write_bytes(whole[:4096] + bytes(4096) + whole[8192:])
        self.site.client.tell("unmanage")  # the SCM would replace the copy first
        with Peer(agent.address) as peer:
            list(peer.scan(ContainerId(container_id), full_speed=True))
        mine = agent.datanode_id
        awaited(
            "UNHEALTHY at the SCM", lambda: self._scm.replicas(container_id)[mine][0] == "UNHEALTHY"
        )
        snapshot, results = self._place / "snapshot", self._place / "results"
        self._judge("export", self._as(USER, "export", "--to", snapshot), 0, "4 datanodes")
        done = _run(VERIFY, snapshot, "--out", results)
        self._judge("suture-verify", done, 2, "to reconcile: 1")
        (run,) = results.glob("run_id=*")
        said = self._as(USER, "reconcile", run, "--yes")
        self._judge("reconcile as a user", said, 2, "Access denied")
        refused = not agent.events("replica_reconciled")
        self.tell("the agent got no order", refused, refused)
        said = self._as(ADMIN, "reconcile", run, "--yes")
        self._judge("reconcile as an administrator", said, 0, "1 ORDERED")
        awaited("the agent reconciles", lambda: bool(agent.events("replica_reconciled")))
        awaited("three replicas", lambda: self._equal() == DATANODES)
        fetched = agent.events("replica_reconciled")[0]["fetched_bytes"]
        healed = file.read_bytes() == whole
        self.tell("healed from Ozone's datanodes, over TLS", f"{fetched} bytes fetched", healed)


@dataclass(frozen=True, slots=True)
class TokenAnswer:
    """The answer to a request of `token_cases`. If `is_served`, the answer has more than a result
    code and a text."""

    case: str
    command: str
    is_right: bool
    result: str
    is_served: bool


def _request(case: TokenCase, block: Block, datanode_id: str) -> bytes:
    more = {} if case.token is None else {"encodedToken": case.token}
    request = WIRE["Request"](
        cmdType=COMMANDS[case.command],
        containerID=block[0],
        datanodeUuid=datanode_id,
        **{case.command: body_of(case.command, *block)},
        **more,
    )
    data: bytes = request.SerializeToString()
    return data


def _run(*words: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)


def conduct() -> bool:
    """Run the trial; return True if all checks pass."""
    with tempfile.TemporaryDirectory(prefix="interop-") as name, running(Path(name)) as trial:
        try:
            for step in (trial.write, trial.export, trial.repair, trial.lead):
                step()
        except (RuntimeError, SutureError) as error:
            trial.tell("it ended early", error, False)
        if not trial.holds and "INTEROP_KEEP" in os.environ:
            shutil.copytree(name, os.environ["INTEROP_KEEP"], dirs_exist_ok=True)
    return trial.holds


def main() -> int:
    """Run the trial; return the exit code."""
    try:
        return 0 if conduct() else 1
    except PrerequisiteMissing as why:
        print(f"interop: skipped: {why}")
        return 0


if __name__ == "__main__":
    sys.exit(main())
