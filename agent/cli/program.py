"""All commands of `suture`: what typer parses, completes, and shows with --help."""

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from inspect import Parameter
from typing import Annotated, Final

import typer
from pydantic import ValidationError

from agent.cli.quick import QUICK
from agent.cli.terminal.credentials import choose
from agent.cli.terminal.output import Exit, fail_usage, remark
from agent.cli.terminal.tasks import HELP_NAMES, TaskGroup
from agent.cli.terminal.typer_options import for_typer
from agent.observe import logs

HELP: Final = "Keeps the replicas of a storage container equal and whole."
CODES: Final = (
    "Exit codes: 0 done; 1 refused or failed; 2 done, and there is something to do; "
    "3 not possible now, try again; 64 wrong command line; 130 stopped by Ctrl-C; "
    "141 nobody reads the output."
)

# Only the module of the command that is run is imported: half of a quick answer is importing.
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "put": ("agent.cli.keys", "put"),
    "get": ("agent.cli.keys", "get"),
    "ls": ("agent.cli.keys", "ls"),
    "rm": ("agent.cli.change.container_commands", "rm"),
    **QUICK,
    "tree": ("agent.cli.inspect.replica_commands", "tree"),
    "diff": ("agent.cli.inspect.replica_commands", "diff"),
    "explain": ("agent.cli.inspect.replica_commands", "explain"),
    "history": ("agent.cli.inspect.container_history", "history"),
    "log": ("agent.cli.inspect.change_log", "log"),
    "scan": ("agent.cli.inspect.replica_commands", "scan"),
    "findings": ("agent.cli.inspect.datanodes", "findings"),
    "volumes": ("agent.cli.inspect.datanodes", "volumes"),
    "top": ("agent.cli.inspect.datanodes", "top"),
    "diagnose": ("agent.cli.evidence.diagnose", "diagnose"),
    "replay": ("agent.cli.evidence.replay", "replay"),
    "may-stop": ("agent.cli.inspect.may_stop", "may_stop"),
    "what-if": ("agent.cli.inspect.may_stop", "what_if"),
    "reconcile": ("agent.cli.change.container_commands", "reconcile"),
    "verify-log": ("agent.cli.evidence.verifylog", "verify_log"),
    "attest": ("agent.cli.evidence.attest", "attest"),
    "verify-parity": ("agent.cli.inspect.verify_parity", "verify_parity_command"),
    "fsck": ("agent.cli.setup.offline", "fsck"),
    "sample": ("agent.cli.setup.sample", "sample"),
    "new-volume": ("agent.cli.setup.offline", "new_volume"),
    "salvage": ("agent.cli.setup.salvage", "salvage"),
    "demo": ("agent.cli.setup.demo_command", "demo"),
}
GROUPS: Final[dict[str, tuple[str, str]]] = {
    "volume": (
        "agent.cli.change.volume_commands",
        "Add, retire and migrate volumes: replace a disk step by step.",
    ),
    "scrub": ("agent.cli.inspect.scrub", "See, pause and resume the background scans."),
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


VERSION: Final = Parameter(
    "version",
    Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Print the version."),
    ],
)


def program(arguments: Sequence[str]) -> typer.Typer:
    """Return the command line with the command that `arguments` name; with all, to show them."""
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
    app.callback()(for_typer(choose, VERSION))
    known = {*COMMANDS, *GROUPS}
    wanted = {word for word in _commands_named(arguments) if word in known} or known
    for name, (module, function) in COMMANDS.items():
        if name in wanted:
            command = getattr(import_module(module), function)
            app.command(name)(for_typer(command) if name in QUICK else command)
    for name, (module, text) in GROUPS.items():
        if name in wanted:
            app.add_typer(import_module(module).app, name=name, help=text, cls=TaskGroup)
    return app


def _commands_named(arguments: Sequence[str]) -> Sequence[str]:
    """Return the command, behind the options that go before it; each of those takes a value."""
    at = 0
    while at < len(arguments) and arguments[at].startswith(("--tls-", "--client-config")):
        at += 1 if "=" in arguments[at] else 2
    return arguments[at : at + 1]


def prepare(arguments: Sequence[str]) -> Callable[[], int]:
    """Import what a command line needs, whatever it is; return its call."""
    logs.configure("warning")  # to stderr: stdout is for results
    return partial(call, program(arguments), arguments)


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
    if not isinstance(error.__cause__, ValidationError):
        return ""
    first = error.__cause__.errors()[0]
    if first["type"] == "int_parsing":
        return f"{first['input']!r} is no whole number"
    return f"{first['input']!r}: {first['msg'][:1].lower()}{first['msg'][1:]}"
