"""`suture`: the operator's and the client's command line."""

import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from agent.cli import demo, keys, offline, replicas, scm, scrub, status
from agent.cli.output import Exit, fail, fail_usage, remark
from agent.errors import Code, Refused, SutureError, Unavailable
from agent.observe import logs

app = typer.Typer(
    name="suture",
    help="Keeps the replicas of a storage container equal and whole.",
    epilog="Exit codes: 0 done; 1 refused or failed; 2 done, and there is something to do; "
    "3 not possible now, try again; 64 wrong command line; 130 stopped by Ctrl-C.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

app.command("put")(keys.put)
app.command("get")(keys.get)
app.command("ls")(keys.ls)
app.command("status")(status.status)
app.command("tree")(replicas.tree)
app.command("diff")(replicas.diff)
app.command("explain")(replicas.explain)
app.command("scan")(replicas.scan)
app.command("reconcile")(scm.reconcile)
app.command("fsck")(offline.fsck)
app.command("demo")(demo.demo)
app.add_typer(scrub.app, name="scrub", help="See, pause and resume the background scans.")
app.add_typer(scm.app, name="scm", help="Ask the control plane, or give it a plan.")


def print_version(wanted: bool) -> None:
    """Print the version and stop, if asked to."""
    if wanted:
        typer.echo(f"suture {version('suture')}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool,
        typer.Option("--version", callback=print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Keeps the replicas of a storage container equal and whole."""


def main() -> None:
    """Run the command line; map what went wrong to an exit code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line; return its exit code."""
    logs.configure("warning")  # to stderr: stdout is for results
    as_json = "--json" in arguments
    try:
        result = app(arguments, prog_name="suture", standalone_mode=False)
    except typer.TyperException as error:
        show_usage(error, as_json=as_json)
        return Exit.USAGE
    except SutureError as error:
        if error.code is Code.UNAVAILABLE and not error.hint:
            error.hint = "is it running? --scm says where the SCM is; suture status asks all nodes"
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
