"""Formats the help of a command: arguments, options, exit codes and an example in sections."""

import inspect
from collections.abc import Sequence
from typing import Any, Final

from typer.core import TyperCommand

EXIT_CODES: Final = "Exit codes"
EXAMPLE: Final = "Example"


class HelpSections:
    """Formats a help text that may end with the paragraphs "Exit codes:" and "Example:".

    Each of these paragraphs is a heading with lines. A line of exit codes has the form `CODE:
    MEANING`.
    """

    help: str | None

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the paragraphs of the help text, without the sections."""
        del ctx
        text, _ = split_help(self.help or "")
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the sections "Exit codes" and "Example" after the options."""
        del ctx
        _, sections = split_help(self.help or "")
        for heading, lines in sections.items():
            with formatter.section(heading):
                if heading == EXIT_CODES:
                    write_exit_codes(formatter, lines)
                else:
                    for line in lines:
                        formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


class SectionedCommand(HelpSections, TyperCommand):
    """A command whose help shows only the name of each argument, without its type."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections with the arguments and the options."""
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


def write_exit_codes(formatter: Any, lines: Sequence[str]) -> None:
    """Write lines of the form `CODE: MEANING` in two columns."""
    formatter.write_dl([tuple(line.split(": ", 1)) for line in lines])


def split_help(text: str) -> tuple[str, dict[str, list[str]]]:
    """Divide a docstring into its paragraphs and its sections.

    Return the paragraphs as one text, and the lines of each section by heading. A line that is
    indented more than the first line of its section continues the previous line.
    """
    paragraphs: list[str] = []
    sections: dict[str, list[str]] = {}
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        heading, _, below = paragraph.partition(":\n")
        if heading not in {EXIT_CODES, EXAMPLE}:
            paragraphs.append(paragraph)
            continue
        lines: list[str] = []
        for line in inspect.cleandoc(below).split("\n"):
            if line.startswith(" "):
                lines[-1] += " " + line.strip()
            else:
                lines.append(line)
        sections[heading] = lines
    return "\n\n".join(paragraphs), sections
