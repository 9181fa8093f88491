"""Option `diagnose --replay`: computes all check results in a bundle again from the recorded
evidence."""

from collections import Counter
from pathlib import Path

from agent.cli.evidence.bundle_reading import NONSENSE, no_bundle, read_bundle
from agent.cli.evidence.verdict_replay import ReplayedVerdict, ReplayOutcome, replay_verdicts
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.output import pluralize, print_json, print_line


def replay(bundle: Path) -> int:
    """Compute each recorded check result (verdict) in a bundle again, and print the comparison.

    Return the exit code.
    """
    made = read_bundle(bundle)
    try:
        items = list(replay_verdicts(made))
    except NONSENSE as error:
        raise no_bundle(bundle, f"what it says makes no sense: {error!r}") from error
    tally = Counter(item.outcome for item in items)
    container_id = made.container.get("container_id")
    if is_json():
        print_json(
            {
                "container_id": container_id,
                "suture": made.about.get("suture"),
                "at_ms": made.about.get("at_ms"),
                "verdicts": [_facts(item) for item in items],
                "outcomes": {outcome.value: tally[outcome] for outcome in ReplayOutcome},
            }
        )
    else:
        print_line(f"container {container_id}, bundled by suture {made.about.get('suture')}")
        for item in items:
            print_line(f"  {item.place}: {item.verdict}: {item.outcome} ({item.why})")
        verdicts = pluralize(len(items), "verdict")
        print_line(f"{verdicts}: " + ", ".join(f"{tally[one]} {one}" for one in ReplayOutcome))
    return ExitCode.TO_DO if tally[ReplayOutcome.DIFFERS] else ExitCode.OK


def _facts(item: ReplayedVerdict) -> dict[str, str]:
    return {
        "place": item.place,
        "verdict": item.verdict,
        "outcome": item.outcome,
        "reason": item.why,
    }
