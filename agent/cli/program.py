"""All commands of `suture`, for typer's parsing, completion and --help."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Annotated, Final

import typer

from suture.runtime.exit_codes import ExitCode
from suture.terminal.credentials import CredentialOptions, choose
from suture.terminal.tasks import HELP_NAMES, TaskGroup

HELP: Final = "Keeps the replicas of a storage container equal and whole."
CODES: Final = (
    "Exit codes: 0 done; 1 refused or failed; 2 done, and there is something to do; "
    "3 not possible now, try again; 64 wrong command line; 130 stopped by Ctrl-C; "
    "141 nobody reads the output."
)


COMMANDS: Final[Mapping[str, Mapping[str, str]]] = {
    "agent.cli.keys": {
        "put": "Store files durably, on three datanodes or erasure-coded.",
        "get": "Fetch a file, verifying every byte.",
        "ls": "List keys with their size and the blocks that hold them.",
    },
    "agent.cli.change.container_commands": {
        "rm": "Delete keys; datanodes delete their blocks in the background.",
        "reconcile": "Make replicas equal again from healthy peers.",
    },
    "agent.cli.inspect.status": {
        "status": "Show whether all data is healthy, then every datanode.",
    },
    "agent.cli.inspect.replica_commands": {
        "tree": "Show the tree of each replica: root, blocks, tombstones, chunks.",
        "diff": "Show where replicas differ, and what each would do.",
        "explain": "Explain what is wrong with a container, with the evidence.",
    },
    "agent.cli.inspect.change_log": {
        "history": "Show disk changes and commands, oldest first.",
    },
    "agent.cli.inspect.datanode_tables": {
        "findings": "List unrepaired findings of scans on all datanodes.",
        "volumes": "Show space, health, verification and scan of every volume.",
        "top": "Show the present activity of every datanode.",
    },
    "agent.cli.evidence.diagnose": {
        "diagnose": "Write the evidence about a container to a .tar.gz file.",
    },
    "agent.cli.inspect.stop_checks": {
        "ok-to-stop": "Check whether datanodes or volumes are safe to stop.",
    },
    "agent.cli.evidence.verify_log": {
        "verify-log": "Verify the hash chain of verification logs.",
    },
    "agent.cli.evidence.attest": {
        "attest": "Sign a statement about verifications, repairs and deletes.",
    },
    "agent.cli.setup.volume_tools": {
        "fsck": "Check volumes that no agent uses, without changing them.",
    },
    "agent.cli.setup.salvage": {
        "salvage": "Copy every file off volumes by key, verified bytes only.",
    },
    "agent.cli.setup.demo_command": {
        "demo": "Store real files, damage them on disk, find it, repair it from peers, prove it.",
    },
}
"""Commands of each module, with the first sentence of their help, so that listing them imports
nothing. The function has the name of the command."""

GROUPS: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "volume": (
        ("agent.cli.change.volume_commands",),
        "Add and retire volumes: replace a disk step by step.",
    ),
    "scrub": (
        ("agent.cli.change.scrub",),
        "See and hold the background scans; read a container, its parity, a sample.",
    ),
    "ozone": (("ozone.commands",), "Read the volumes of an Apache Ozone datanode."),
    "tls": (
        ("agent.cli.setup.tls_commands",),
        "Make, issue and show certificates: mutual TLS for the cluster.",
    ),
    "config": (("agent.cli.setup.config",), "Check, show and explain the agent's options."),
    "scm": (
        ("agent.cli.change.balance", "scm.backup_commands"),
        "Ask the control plane, or give it a plan or an order.",
    ),
}
"""Modules with the commands of each group, and the group's help."""


def print_version(wanted: bool) -> None:
    """Print the version and exit, if requested."""
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
    choose(CredentialOptions(certificate, key, ca, allow_plaintext, client_config))


def program(arguments: Sequence[str] | None) -> typer.Typer:
    """Return the command line with the command that `arguments` name; of the others only name and
    help. None stands for all commands."""
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
    known = {*chain.from_iterable(COMMANDS.values()), *GROUPS}
    wanted = known if arguments is None else known.intersection(_commands_named(arguments))
    for module, commands in COMMANDS.items():
        for name, text in commands.items():
            if name in wanted:
                app.command(name)(getattr(import_module(module), name.replace("-", "_")))
            else:
                app.command(name, help=text)(_not_imported)
    for name, (modules, text) in GROUPS.items():
        if name in wanted:
            app.add_typer(_group(modules), name=name, help=text, cls=TaskGroup)
        else:
            app.command(name, help=text)(_not_imported)
    return app


def _group(modules: Sequence[str]) -> typer.Typer:
    """Return the commands of a group's modules."""
    apps = [import_module(module).app for module in modules]
    group: typer.Typer = copy(apps[0])
    group.registered_commands = [command for app in apps for command in app.registered_commands]
    return group


def _not_imported() -> None:
    raise AssertionError("a command that is listed only does not run")


def _commands_named(arguments: Sequence[str]) -> Sequence[str]:
    """Return the command after the global options, each of which takes a value."""
    at = 0
    while at < len(arguments) and arguments[at].startswith(("--tls-", "--client-config")):
        at += 1 if "=" in arguments[at] else 2
    return arguments[at : at + 1]


def prepare(arguments: Sequence[str]) -> Callable[[], int]:
    """Import the modules of any command line; return its call."""
    is_completing = "_SUTURE_COMPLETE" in os.environ  # the words are then in the environment
    app = program(None if is_completing else arguments)
    if "structlog" in sys.modules:  # the imported command may log
        from suture.observe import logs

        logs.configure("warning")  # to stderr, because stdout is for results
    return partial(call, app, arguments)


def call(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run a command line; return its exit code. Raise SutureError."""
    as_json = "--json" in arguments
    try:
        result = app(list(arguments), prog_name="suture", standalone_mode=False)
    except typer.TyperException as error:
        show_usage(error, as_json=as_json)
        return ExitCode.USAGE
    except typer.Abort:
        return ExitCode.INTERRUPTED
    return result if isinstance(result, int) else ExitCode.OK


def show_usage(error: typer.TyperException, *, as_json: bool) -> None:
    """Print the error of the command line; without a command, print the help."""
    from suture.terminal.output import fail_usage, print_note

    if type(error).__name__ == "NoArgsIsHelpError":  # typer does not export it
        for line in error.format_message().split("\n"):
            print_note(line)
        return
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "suture"
    if (given := not_understood(error)) and isinstance(error, typer.BadParameter):
        error.message = given
    fail_usage(error.format_message(), f"see {command} --help", as_json=as_json)


def not_understood(error: BaseException) -> str:
    """Return the wrong argument and the reason if typer reports them in its library's words; "" if
    it reports them in ours."""
    from pydantic import ValidationError

    if not isinstance(error.__cause__, ValidationError):
        return ""
    first = error.__cause__.errors()[0]
    if first["type"] == "int_parsing":
        return f"{first['input']!r} is no whole number"
    return f"{first['input']!r}: {first['msg'][:1].lower()}{first['msg'][1:]}"
