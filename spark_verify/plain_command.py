"""Help of the commands, in the form of `suture.terminal.command_help`.

It is not part of `suture` because the job runs where no agent is installed.
"""

from typing import Any

from typer.core import TyperCommand


class PlainCommand(TyperCommand):
    """A command whose arguments are named by their metavars only, without a type."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options."""
        rows: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        parameters: list[Any] = list(self.get_params(ctx))  # the class declares no name
        for parameter in parameters:
            record = parameter.get_help_record(ctx)
            if record is not None:
                kind = parameter.param_type_name
                name = parameter.display_name_raw if kind == "argument" else record[0]
                rows[kind].append((name, record[1]))
        for kind, records in rows.items():
            if records:
                with formatter.section(f"{kind.title()}s"):
                    formatter.write_dl(records)
