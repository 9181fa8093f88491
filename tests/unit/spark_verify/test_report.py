"""How numbers become words and bars."""

import json
import re

import pytest

from spark_verify.pipeline import VerifyRequest, VerifyResult, verify
from spark_verify.report.pages import html_report, instant_text
from spark_verify.result_tables import RESULTS
from tests.support.verification.snapshots import container, gather

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


class TestWords:
    """What a person reads."""

    def test_instants_are_utc(self) -> None:
        """
        The machine's own time zone never shows.
        """
        assert instant_text(1_700_000_000_000) == "2023-11-14 22:13:20 UTC"


KEYS = {
    "key_count": 1_003,
    "container_count": 1,
    "keys": [{"key": "<b>a", "container_ids": [5]}, {"key": "b", "container_ids": [5]}],
}
NO_KEYS = {"key_count": 0, "container_count": 0, "keys": []}


@pytest.fixture(scope="module")
def lacking(tmp_path_factory: pytest.TempPathFactory) -> VerifyResult:
    """A container that lacks a replica and one that is well, in a cluster without keys at risk."""
    directory = tmp_path_factory.mktemp("lacking")
    rows = gather([container(1, "R CLOSED 10", "C=7x2"), container(2, "R CLOSED 10", "C=7x3")])
    snapshot = rows.write(directory / "s", manifest={"keys_at_risk": NO_KEYS})
    return verify(VerifyRequest(str(snapshot), directory / "out", run_id="r"))


@pytest.fixture(scope="module")
def grey(tmp_path_factory: pytest.TempPathFactory) -> VerifyResult:
    """Containers that cannot be compared, of which some are at risk, and keys of these."""
    directory = tmp_path_factory.mktemp("grey")
    rows = gather(
        [
            container(1, "R OPEN 10", "O=7x3"),
            container(2, "R CLOSED 10", "C=7?d"),
            container(3, "EC CLOSED", "C#1=1 C#2=2 C#3=3 C#4=4 C#5=5"),
            container(4, "R CLOSED 10", "C=7 C=8~crc32c"),
            container(5, "R CLOSED 10", "U=7x3"),
            container(6, "R CLOSED 10", "C=7x3"),
            container(7, "R OPEN 10", "O=7x3"),
        ]
    )
    snapshot = rows.write(directory / "s", manifest={"keys_at_risk": KEYS})
    return verify(VerifyRequest(str(snapshot), directory / "out", run_id="r"))


def page_of(result: VerifyResult) -> str:
    return (result.directory / "report.html").read_text(encoding="utf-8")


def test_the_report_says_what_to_do_next(lacking: VerifyResult) -> None:
    """
    A command for each action that is planned, none for one that is not; Ozone's states beside the
    flags; a link to each table, which lies beside the report.
    """
    run, page = lacking.directory, page_of(lacking)

    command = f"<code>suture scm apply-plan {run} --dry-run</code>"
    assert 1 == page.count(command), "replicate alone"
    assert '<td class="name">UNDER_REPLICATED</td><td class="n">1</td>' in page
    linked = re.findall(r'<a href="([\w./=]+)/">', page)
    assert len(RESULTS) == len(linked)
    assert {run.parent / name / run.name for name in RESULTS} == {
        (run / link).resolve() for link in linked
    }
    assert "Not comparable" not in page
    assert "suture ls --container" not in page


def test_grey_containers_have_a_reason_and_lost_ones_their_keys(grey: VerifyResult) -> None:
    """Each container that cannot be compared has one of four reasons, with the first ids. The
    page has the command that lists the keys of containers at risk.
    """
    told = {
        word: (found["containers"], found["ids"])
        for word, found in grey.summary["incomparable"].items()
    }
    assert {
        "NOT_CLOSED": (2, [1, 7]),
        "NO_REPLICA_ANSWERS": (1, [2]),
        "SHARDS_ALONE": (1, [3]),
        "TREES_OF_OTHER_KINDS": (1, [4]),
    } == told
    assert 5 == grey.summary["checksum_classes"]["NOT_COMPARABLE"]
    page = page_of(grey)
    for reason in ("still written", "no replica answers", "no shard twice", "several algorithms"):
        assert reason in page
    assert "<code>suture ls --container 2 --container 5</code>" in page


def test_keys_at_risk_are_named(grey: VerifyResult, lacking: VerifyResult) -> None:
    """If the control plane knows them, they are in the page, whatever their names, in the text
    and in the summary, with their number. Without any, nothing is printed.
    """
    pages, texts = [], []
    for result, found in ((grey, KEYS), (lacking, NO_KEYS)):
        summary = json.loads((result.directory / "summary.json").read_text(encoding="utf-8"))
        assert found == summary["keys_at_risk"]
        pages.append(page_of(result))
        texts.append(result.summary["text_report"])

    assert '<td class="w">&lt;b&gt;a</td><td class="w">5</td>' in pages[0]
    assert "1,003 keys have blocks in 1 containers" in pages[0]
    found = "First of 1003 keys in containers at risk, for the SCM:\n<b>a (in 5)\nb (in 5)\n"
    assert found in texts[0]
    assert "Keys at risk" not in pages[1]
    assert "keys in containers" not in texts[1]


def test_single_bad_container_in_a_million_stays_visible(lacking: VerifyResult) -> None:
    """Each checksum class that occurs has a segment with a minimum width; the others have none."""
    counts = dict.fromkeys(lacking.summary["checksum_classes"], 0)

    page = html_report(
        lacking.summary | {"checksum_classes": counts | {"MATCH": 1_000_000, "MISMATCH_SPLIT": 1}},
        "/out/run_id=r",
    )

    segments = re.findall(r'<i style="flex:(\d+);[^>]*title="(\w+): \d+"', page)
    assert [("1", "MISMATCH_SPLIT"), ("1000000", "MATCH")] == segments
    assert ".stack i{min-width:.6%}" in page
