"""The list of all commands of `suture`, and functions that parse and run a command line."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from suture.runtime.exit_codes import ExitCode
from suture.terminal.command_help import SectionedCommand
from suture.terminal.common_options import JSON, SCM, with_options
from suture.terminal.credentials import CredentialOptions, choose
from suture.terminal.tasks import HELP_NAMES, TaskGroup
from suture.terminal.typer_options import flag, option, version_flag

HELP: Final = """Manage a Suture cluster: data, repairs, disks and hosts.

Exit codes:
    0: done, and nothing is wrong
    1: rejected or failed
    2: done, and something needs attention
    3: not possible now, or unknown; try again
    64: invalid command line
    130: stopped by Ctrl-C, SIGTERM or SIGHUP
    141: the reader of the output closed the pipe

Example:
    suture status
"""

COMMANDS: Final[Mapping[str, Mapping[str, str]]] = {
    "agent.cli.keys": {
        "put": "Store files as keys, replicated or erasure-coded.",
        "get": "Fetch a file and verify every byte.",
        "ls": "List keys with their sizes and blocks.",
    },
    "agent.cli.change.container_commands": {
        "rm": "Delete keys and, in the background, their blocks.",
        "reconcile": "Repair replicas of containers from healthy peers.",
    },
    "agent.cli.inspect.status": {
        "status": "Show the health of all data and of every datanode.",
    },
    "agent.cli.inspect.replica_commands": {
        "tree": "Show the Merkle tree of each replica of a container.",
        "diff": "Show differences between replicas, and how to repair them.",
        "explain": "Explain the state of a container, with the evidence.",
    },
    "agent.cli.inspect.change_log": {
        "history": "Show changes of replicas and commands, oldest first.",
    },
    "agent.cli.inspect.datanode_tables": {
        "findings": "List unrepaired scan findings of all datanodes.",
        "volumes": "Show space, health and scans of every volume.",
        "top": "Show the current scans and queues of every datanode.",
    },
    "agent.cli.evidence.diagnose": {
        "diagnose": "Write the evidence about a container to a .tar.gz file.",
    },
    "agent.cli.inspect.versions": {
        "versions": "List the versions of all programs of the cluster.",
    },
    "agent.cli.inspect.stop_checks": {
        "ok-to-stop": "Check whether datanodes or volumes are safe to stop.",
    },
    "agent.cli.evidence.verify_log": {
        "verify-log": "Verify the hash chain of verification logs.",
    },
    "agent.cli.evidence.attest": {
        "attest": "Sign a statement about verifications and repairs.",
    },
    "agent.cli.setup.volume_tools": {
        "fsck": "Check volumes offline, without changing them.",
    },
    "agent.cli.setup.salvage": {
        "salvage": "Restore files from volumes without a running cluster.",
    },
    "agent.cli.setup.demo_command": {
        "demo": "Store files, damage them on disk, and repair them.",
    },
}
"""Commands by module, with the first sentence of their help.

`suture --help` uses these texts, so that it does not import the modules. The function of a command
has the same name as the command.
"""

GROUPS: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "volume": (
        ("agent.cli.change.volume_commands",),
        "Add, retire or protect volumes.",
    ),
    "scrub": (
        ("agent.cli.change.scrub",),
        "Run, pause and show scans of stored data.",
    ),
    "ozone": (("ozone.commands",), "Scrub and repair volumes of Apache Ozone datanodes."),
    "tls": (
        ("agent.cli.setup.tls_commands",),
        "Create, issue and show certificates for mutual TLS.",
    ),
    "config": (("agent.cli.setup.config",), "Check, show and explain the agent's options."),
    "scm": (
        ("agent.cli.change.balance", "scm.backup_commands"),
        "Query and manage the SCM, the control plane.",
    ),
}
"""Groups of commands: the modules that contain the commands, and the help text of the group."""

WITHOUT_SCM: Final = frozenset(
    {
        "agent.cli.evidence.attest",
        "agent.cli.setup.config",
        "agent.cli.setup.demo_command",
        "agent.cli.setup.salvage",
        "agent.cli.setup.tls_commands",
        "agent.cli.setup.volume_tools",
        "ozone.commands",
        "scm.backup_commands",
    }
)
"""Modules whose commands do not call an SCM of Suture."""

WITHOUT_JSON: Final = frozenset({"top", "serve_command"})
"""Commands that cannot print a JSON document."""


def choose_credentials(
    version: Annotated[bool, version_flag("suture")] = False,
    certificate: Annotated[
        Path | None,
        option(
            "FILE",
            "Certificate of the client (PEM).",
            "--tls-certificate",
            envvar="SUTURE_TLS_CERTIFICATE",
        ),
    ] = None,
    key: Annotated[
        Path | None,
        option(
            "FILE", "Private key of the certificate (PEM).", "--tls-key", envvar="SUTURE_TLS_KEY"
        ),
    ] = None,
    ca: Annotated[
        Path | None,
        option("FILE", "CA certificates to trust (PEM).", "--tls-ca", envvar="SUTURE_TLS_CA"),
    ] = None,
    client_config: Annotated[
        Path | None,
        option(
            "FILE",
            "Read credentials from this TOML file.",
            "--client-config",
            envvar="SUTURE_CLIENT_CONFIG",
        ),
    ] = None,
    allow_plaintext: Annotated[
        bool,
        flag(
            "Connect to other hosts without TLS.",
            "--allow-plaintext",
            envvar="SUTURE_ALLOW_PLAINTEXT",
        ),
    ] = False,
) -> None:
    """Manage a Suture cluster: data, repairs, disks and hosts."""
    del version
    choose(CredentialOptions(certificate, key, ca, allow_plaintext, client_config))


def program(arguments: Sequence[str] | None) -> typer.Typer:
    """Return the command line interface.

    If `arguments` name a command, the interface has only this command. If they name no command, it
    has the names and help texts of all commands, and no module of a command is imported. If
    `arguments` is None, all commands are imported.
    """
    app = typer.Typer(
        name="suture",
        help=HELP,
        cls=TaskGroup,
        context_settings=HELP_NAMES,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(choose_credentials)
    known = {*chain.from_iterable(COMMANDS.values()), *GROUPS}
    words = () if arguments is None else _commands_named(arguments)
    wanted = known if arguments is None else known.intersection(words[:1])
    for module, commands in COMMANDS.items():
        for name, text in commands.items():
            if name in wanted:
                run = getattr(import_module(module), name.replace("-", "_"))
                app.command(name, cls=SectionedCommand)(_with_common_options(module, run))
            elif not wanted:
                app.command(name, help=text)(_not_imported)
    for name, (modules, text) in GROUPS.items():
        if name in wanted:
            app.add_typer(_group(modules, words[1:]), name=name, help=text, cls=TaskGroup)
        elif not wanted:
            app.command(name, help=text)(_not_imported)
    return app


def _group(modules: Sequence[str], words: Sequence[str]) -> typer.Typer:
    """Return a group with the command that `words` name. If they name none, the group has all its
    commands."""
    found = [(module, import_module(module).app) for module in modules]
    group: typer.Typer = copy(found[0][1])
    commands = [
        (module, copy(command)) for module, app in found for command in app.registered_commands
    ]
    named = [one for one in commands if _name_of(one[1]) in words]
    for module, command in named or commands:
        assert command.callback is not None
        command.cls = SectionedCommand
        command.callback = _with_common_options(module, command.callback)
    group.registered_commands = [command for _module, command in named or commands]
    return group


def _with_common_options(module: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command of a module with the options --scm and --json added, if they apply to it."""
    options = [] if module in WITHOUT_SCM else [SCM]
    options += [] if run.__name__ in WITHOUT_JSON else [JSON]
    return with_options(run, *options)


def _name_of(command: typer.models.CommandInfo) -> str:
    assert command.callback is not None
    return command.name or command.callback.__name__.replace("_", "-")


def _not_imported() -> None:
    raise AssertionError("a command that is listed only does not run")


def _commands_named(arguments: Sequence[str]) -> Sequence[str]:
    """Return the first two arguments after the global options.

    They name a command, or a group and its command. All global options that are skipped have a
    value.
    """
    at = 0
    while at < len(arguments) and arguments[at].startswith(("--tls-", "--client-config")):
        at += 1 if "=" in arguments[at] else 2
    return arguments[at : at + 2]


def prepare(arguments: Sequence[str]) -> Callable[[], int]:
    """Import the modules that a command line needs. Return the function that runs the command."""
    is_completing = "_SUTURE_COMPLETE" in os.environ  # the command line is then in the environment
    app = program(None if is_completing else arguments)
    if "structlog" in sys.modules:  # an imported module may log
        from suture.observe import logs

        logs.configure("warning")  # to stderr, because stdout is for results
    return partial(call, app, arguments)


def call(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run a command line, and return its exit code. Raise SutureError if the command fails."""
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
    """Print an error about the usage. If the command line names no command, print the help
    instead."""
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
    """Return a readable text about an argument that pydantic has rejected.

    Return "" if `error` has another cause.
    """
    from pydantic import ValidationError

    if not isinstance(error.__cause__, ValidationError):
        return ""
    first = error.__cause__.errors()[0]
    if first["type"] == "int_parsing":
        return f"invalid number {first['input']!r}: expected a whole number"
    return f"{first['input']!r}: {first['msg'][:1].lower()}{first['msg'][1:]}"
