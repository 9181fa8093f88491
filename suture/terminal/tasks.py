"""Help by task: commands are listed under their tasks, each with a whole sentence."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from typer.core import TyperGroup

HELP_NAMES: Final = {"help_option_names": ["-h", "--help"]}
"""Accepted by every program, because operators also type -h."""

OTHERS: Final = "Other commands"
TASKS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "suture": {
        "Store and fetch": ("put", "get", "ls", "rm"),
        "See how it is": ("status", "volumes", "findings", "top", "history"),
        "Look into a container": ("explain", "tree", "diff", "diagnose"),
        "Read and mend": ("scrub", "reconcile", "verify-log", "attest"),
        "Before something is switched off": ("ok-to-stop",),
        "Disks": ("volume", "fsck", "salvage"),
        "The control plane": ("scm",),
        "Set up and try": ("config", "tls", "demo", "ozone"),
    },
    "scm": {
        "See what it knows": ("nodes", "containers", "report", "queues"),
        "Datanodes leave, rest and return": (
            *("decommission", "maintenance", "decommission-status", "remove-node"),
            "refresh-volumes",
        ),
        "Replicas": ("replicate", "delete", "close", "balance"),
        "What it leaves alone": ("hold", "mark-lost"),
        "Spark": ("snapshot", "apply-plan"),
        "Its own state": ("safemode", "backup", "restore", "recover"),
    },
}


def sections(group: str, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the commands of a group by task, including those without a task."""
    found = {
        task: [name for name in known if name in names]
        for task, known in TASKS.get(group, {}).items()
    }
    told = {name for known in found.values() for name in known}
    rest = [name for name in names if name not in told]
    found[OTHERS if told else "Commands"] = rest
    return {task: known for task, known in found.items() if known}


class TaskGroup(TyperGroup):
    """A group whose help is in sections, with whole sentences."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # click's, inside typer
        """Write every command below its task."""
        known = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        shown = {name: command for name, command in known.items() if command and not command.hidden}
        for task, names in sections(ctx.info_name or "", list(shown)).items():
            with formatter.section(task):
                formatter.write_dl([(name, _sentence(shown[name])) for name in names])


def _sentence(command: Any) -> str:
    """Return the first paragraph of a command's help, in one line."""
    text = (command.help or "").partition("\f")[0].strip()
    return " ".join(text.partition("\n\n")[0].split())
