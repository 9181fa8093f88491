"""All commands of `suture`: what typer parses, completes, and shows with --help."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

from agent.cli.terminal.credentials import Wanted, choose
from agent.cli.terminal.tasks import HELP_NAMES, TaskGroup
from agent.runtime.exits import Exit

HELP: Final = "Keeps the replicas of a storage container equal and whole."
CODES: Final = (
    "Exit codes: 0 done; 1 refused or failed; 2 done, and there is something to do; "
    "3 not possible now, try again; 64 wrong command line; 130 stopped by Ctrl-C; "
    "141 nobody reads the output."
)


class Command(NamedTuple):
    """Where a command is, and the first sentence of its help: to list it nothing is imported."""

    module: str
    function: str
    help: str


COMMANDS: Final[Mapping[str, Command]] = {
    "put": Command(
        "agent.cli.keys",
        "put",
        "Store files, each on three datanodes or erasure-coded over more, durably.",
    ),
    "get": Command(
        "agent.cli.keys",
        "get",
        "Fetch a file, verifying every byte; a chunk that is bad in one replica is read from "
        "another.",
    ),
    "ls": Command(
        "agent.cli.keys", "ls", "List keys with their size and the blocks that hold them."
    ),
    "rm": Command(
        "agent.cli.change.container_commands",
        "rm",
        "Delete keys; datanodes delete their blocks in the background.",
    ),
    "status": Command(
        "agent.cli.inspect.status",
        "status",
        "Say in one line whether the data is whole, then show every datanode.",
    ),
    "tree": Command(
        "agent.cli.inspect.replica_commands",
        "tree",
        "Show the tree of each replica: root, blocks, tombstones, chunks.",
    ),
    "diff": Command(
        "agent.cli.inspect.replica_commands",
        "diff",
        "Show where replicas differ, and what each would do about it. 0: equal; 2: they differ.",
    ),
    "explain": Command(
        "agent.cli.inspect.replica_commands",
        "explain",
        "Say what is wrong with a container, how we know, and what was done. 2: something is.",
    ),
    "log": Command(
        "agent.cli.inspect.change_log",
        "log",
        "Show what was changed on the disks of all datanodes, and what was ordered; oldest first.",
    ),
    "findings": Command(
        "agent.cli.inspect.datanodes",
        "findings",
        "List what scans found and nobody repaired yet, on all datanodes. 2: there is something.",
    ),
    "volumes": Command(
        "agent.cli.inspect.datanodes",
        "volumes",
        "Show every volume: space, health, what is verified, how its scan is. 2: one is not well.",
    ),
    "top": Command(
        "agent.cli.inspect.datanodes",
        "top",
        "Show what every datanode does just now: what it scans, how fast, and what it has to do.",
    ),
    "diagnose": Command(
        "agent.cli.evidence.diagnose",
        "diagnose",
        "Write the evidence about a container to one .tar.gz: no data, no keys, no names of files.",
    ),
    "may-stop": Command(
        "agent.cli.inspect.may_stop",
        "may_stop",
        "Say whether these may be switched off now, all together, and what it would cost.",
    ),
    "reconcile": Command(
        "agent.cli.change.container_commands",
        "reconcile",
        "Make the replicas of containers equal again, chunk by chunk, from healthy peers.",
    ),
    "verify-log": Command(
        "agent.cli.evidence.verifylog",
        "verify_log",
        "Prove that the log of what was verified, repaired and deleted is what was written.",
    ),
    "attest": Command(
        "agent.cli.evidence.attest",
        "attest",
        "State, signed, what was verified, repaired and deleted in a time, and what failed.",
    ),
    "fsck": Command(
        "agent.cli.setup.offline",
        "fsck",
        "Check volumes that no agent uses now; changes nothing. 2 if there are problems.",
    ),
    "salvage": Command(
        "agent.cli.setup.salvage",
        "salvage",
        "Write every file that volumes have between them, by key; only verified bytes.",
    ),
    "demo": Command(
        "agent.cli.setup.demo_command",
        "demo",
        "Store real files, damage them on disk, find it, repair it from peers, prove it.",
    ),
}
GROUPS: Final[dict[str, tuple[str, str]]] = {
    "volume": (
        "agent.cli.change.volume_commands",
        "Add and retire volumes: replace a disk step by step.",
    ),
    "scrub": (
        "agent.cli.change.scrub",
        "See and hold the background scans; read a container, its parity, a sample.",
    ),
    "ozone": ("ozone.commands", "Read the volumes of an Apache Ozone datanode."),
    "tls": (
        "agent.cli.setup.tls_commands",
        "Make, issue and show certificates: mutual TLS for the cluster.",
    ),
    "config": ("agent.cli.setup.config", "Check, show and explain the agent's options."),
    "scm": ("scm.backup_commands", "Ask the control plane, or give it a plan or an order."),
}


def print_version(wanted: bool) -> None:
    """Print the version and stop, if asked to."""
    if wanted:
        from importlib.metadata import version

        typer.echo(f"suture {version('suture')}")
        raise typer.Exit


def choose_credentials(
    version: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Print the version."),
    ] = False,
    certificate: Annotated[
        Path | None,
        typer.Option(
            "--tls-certificate",
            help="Your certificate, in PEM.",
            metavar="FILE",
            envvar="SUTURE_TLS_CERTIFICATE",
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            "--tls-key",
            help="Its private key, in PEM.",
            metavar="FILE",
            envvar="SUTURE_TLS_KEY",
        ),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(
            "--tls-ca", help="Whom to believe, in PEM.", metavar="FILE", envvar="SUTURE_TLS_CA"
        ),
    ] = None,
    client_config: Annotated[
        Path | None,
        typer.Option(
            "--client-config",
            help="Where else these are written; default: ~/.config/suture/client.toml.",
            metavar="FILE",
            envvar="SUTURE_CLIENT_CONFIG",
        ),
    ] = None,
    allow_plaintext: Annotated[
        bool,
        typer.Option(
            "--allow-plaintext",
            help="Without certificates, call other hosts all the same.",
            envvar="SUTURE_ALLOW_PLAINTEXT",
        ),
    ] = False,
) -> None:
    """Keeps the replicas of a storage container equal and whole."""
    del version
    choose(Wanted(certificate, key, ca, allow_plaintext, client_config))


def program(arguments: Sequence[str] | None) -> typer.Typer:
    """Return the command line with the command that `arguments` name; of the others it knows name
    and help. None: with all commands."""
    app = typer.Typer(
        name="suture",
        help=HELP,
        epilog=CODES,
        cls=TaskGroup,
        context_settings=HELP_NAMES,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(choose_credentials)
    known = {*COMMANDS, *GROUPS}
    wanted = known if arguments is None else known.intersection(_commands_named(arguments))
    for name, command in COMMANDS.items():
        if name in wanted:
            app.command(name)(getattr(import_module(command.module), command.function))
        else:
            app.command(name, help=command.help)(_not_imported)
    for name, (module, text) in GROUPS.items():
        if name in wanted:
            app.add_typer(import_module(module).app, name=name, help=text, cls=TaskGroup)
        else:
            app.command(name, help=text)(_not_imported)
    return app


def _not_imported() -> None:
    raise AssertionError("a command that is listed only does not run")


def _commands_named(arguments: Sequence[str]) -> Sequence[str]:
    """Return the command, behind the options that go before it; each of those takes a value."""
    at = 0
    while at < len(arguments) and arguments[at].startswith(("--tls-", "--client-config")):
        at += 1 if "=" in arguments[at] else 2
    return arguments[at : at + 1]


def prepare(arguments: Sequence[str]) -> Callable[[], int]:
    """Import what a command line needs, whatever it is; return its call."""
    is_completing = "_SUTURE_COMPLETE" in os.environ  # then the words are in the environment
    app = program(None if is_completing else arguments)
    if "structlog" in sys.modules:  # a command is imported that may log
        from agent.observe import logs

        logs.configure("warning")  # to stderr: stdout is for results
    return partial(call, app, arguments)


def call(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run a command line; return its exit code. Raises SutureError."""
    as_json = "--json" in arguments
    try:
        result = app(list(arguments), prog_name="suture", standalone_mode=False)
    except typer.TyperException as error:
        show_usage(error, as_json=as_json)
        return Exit.USAGE
    except typer.Abort:
        return Exit.INTERRUPTED
    return result if isinstance(result, int) else Exit.OK


def show_usage(error: typer.TyperException, *, as_json: bool) -> None:
    """Say what is wrong with the command line; no command at all is a question for help."""
    from agent.cli.terminal.output import fail_usage, remark

    if type(error).__name__ == "NoArgsIsHelpError":  # typer does not export it
        for line in error.format_message().split("\n"):
            remark(line)
        return
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "suture"
    if (given := not_understood(error)) and isinstance(error, typer.BadParameter):
        error.message = given
    fail_usage(error.format_message(), f"see {command} --help", as_json=as_json)


def not_understood(error: BaseException) -> str:
    """Return what was given and why it does not do, where typer says it in its library's words;
    "" where it says it in ours."""
    from pydantic import ValidationError

    if not isinstance(error.__cause__, ValidationError):
        return ""
    first = error.__cause__.errors()[0]
    if first["type"] == "int_parsing":
        return f"{first['input']!r} is no whole number"
    return f"{first['input']!r}: {first['msg'][:1].lower()}{first['msg'][1:]}"
