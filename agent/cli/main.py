"""`suture`: the operator's and the client's command line."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Final

import typer

from agent.cli.connection import Wanted, choose, is_secured
from agent.cli.output import Exit, fail, fail_usage, remark
from agent.errors import Code, Refused, SutureError, Unavailable

HELP: Final = "Keeps the replicas of a storage container equal and whole."
CODES: Final = (
    "Exit codes: 0 done; 1 refused or failed; 2 done, and there is something to do; "
    "3 not possible now, try again; 64 wrong command line; 130 stopped by Ctrl-C."
)

PLAINTEXT_HINT: Final = (
    "is it running? --scm says where the SCM is; suture status asks all nodes; a server with "
    "certificates wants yours (--tls-certificate)"
)
SECURED_HINT: Final = (
    "is it running, does it believe your certificate, and you its? suture tls show FILE says whose "
    "a certificate is, and until when"
)

# Only the module of the command that is run is imported: half of a quick answer is importing.
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "put": ("agent.cli.keys", "put"),
    "get": ("agent.cli.keys", "get"),
    "ls": ("agent.cli.keys", "ls"),
    "rm": ("agent.cli.orders", "rm"),
    "status": ("agent.cli.status", "status"),
    "tree": ("agent.cli.replicas", "tree"),
    "diff": ("agent.cli.replicas", "diff"),
    "explain": ("agent.cli.replicas", "explain"),
    "history": ("agent.cli.history", "history"),
    "scan": ("agent.cli.replicas", "scan"),
    "findings": ("agent.cli.node", "findings"),
    "volumes": ("agent.cli.node", "volumes"),
    "top": ("agent.cli.node", "top"),
    "diagnose": ("agent.cli.diagnose", "diagnose"),
    "reconcile": ("agent.cli.orders", "reconcile"),
    "verify-parity": ("agent.cli.parity", "verify_parity_command"),
    "fsck": ("agent.cli.offline", "fsck"),
    "demo": ("agent.cli.demo", "demo"),
}
SILENT: Final = frozenset({"status"})  # a fifth of its time were imports of a log that it has not
GROUPS: Final[dict[str, tuple[str, str]]] = {
    "scrub": ("agent.cli.scrub", "See, pause and resume the background scans."),
    "tls": ("agent.cli.tls", "Make, issue and show certificates: mutual TLS for the cluster."),
    "config": ("agent.cli.config", "Check, show and explain the agent's options."),
    "scm": ("agent.cli.balance", "Ask the control plane, or give it a plan or an order."),
}


def print_version(wanted: bool) -> None:
    """Print the version and stop, if asked to."""
    if wanted:
        from importlib.metadata import version

        typer.echo(f"suture {version('suture')}")
        raise typer.Exit


def options(
    _: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Print the version."),
    ] = False,
    certificate: Annotated[
        Path | None,
        typer.Option(
            "--tls-certificate",
            metavar="FILE",
            envvar="SUTURE_TLS_CERTIFICATE",
            help="Your certificate, in PEM.",
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            "--tls-key", metavar="FILE", envvar="SUTURE_TLS_KEY", help="Its private key, in PEM."
        ),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(
            "--tls-ca", metavar="FILE", envvar="SUTURE_TLS_CA", help="Whom to believe, in PEM."
        ),
    ] = None,
    client_config: Annotated[
        Path | None,
        typer.Option(
            "--client-config",
            metavar="FILE",
            envvar="SUTURE_CLIENT_CONFIG",
            help="Where else these are written; default: ~/.config/suture/client.toml.",
        ),
    ] = None,
    allow_plaintext: Annotated[
        bool,
        typer.Option(
            "--allow-plaintext",
            envvar="SUTURE_ALLOW_PLAINTEXT",
            help="Without certificates, call other hosts all the same.",
        ),
    ] = False,
) -> None:
    """Keeps the replicas of a storage container equal and whole."""
    choose(Wanted(certificate, key, ca, allow_plaintext, client_config))


def program(arguments: Sequence[str]) -> typer.Typer:
    """Return the command line with the command that `arguments` name; with all, to show them."""
    app = typer.Typer(
        name="suture",
        help=HELP,
        epilog=CODES,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(options)
    known = {*COMMANDS, *GROUPS}
    wanted = {word for word in _commands_named(arguments) if word in known} or known
    for name, (module, function) in COMMANDS.items():
        if name in wanted:
            app.command(name)(getattr(import_module(module), function))
    for name, (module, text) in GROUPS.items():
        if name in wanted:
            app.add_typer(import_module(module).app, name=name, help=text)
    return app


def _commands_named(arguments: Sequence[str]) -> Sequence[str]:
    """Return the command, behind the options that go before it; each of those takes a value."""
    at = 0
    while at < len(arguments) and arguments[at].startswith(("--tls-", "--client-config")):
        at += 1 if "=" in arguments[at] else 2
    return arguments[at : at + 1]


def main() -> None:
    """Run the command line; map what went wrong to an exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line; return its exit code."""
    if not arguments or arguments[0] not in SILENT:
        from agent.observe import logs

        logs.configure("warning")  # to stderr: stdout is for results
    as_json = "--json" in arguments
    try:
        result = program(arguments)(arguments, prog_name="suture", standalone_mode=False)
    except typer.TyperException as error:
        show_usage(error, as_json=as_json)
        return Exit.USAGE
    except SutureError as error:
        if error.code is Code.UNAVAILABLE and not error.hint:
            error.hint = SECURED_HINT if is_secured() else PLAINTEXT_HINT
        fail(error, as_json=as_json)
        return Exit.UNAVAILABLE if isinstance(error, Unavailable) else Exit.FAILED
    except (typer.Abort, KeyboardInterrupt):
        return 130  # as a shell reports a SIGINT
    except (BrokenPipeError, SystemExit):  # typer and rich exit so when the reader has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader has gone; the rest is for nobody
        return Exit.OK
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        fail(Refused(Code.IO_EXCEPTION, f"{where}{error.strerror or error}"), as_json=as_json)
        return Exit.FAILED
    return result if isinstance(result, int) else Exit.OK


def show_usage(error: typer.TyperException, *, as_json: bool) -> None:
    """Say what is wrong with the command line; no command at all is a question for help."""
    if type(error).__name__ == "NoArgsIsHelpError":  # typer does not export it
        remark(error.format_message())
        return
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "suture"
    fail_usage(error.format_message(), f"see {command} --help", as_json=as_json)


if __name__ == "__main__":
    main()
