"""`suture-scm`: opens the state, serves calls, runs the periodic work, and stops cleanly.

The module creates all objects of the process. The SCM is a single node: one process owns the state
directory. While the process is down, datanodes continue to serve reads and to scan, and receive no
commands.
"""

import os

# Read when gRPC is imported: otherwise its core logs every failed handshake, and not in JSON.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import shlex
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import structlog
import typer

from scm.api.calls.control import ControlPlane
from scm.api.http_pages import HttpStatus
from scm.api.server import ScmServerLimits, build_server
from scm.api.service import ScmService
from scm.api.spark_loop import SparkLoop
from scm.state import options as scm_options
from scm.state.clock import ScmClock
from scm.state.database import StateDatabase
from scm.state.options import ScmOptions
from scm.state.page_check import check_pages
from suture.errors import Code, RefusedError, SutureError, missing_extra
from suture.observe import logs
from suture.observe.audit import AuditLog
from suture.observe.listening import announce_listening
from suture.observe.terminal_escape import printable
from suture.runtime.call_thread_pool import CallThreadPool
from suture.runtime.exit_codes import ExitCode
from suture.runtime.file_system_type import is_on_btrfs
from suture.runtime.gil_tuning import freeze_what_stays, set_switch_interval
from suture.runtime.loop import QUIET_MAX_S, ProgressMarker, WorkerLoop, WorkerLoops
from suture.runtime.memory import MemoryBudget, in_flight_bytes, limit_bytes
from suture.runtime.sd_notify import SystemdNotifier, WatchdogWorker
from suture.runtime.stop_request import StopRequest, run_server
from suture.terminal.command_help import SectionedCommand
from suture.terminal.typer_options import flag, option, version_flag
from suture.wire.mapping.addresses import check_address
from suture.wire.security.caller import Role, check_own
from suture.wire.security.tls import Security, TlsMaterial, load_security
from suture.wire.server.descriptors import connections_that_fit, raise_limit
from suture.wire.server.limited_server import BuiltServer

STOP_GRACE_S: Final = 5.0  # for calls in flight
TICK_QUIET_S_MIN: Final = 30.0  # without a finished tick for this long, the loop counts as stuck
TICKS_MISSED_MAX: Final = 10
NOTICE: Final = "single node, not highly available: while it is down, nothing is ordered"

HELP: Final = {"help_option_names": ["-h", "--help"]}
BTRFS_HINT: Final = "ext4 and XFS are supported: move the state, or never let the disk fill up"

_log = structlog.get_logger("suture.scm")
app = typer.Typer(add_completion=False, rich_markup_mode=None)


class TickThread(threading.Thread):
    """Thread that calls `ControlPlane.tick` until it is stopped.

    A SutureError is logged and the tick is repeated, because a failed write may succeed later. Any
    other error is a bug: the thread ends, and `on_death` ends the process. Otherwise, the process
    would continue without ticks, and would send no commands although it seems to run.
    """

    def __init__(
        self,
        control: ControlPlane,
        *,
        interval_s: float,
        on_death: StopRequest,
        pulse: ProgressMarker | None = None,
    ) -> None:
        super().__init__(name="ticker", daemon=True)
        self._pulse = pulse or ProgressMarker()
        self._control = control
        self._interval_s = interval_s
        self._on_death = on_death
        self._stopping = threading.Event()
        self._ticked_at_s = time.monotonic()
        self.has_failed = True

    def is_ticking(self) -> bool:
        """Return True if a call of `ControlPlane.tick` has ended recently."""
        quiet_s = time.monotonic() - self._ticked_at_s
        return quiet_s < max(TICK_QUIET_S_MIN, TICKS_MISSED_MAX * self._interval_s)

    def hung(self) -> tuple[str, ...]:
        """Return the name of this thread if it makes no progress, otherwise an empty tuple.

        The watchdog is not notified while this thread makes no progress. A tick may take long after
        a start, or when many datanodes die, so each portion of a tick counts as progress.
        """
        return (self.name,) if self._pulse.quiet_s() > QUIET_MAX_S else ()

    def run(self) -> None:
        """Call `tick` repeatedly until `stop` is called."""
        try:
            while not self._pause(self._interval_s):
                try:
                    self._control.tick(self._pause, self._look_on)
                    self._look_on()
                    self._control.note_history(self._pause)
                except SutureError as error:
                    _log.error("tick_failed", code=error.code, error=str(error))
                self._ticked_at_s = time.monotonic()
            self.has_failed = False
        finally:
            self._on_death.set()

    def _look_on(self) -> None:
        """Check due containers for at most half of the time between two ticks.

        After each portion, pause for as long as the portion took, so that waiting calls get the
        lock.
        """
        began_s = time.monotonic()
        until_s = began_s + self._interval_s / 2
        while began_s < until_s and self._control.continue_round():
            took_s = time.monotonic() - began_s
            if self._pause(took_s):
                return
            began_s = time.monotonic()

    def _pause(self, seconds: float) -> bool:
        """Record progress, and wait for `seconds`. Return True if the thread must end."""
        self._pulse.mark()
        return self._stopping.wait(seconds)

    def stop(self) -> None:
        """Stop the thread, and wait until it has ended."""
        self._stopping.set()
        self.join()


def serve(
    data: Path,
    listen: str,
    options: ScmOptions,
    stop: StopRequest,
    *,
    verify: Sequence[str] = (),
    is_cold: bool = False,
    is_new: bool = False,
) -> int:
    """Serve until `stop` is set. Return the exit code.

    `verify` is the command of the Spark job that verifies snapshots; it may be empty.
    """
    security = load_security(
        options.tls_files(), allow_plaintext=options.allow_plaintext, inspect=_check_certificate
    )
    if options.snapshot_address:
        check_address(options.snapshot_address)
    audit = AuditLog(Path(options.audit_file) if options.audit_file else None)
    raise_limit()
    limits = _limits(options)
    state = StateDatabase.open(
        data, map_bytes=options.lmdb_map_bytes, is_cold=is_cold, is_new=is_new, check=check_pages
    )
    try:
        if is_on_btrfs(data):
            _log.warning("state_on_btrfs", path=str(data), hint=BTRFS_HINT)
        clock = ScmClock()
        snapshots = data.absolute() / "snapshots"
        control = ControlPlane(
            state, clock=clock, options=options, snapshots_path=snapshots, audit=audit
        )
        freeze_what_stays()
        with CallThreadPool(options.rpc_threads, limits.rpc_count_max) as executor:
            built = build_server(
                ScmService(control),
                listen,
                executor,
                security=security,
                audit=audit,
                limits=limits,
                slots=executor,
                memory=MemoryBudget(in_flight_bytes(options.in_flight_bytes, limit_bytes())),
                known=lambda: [view.node.address for view in control.queries.nodes()],
            )
            loops = WorkerLoops()
            loops.add(WorkerLoop(built.connections))
            control.meters.registry.register(built.connections)
            verifier = _verifier(verify, control, data, options, loops)
            ticker = TickThread(
                control, interval_s=options.heartbeat_interval_ms / 1000, on_death=stop
            )
            supervisor = SystemdNotifier()
            if supervisor.watchdog_interval_s:
                loops.add(WorkerLoop(WatchdogWorker(supervisor, ticker.hung)))
            watched = HttpStatus(control, executor, loops, ticker.is_ticking)
            built.health.is_well = lambda: not watched.troubles()
            with _listening(watched, options.observe_listen) as web:
                loops.start()
                try:
                    return _run(built, control, ticker, stop, security, web, supervisor)
                finally:
                    if verifier is not None:
                        verifier.stop()
                    loops.stop(STOP_GRACE_S)
    finally:
        state.close()
        audit.close()


def _limits(options: ScmOptions) -> ScmServerLimits:
    """Return the limits of the server. They are lower if the limit of open files requires it."""
    return ScmServerLimits(
        connections_max=connections_that_fit(options.connections_max),
        calls_per_s_max=options.calls_per_s_max,
    )


def _verifier(
    command: Sequence[str],
    control: ControlPlane,
    data: Path,
    options: ScmOptions,
    loops: WorkerLoops,
) -> SparkLoop | None:
    """Create the worker that runs Spark verifications, and add it to `loops`.

    Return None if no command is configured.
    """
    if not command:
        return None
    pulse = ProgressMarker()
    verifier = SparkLoop(
        control,
        command,
        data.absolute() / "runs",
        interval_s=options.verify_interval_ms / 1000,
        deadline_s=options.verify_deadline_ms / 1000,
        pulse=pulse,
    )
    loops.add(WorkerLoop(verifier, pulse=pulse))
    return verifier


@contextmanager
def _listening(watched: HttpStatus, address: str) -> Iterator[str]:
    """Serve the web pages while the body runs, and yield the address.

    Yield an empty string if the pages are disabled.
    """
    if not address:
        yield ""
        return
    listener = watched.listener(address)
    listener.start()
    try:
        yield listener.address
    finally:
        listener.stop()


def _check_certificate(material: TlsMaterial) -> None:
    check_own(material.certificate, Role.SCM, time.time())


def _run(
    built: BuiltServer,
    control: ControlPlane,
    ticker: TickThread,
    stop: StopRequest,
    security: Security,
    web: str,
    supervisor: SystemdNotifier,
) -> int:
    built.server.start()
    ticker.start()
    try:
        _log.info("scm_started", address=built.address, term=control.state.term, notice=NOTICE)
        announce_listening(
            built.address,
            web=web,
            cluster_id=control.state.cluster_id,
            term=control.state.term,
            highly_available=False,
        )
        supervisor.ready(f"serving on {built.address}, term {control.state.term}")
        while not stop.wait_or_reload():
            security.reload()
    finally:
        supervisor.stopping()
        built.health.enter_graceful_shutdown()
        built.server.stop(STOP_GRACE_S).wait()
        ticker.stop()
        _log.info("scm_stopped")
    return 1 if ticker.has_failed else 0


def _settings(pairs: list[str]) -> dict[str, str]:
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise RefusedError(Code.INVALID_CONFIG, f"invalid --set '{pair}': expected NAME=VALUE")
        settings[name.strip()] = value.strip()
    return settings


def _verify_command(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise typer.BadParameter(f"invalid --verify '{text}': {error}") from error


DataOption = Annotated[Path | None, option("DIR", "Store the state and the snapshots here.")]
SettingOption = Annotated[
    list[str] | None,
    option("NAME=VALUE", "Set an option; overrides the file; may be repeated.", "--set"),
]
VerifyOption = Annotated[
    str, option("COMMAND", "Verify snapshots with this regularly; apply its plans.")
]
LogLevelOption = Annotated[
    str, option("LEVEL", "Lowest level to log: debug, info, warning or error.")
]


@app.command(context_settings=HELP, cls=SectionedCommand)
def run(
    context: typer.Context,
    data: DataOption = None,
    listen: Annotated[
        str, option("HOST:PORT", "Serve on this address; port 0 = any free port.")
    ] = "127.0.0.1:9860",
    config: Annotated[Path | None, option("FILE", "Read options from this TOML file.")] = None,
    setting: SettingOption = None,
    verify: VerifyOption = "",
    cold_start: Annotated[
        bool, flag("Discard replica locations; wait for all reports.", "--cold-start")
    ] = False,
    new_cluster: Annotated[
        bool, flag("Create an empty cluster in place of a lost state.", "--new-cluster")
    ] = False,
    log_level: LogLevelOption = "info",
    show_options: Annotated[
        bool, flag("Print all options with their bounds, and exit.", "--show-options")
    ] = False,
    _version: Annotated[bool, version_flag("suture-scm")] = False,
) -> None:
    """Run the reference control plane until SIGTERM.

    It is a single node, not highly available: while it is down, no command is sent.

    Exit codes:
        0: stopped as requested
        1: could not start, or failed
        64: invalid command line

    Example:
        suture-scm --data /var/lib/suture-scm --listen 0.0.0.0:9860
    """
    if show_options:
        typer.echo(scm_options.explain())
        raise typer.Exit(ExitCode.OK)
    if data is None:
        raise typer.BadParameter("--data is missing: expected the directory of the state")
    if log_level not in logs.LEVELS:
        raise typer.BadParameter(
            f"invalid --log-level '{log_level}': expected {', '.join(logs.LEVELS)}"
        )
    verify_command = _verify_command(verify)
    set_switch_interval()
    try:
        logs.configure(log_level)
        logs.redirect_stderr()
        options = scm_options.load(config, _settings(setting or []))
        code = serve(
            data,
            listen,
            options,
            context.obj,
            verify=verify_command,
            is_cold=cold_start,
            is_new=new_cluster,
        )
    except (SutureError, ModuleNotFoundError) as error:
        _print_error(error)
        raise typer.Exit(ExitCode.FAILED) from error
    raise typer.Exit(code)


def _print_error(error: SutureError | ModuleNotFoundError) -> None:
    """Print the reason why the control plane cannot start."""
    shown = missing_extra(error, "suture-scm") if isinstance(error, ModuleNotFoundError) else error
    hint = f" ({shown.hint})" if shown.hint else ""
    typer.echo(printable(f"suture-scm: {shown}{hint}"), err=True)


def main(stop: StopRequest | None = None) -> None:
    """Run the command line until `stop` is set. If `stop` is None, signals end the program.

    The exit code is 0 if stopped as requested, 1 if the start or the program failed, and 64 if the
    command line is invalid.
    """
    run_server(app, stop)


if __name__ == "__main__":
    main()
