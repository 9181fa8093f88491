"""The documents as a web site: mkdocs.yml builds it without a warning."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.packaging.monitoring import rules
from tools.packages import stage

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
LOADED = re.compile(r'<(?:script|link|img)\b[^>]*(?:src|href)="?(?:https?:)?//[^">]*')


def build(folder: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of the mkdocs.yml in a folder; every warning is an error."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", site],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of the documents, as the package has it."""
    folder = tmp_path_factory.mktemp("package") / "site"
    stage.build_site(folder)
    return folder


def test_site_has_a_page_for_every_document(site: Path) -> None:
    """Each Markdown file below docs/ is a page, and README.md the index of its folder."""
    documents = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]

    expected = {
        document.with_name("index.html" if document.stem == "README" else f"{document.stem}.html")
        for document in documents
    }
    assert set() == {page for page in expected if not (site / page).exists()}
    assert documents


def test_site_loads_nothing_from_other_sites(site: Path) -> None:
    """No page has a script, style or image of another host, so it works without a network."""
    loaded = {name for page in site.rglob("*.html") for name in LOADED.findall(page.read_text())}

    assert set() == loaded


@pytest.mark.parametrize("word", ["throttle", "decommission", "SutureScmDown"])
def test_search_index_leads_to_the_manual(site: Path, word: str) -> None:
    """The index that the pages search in the browser has the words of operators."""
    index = json.loads((site / "search" / "search_index.json").read_text())["docs"]

    found = [entry["location"] for entry in index if word in f"{entry['title']} {entry['text']}"]
    assert any(location.startswith("operations/") for location in found)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_runbook_link_of_an_alert_is_a_heading_of_the_packaged_site(
    rule: dict[str, Any], site: Path
) -> None:
    """The browser finds the page and the heading on a host with the package."""
    url = rule["annotations"]["runbook_url"]
    name, _, anchor = url.removeprefix(f"file:///{stage.SITE}/").partition("#")

    assert f'id="{anchor}"' in (site / name).read_text()


@pytest.mark.parametrize("link", ["no-such-page.md", "capacity.md#no-such-heading"])
def test_build_fails_for_a_broken_link(tmp_path: Path, link: str) -> None:
    """A link to a missing page or heading is a warning, and a warning fails the build."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    with (tmp_path / "docs/operations/upgrade.md").open("a") as page:
        page.write(f"\n[broken]({link})\n")

    built = build(tmp_path, tmp_path / "site")

    assert 0 != built.returncode
    assert link.partition("#")[0] in built.stderr
