"""Formats the help of a group of commands: the commands are listed by task, each with a
sentence."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from typer.core import TyperGroup

from suture.terminal.command_help import HelpSections

HELP_NAMES: Final = {"help_option_names": ["-h", "--help"]}
"""The names of the help option in every program."""

OTHERS: Final = "Other commands"
TASKS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "suture": {
        "Keys": ("put", "get", "ls", "rm"),
        "Monitoring": ("status", "volumes", "findings", "top", "history", "versions"),
        "Container inspection": ("explain", "tree", "diff", "diagnose"),
        "Verification and repair": ("scrub", "reconcile", "verify-log", "attest"),
        "Before maintenance": ("ok-to-stop",),
        "Disks": ("volume", "fsck", "salvage"),
        "Control plane": ("scm",),
        "Setup": ("config", "tls", "demo", "ozone"),
    },
    "scm": {
        "State": ("nodes", "containers", "report", "queues", "config"),
        "Datanode lifecycle": (
            *("decommission", "maintenance", "decommission-status", "remove-node"),
            "refresh-volumes",
        ),
        "Replicas": ("replicate", "delete", "close", "balance"),
        "Pauses and limits": ("pause", "resume", "limit"),
        "Holds and losses": ("hold", "mark-lost"),
        "Spark": ("snapshot", "apply-plan"),
        "Backup and recovery": ("safemode", "backup", "restore", "recover"),
    },
}


def sections(group: str, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the names of a group's commands by task. Commands without a task have a section of
    their own."""
    found = {
        task: [name for name in known if name in names]
        for task, known in TASKS.get(group, {}).items()
    }
    told = {name for known in found.values() for name in known}
    rest = [name for name in names if name not in told]
    found[OTHERS if told else "Commands"] = rest
    return {task: known for task, known in found.items() if known}


class TaskGroup(HelpSections, TyperGroup):
    """A group of commands whose help lists the commands by task, each with a complete sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # click's, inside typer
        """Write a section with the commands of each task."""
        known = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        shown = {name: command for name, command in known.items() if command and not command.hidden}
        for task, names in sections(ctx.info_name or "", list(shown)).items():
            with formatter.section(task):
                formatter.write_dl([(name, _sentence(shown[name])) for name in names])


def _sentence(command: Any) -> str:
    """Return the first paragraph of a command's help as one line."""
    text = (command.help or "").partition("\f")[0].strip()
    return " ".join(text.partition("\n\n")[0].split())
