"""Command `scm balance`: moves replicas from full datanodes to empty datanodes."""

from functools import partial
from typing import Annotated, Final

from agent.cli.change import apply as apply
from agent.cli.change import hold_commands as hold_commands
from agent.cli.change import mark_lost_commands as mark_lost_commands
from agent.cli.change import node_commands as node_commands  # its commands belong to the same group
from agent.cli.change import recover as recover
from agent.cli.change import work_commands as work_commands
from agent.cli.change.confirmation import DryRunFlag, Order, YesFlag
from agent.cli.inspect.scm_commands import app
from suture.errors import Code, RefusedError
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.credentials import connect
from suture.terminal.document import facts
from suture.terminal.output import pluralize, print_json, print_line, print_rows, short, size
from suture.terminal.typer_options import flag, option
from suture.wire.v1 import scm_pb2

PERMILLE: Final = 10


@app.command("balance")
def balance(
    threshold: Annotated[
        str, option("PERCENT", "Allowed difference from the mean use of all datanodes.")
    ] = "10%",
    iterations: Annotated[int, option("N", "Maximum number of iterations.", min=1, max=1_000)] = 10,
    status: Annotated[bool, flag("Print only the progress.", "--status")] = False,
    stop: Annotated[bool, flag("End balancing without starting more moves.", "--stop")] = False,
    dry_run: DryRunFlag = False,
    yes: YesFlag = False,
) -> int:
    """Balance replicas between full and empty datanodes.

    All other replication has priority. The moves of the first iteration are shown before they
    begin.

    Exit codes:
        2: a datanode is further from the average than the threshold

    Example:
        suture scm balance --threshold 5%
    """
    permille = threshold_permille(threshold)
    request = scm_pb2.BalanceRequest(
        threshold_permille=0 if status or stop else permille,
        iteration_count=iterations,
        stop=stop,
    )
    with connect() as client:
        order = Order(client.scm.balance, request, "begin?", partial(show_balance, permille))
        is_move = not (status or stop)
        return order.confirm_and_submit(dry_run=dry_run and is_move, yes=yes or not is_move)


def threshold_permille(text: str) -> int:
    """Return a percentage, such as `10%` or `2.5`, in thousandths.

    Raise RefusedError if it is less than 0.1 or more than 100.
    """
    try:
        permille = round(float(text.removesuffix("%")) * PERMILLE)
    except ValueError:
        permille = 0
    if not 1 <= permille <= 100 * PERMILLE:
        raise RefusedError(
            Code.MALFORMED_REQUEST,
            f"invalid --threshold '{text}': expected a percentage "
            "above 0 and up to 100, for example 10%",
            hint="10%",
        )
    return permille


def show_balance(permille: int, answer: scm_pb2.BalanceResponse) -> int:
    """Print the used space of each datanode in percent, and the moves of replicas."""
    used = [share.used_permille for share in answer.shares]
    spread = max(used, default=0) - min(used, default=0)
    if is_json():
        print_json(facts(answer))
    else:
        rows = [
            (short(s.datanode_id), f"{s.used_permille / PERMILLE:.1f} %") for s in answer.shares
        ]
        print_rows(["datanode", "used#"], rows)
        moves = [
            (
                m.container_id,
                short(m.source_datanode_id),
                short(m.target_datanode_id),
                size(m.bytes),
            )
            for m in answer.moves
        ]
        if moves:
            print_rows(["container#", "source", "target", "bytes#"], moves)
        print_line(
            f"{'running' if answer.running else 'not running'}"
            f"{': ' + answer.message if answer.message else ''}; "
            f"{pluralize(answer.moved_count, 'replica')} moved ({size(answer.moved_bytes)}) "
            f"in {pluralize(answer.iteration, 'iteration')}"
        )
    return ExitCode.TO_DO if spread > 2 * permille else ExitCode.OK
