"""The `suture-agent` program: startup, operation and shutdown of the agent.

The program loads the config and reads the datanode id from the volumes or, if they have none, from
the SCM. Then it opens and recovers the store, and starts the server and the worker threads. At
shutdown, it stops them in reverse order.
"""

import os

# gRPC reads this variable at import. By default, gRPC's core logs each failed handshake as text.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import faulthandler
import random
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import cycle
from pathlib import Path
from typing import Annotated, Final

import structlog
import typer

from agent.config.loading import load
from agent.config.options import AgentConfig
from agent.config.ozone import ozone_scms
from agent.host.datanode_identity import DatanodeIdentity
from agent.host.external_control_plane import ExternalControlPlane
from agent.host.host import AgentProcess
from agent.host.protocol_servers import MakeServer
from agent.host.report_export import check_export
from agent.store.volumes.identity import remembered
from agent.store.volumes.volume_registry import check_first_start
from merkle.second_checksum import witness_is_native
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.observe import logs
from suture.observe.listening import announce_listening
from suture.observe.terminal_escape import printable
from suture.runtime import memory
from suture.runtime.exit_codes import ExitCode
from suture.runtime.gil_tuning import freeze_what_stays, set_switch_interval
from suture.runtime.sd_notify import SystemdNotifier
from suture.runtime.stop_request import StopRequest, run_server
from suture.terminal.command_help import SectionedCommand
from suture.terminal.typer_options import flag, option, version_flag
from suture.wire.clients.scm import ScmClient
from suture.wire.security.caller import Role, check_own, identity_of
from suture.wire.security.tls import Security, TlsFiles, TlsMaterial, load_security
from suture.wire.server.descriptors import raise_limit
from suture.wire.v1 import scm_pb2

RETRY_S: Final = 1.0
DECOMMISSIONED: Final = "DECOMMISSIONED"
HEALTHY: Final = "HEALTHY"
HELP: Final = {"help_option_names": ["-h", "--help"]}

log = structlog.get_logger()
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def security_of(config: AgentConfig) -> Security:
    """Load this agent's certificates and key from the files that the config names.

    Raise RefusedError if the certificates are invalid.
    """
    tls = config.tls
    files = None
    if tls.certificate is not None and tls.key is not None and tls.ca is not None:
        files = TlsFiles(tls.certificate, tls.key, tls.ca)

    def inspect(material: TlsMaterial) -> None:
        check_own(material.certificate, Role.PEER, time.time())

    return load_security(files, allow_plaintext=tls.allow_plaintext, inspect=inspect)


def node_of(security: Security) -> str:
    """Return the datanode id in this agent's certificate; "" if the certificate has none."""
    if security.certificates is None:
        return ""
    return identity_of(security.certificates.material.certificate).node_id


def who_am_i(
    config: AgentConfig,
    scms: Sequence[ScmClient | ExternalControlPlane],
    stop: StopRequest,
    certified_id: str = "",
) -> DatanodeIdentity | None:
    """Return the datanode id and cluster id of this agent.

    The ids are read from the volumes. If the volumes have no ids yet, the agent joins the SCM's
    cluster. It uses the datanode id in its certificate, or a random id without a certificate. If no
    volume is readable, the ids are read from the SCM's records (`known_at`), because a host that
    lost its only disk must be able to report the loss. The function waits until an SCM answers, and
    returns None if `stop` is set before that.

    Raise RefusedError if the certificate is for another datanode than the volumes, or if all
    volumes are empty although the SCM has records of replicas on them. Raise the disk's error if no
    volume is readable and the SCM has no record of this datanode.
    """
    unreadable: SutureError | None = None
    try:
        known = remembered(config.storage.volumes)
    except SutureError as error:
        if error.code is Code.BUSY:
            raise
        known, unreadable = None, error
    if known is not None:
        if certified_id not in {"", known.datanode_id}:
            raise RefusedError(
                Code.WRONG_DATANODE,
                f"cannot start: the certificate is for datanode {certified_id}, the volumes "
                f"belong to {known.datanode_id}",
                hint=f"suture tls issue --role peer --node {known.datanode_id}",
            )
        return DatanodeIdentity(known.datanode_id, known.cluster_id)
    told = False
    for scm in cycle(scms):
        if stop.is_set():
            break
        try:
            if unreadable is not None:
                return known_at(scm, config, certified_id, unreadable)
            cluster_id = cluster_at(scm, config, certified_id)
            return DatanodeIdentity(certified_id or str(uuid.uuid4()), cluster_id)
        except UnavailableError as error:
            if not told:
                log.warning("waiting_for_scm", scm=scm.address, error=str(error))
            told = True
        stop.wait(RETRY_S)
    return None


def known_at(
    scm: ScmClient | ExternalControlPlane,
    config: AgentConfig,
    certified_id: str,
    unreadable: SutureError,
) -> DatanodeIdentity:
    """Return this agent's ids from the control plane's records, because no volume is readable.

    The record is found by the certificate's id or, without a certificate, by this agent's address.
    If several records match, the one with the latest heartbeat is used. Raise `unreadable` if no
    record matches. Without a certificate, raise UnavailableError if the recorded datanode still
    sends heartbeats, because the record then belongs to another process with the same address.
    """
    if not isinstance(scm, ScmClient):
        raise unreadable
    answer = scm.list_nodes(scm_pb2.ListNodesRequest())
    address = config.node.advertise or config.node.listen
    known = [
        node
        for node in answer.nodes
        if (node.datanode_id == certified_id if certified_id else node.address == address)
        and node.op_state != DECOMMISSIONED
    ]
    if not known:
        raise unreadable
    node = max(known, key=lambda one: one.last_heartbeat_at_ms)
    if node.health == HEALTHY and not certified_id:
        raise UnavailableError(
            Code.UNAVAILABLE,
            f"{unreadable}; datanode {node.datanode_id} is still sending heartbeats from {address}",
        )
    log.warning("identity_adopted_from_scm", datanode_id=node.datanode_id, error=str(unreadable))
    return DatanodeIdentity(node.datanode_id, answer.cluster_id)


def cluster_at(
    scm: ScmClient | ExternalControlPlane, config: AgentConfig, certified_id: str
) -> str:
    """Return the id of the cluster that a new datanode joins, requested from its control plane.

    Raise UnavailableError if the control plane does not answer. Raise RefusedError if the control
    plane has records of replicas on this agent's volumes, although these volumes are empty.
    """
    if not isinstance(scm, ScmClient):
        return scm.cluster_id()
    answer = scm.list_nodes(scm_pb2.ListNodesRequest())
    check_first_start(config.storage.volumes, replicas_elsewhere(answer, config, certified_id))
    return answer.cluster_id


def check_leaders(leaders: Sequence[ExternalControlPlane], who: DatanodeIdentity) -> None:
    """Raise RefusedError if a control plane of another system, for example Ozone's SCM, refuses
    this agent.

    Also raise it if the control plane belongs to another cluster than this agent's volumes. Control
    planes that do not answer are skipped.
    """
    for leader in leaders:
        try:
            theirs = leader.cluster_id()
        except UnavailableError:
            continue
        if theirs != who.cluster_id:
            raise RefusedError(
                Code.WRONG_CLUSTER,
                f"cannot join cluster {theirs} of {leader.address}: the volumes belong to "
                f"cluster {who.cluster_id}",
                hint="check node.scm",
            )


def replicas_elsewhere(
    answer: scm_pb2.ListNodesResponse, config: AgentConfig, certified_id: str
) -> str:
    """Describe the datanode that, according to the control plane, has replicas and this agent's id
    or address.

    Return "" if there is no such datanode. An agent with empty volumes must not take over the
    identity of such a datanode.
    """
    address = config.node.advertise or config.node.listen
    for node in answer.nodes:
        is_us = node.datanode_id == certified_id or node.address == address
        if is_us and node.container_count and node.op_state != DECOMMISSIONED:
            paths = ", ".join(volume.path for volume in node.volumes)
            return (
                f"datanode {node.datanode_id} at {node.address} has {node.container_count} "
                f"replicas on {paths or 'its volumes'}"
            )
    return ""


def ozone_of(
    config: AgentConfig,
) -> tuple[Sequence[MakeServer], Sequence[ExternalControlPlane]]:
    """Return functions that create the servers for Ozone, and clients of Ozone's SCMs.

    Both lists are empty if the config does not use Ozone. The modules in `ozone/` are then not
    imported.
    """
    theirs = ozone_scms(config.node.scm)
    if not (config.ozone.listen or theirs):
        return (), ()
    from ozone.wiring import make_scm_links, secure_datanode, server_factories

    secure = secure_datanode(config)
    return server_factories(config.ozone, secure), make_scm_links(theirs, secure)


def run(config_path: Path, stop: StopRequest) -> int:
    """Run the agent until `stop` is set; return its exit code."""
    if not __debug__:
        raise SystemExit("suture-agent does not run under python -O: asserts carry invariants")
    faulthandler.enable()  # prints a stack trace at a fatal signal, such as SIGBUS of a memory map
    set_switch_interval()
    memory.share_heaps()
    raise_limit()
    supervisor = SystemdNotifier()
    try:
        config = load(config_path)
        check_export(config.report)
        if not witness_is_native():
            log.warning("second_checksum_not_compiled", hint="install crcmod with its C extension")
        security = security_of(config)
        server_factories, leaders = ozone_of(config)
        own = () if leaders else config.node.scm
        scms = [ScmClient(address, security=security) for address in own]
        who = who_am_i(config, [*scms, *leaders], stop, node_of(security))
        if who is None:
            return ExitCode.OK
        check_leaders(leaders, who)
        who = replace(who, version=version("suture"), boot_id=random.getrandbits(63))
        host = AgentProcess(
            config,
            who,
            scms,
            supervisor,
            security=security,
            server_factories=server_factories,
            leaders=leaders,
        )
    except SutureError as error:
        hint = f" ({error.hint})" if error.hint else ""
        typer.echo(printable(f"suture-agent: {error}{hint}"), err=True)
        return ExitCode.FAILED
    return serve(host, supervisor, stop, who, config_path)


def reload(host: AgentProcess, supervisor: SystemdNotifier, config_path: Path) -> None:
    """Reload the config file and the certificates, and apply the options that need no restart.

    If the config file is invalid, log a warning and keep all options.
    """
    supervisor.reloading()
    host.security.reload()
    try:
        differences = host.reconfigure(load(config_path))
        log.info(
            "config_reloaded",
            changed=[name for name, is_live in differences.items() if is_live],
            needs_restart=[name for name, is_live in differences.items() if not is_live],
        )
    except SutureError as error:
        log.warning("config_reload_failed", error=str(error), hint=error.hint)
    supervisor.ready(f"serving on {host.address}")


def serve(
    host: AgentProcess,
    supervisor: SystemdNotifier,
    stop: StopRequest,
    who: DatanodeIdentity,
    config_path: Path,
) -> int:
    """Serve until `stop` is set, then shut down. Return the exit code."""
    try:
        host.start()
        freeze_what_stays()
        announce_listening(
            host.address,
            web=host.web_address,
            datanode_id=who.datanode_id,
            protocol_addresses=host.protocol_addresses,
        )
        supervisor.ready(f"serving on {host.address}")
        log.info(
            "agent_started", address=host.address, pid=os.getpid(), datanode_id=who.datanode_id
        )
        while not stop.wait_or_reload():
            reload(host, supervisor, config_path)
        supervisor.stopping("draining")
    finally:
        unfinished = host.stop()
    log.info("agent_stopped", unfinished=unfinished)
    return ExitCode.FAILED if unfinished else ExitCode.OK


@app.command(context_settings=HELP, cls=SectionedCommand)
def command(
    context: typer.Context,
    config: Annotated[Path, option("FILE", "Config file of the agent (TOML).")],
    log_level: Annotated[
        str, option("LEVEL", "Lowest level to log: debug, info, warning or error.")
    ] = "info",
    check: Annotated[
        bool, flag("Check the config file, print all options, and exit.", "--check")
    ] = False,
    _version: Annotated[bool, version_flag("suture-agent")] = False,
) -> None:
    """Run the agent on this storage host until SIGTERM.

    Exit codes:
        0: stopped as requested
        1: could not start, or could not finish its work when stopped
        64: invalid command line

    Example:
        suture-agent --config /etc/suture/agent.toml
    """
    if log_level not in logs.LEVELS:
        raise typer.BadParameter(
            f"invalid --log-level '{log_level}': expected debug, info, warning or error"
        )
    logs.configure(log_level)
    logs.redirect_stderr()
    if check:
        try:
            from suture.terminal.output import print_json  # imported late, because it loads rich

            print_json(load(config).model_dump(mode="json"))
        except SutureError as error:
            typer.echo(printable(f"suture-agent: {error}"), err=True)
            raise typer.Exit(ExitCode.FAILED) from error
        return
    raise typer.Exit(run(config, context.obj))


def main(stop: StopRequest | None = None) -> None:
    """Run the command line until `stop` is set. If `stop` is None, run until a signal arrives.

    Exit codes: 0 stopped as requested; 1 cannot start, or cannot finish running work; 64 usage.
    """
    run_server(app, stop)


if __name__ == "__main__":
    main()
