"""A scrub of volumes of Ozone: what it finds on real ones, and that it leaves no trace."""

import json
from pathlib import Path

import pytest

from ozone.scrub.comparison import Agreement, ChecksumDifferenceReason
from ozone.scrub.result import ScrubStatus
from ozone.scrub.scrub import ScrubOptions
from scanner.finding import DamageFault, Forensic
from suture.errors import RefusedError
from tests.support.faults.changes_seen import changes
from tests.support.ozone.ozone_scrubs import BIG, damage, once, scrubbed
from tests.support.ozone.ozone_volumes import MadeVolume, golden, snapshot

DAMAGED = ScrubStatus.DAMAGED
# what was done to a file -> what is found in its block
FOUND_OF = {
    "flip": {DamageFault.CHUNK_CHECKSUM},
    "cut_mid": {DamageFault.CHUNK_SHORT, DamageFault.CHUNK_MISSING},
    "cut_zero": {DamageFault.CHUNK_MISSING},
    "remove": {DamageFault.BLOCK_FILE_MISSING},
    "append": {DamageFault.TRAILING_BYTES},
    "zero_page": {DamageFault.CHUNK_CHECKSUM},
    "swap": {DamageFault.CHUNK_CHECKSUM, DamageFault.CHUNK_SHORT, DamageFault.TRAILING_BYTES},
}


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real volumes. A test that changes one makes its own."""
    return golden(tmp_path_factory.mktemp("golden"))


# --- what is found -------------------------------------------------------------------------------


def test_scrub_finds_all_damage_of_a_real_volume_and_nothing_else(
    volumes: Path, tmp_path: Path
) -> None:
    """Each damaged file has the finding of its damage, and no other block has a finding."""
    wish = ScrubOptions(data_dirs=[volumes / "dn0-damaged"], state_dir=tmp_path / "state")
    done = json.loads((volumes / "damage.json").read_text())

    results = scrubbed(wish)

    expected = {}
    for item in done:
        for name in filter(None, (item["file"], item.get("with"))):
            place = (item["container"], int(name.removesuffix(".block")))
            expected[place] = FOUND_OF[item["kind"]]
    found: dict[tuple[int, int], set[DamageFault]] = {}
    for result in results.values():
        for finding in result.findings:
            place = (result.container_id, finding.block_id)
            found.setdefault(place, set()).add(finding.fault)
    assert expected.keys() == found.keys()
    assert all(found[place] <= expected[place] for place in expected)
    assert {1: DAMAGED, 2: DAMAGED, 3: ScrubStatus.MISSING, 4: ScrubStatus.WHOLE} == {
        container_id: result.status for container_id, result in results.items()
    }


def test_damage_is_classed(volumes: Path, tmp_path: Path) -> None:
    """One flipped bit, a lost page and a truncation are classified, with the evidence."""
    wish = ScrubOptions(data_dirs=[volumes / "dn0-damaged"], state_dir=tmp_path / "state")

    findings = scrubbed(wish)[1].findings

    looks = {finding.block_id % 1000: finding for finding in findings if finding.is_damage}
    assert Forensic.SINGLE_BIT is looks[29].forensic  # in the last chunk, that Ozone does not read
    assert "byte 33548 is flipped" in looks[29].evidence
    assert Forensic.ZEROED is looks[17].forensic
    assert Forensic.TRUNCATED is looks[19].forensic
    for block, other in ((10, 16), (16, 10)):  # their files were exchanged
        assert Forensic.MISDIRECTED is looks[block].forensic
        assert f"has the bytes of block 117883640217600{other:03}" in looks[block].evidence


def test_trees_that_ozone_made_of_damage_are_explained(volumes: Path, tmp_path: Path) -> None:
    """Ozone's scan saw the same damage, and left out the chunks that it never reads. Both are
    distinguished.
    """
    wish = ScrubOptions(data_dirs=[volumes / "dn0-damaged"], state_dir=tmp_path / "state")

    results = scrubbed(wish)

    assert [Agreement.DAMAGE, Agreement.DAMAGE, Agreement.EQUAL] == [
        results[number].comparison.agreement for number in (1, 2, 4)
    ]
    assert {ChecksumDifferenceReason.LAST_CHUNK: 1} == results[1].comparison.reasons
    assert {ChecksumDifferenceReason.NO_CHECKSUMS: 2} == results[2].comparison.reasons
    assert all(result.comparison.is_recorded for result in results.values())


def test_shards_of_erasure_coded_keys_are_read(volumes: Path, tmp_path: Path) -> None:
    """
    Shards keep their index; a padding block without chunks is whole.
    """
    wish = ScrubOptions(data_dirs=[volumes / "dn4" / "hdds"], state_dir=tmp_path / "state")

    results = scrubbed(wish)

    assert {(3, 3, 12345), (4, 2, 0)} == {
        (result.container_id, result.replica_index, result.bytes_read)
        for result in results.values()
    }
    assert all(result.status is ScrubStatus.WHOLE for result in results.values())


def test_a_volume_with_a_database_for_each_container_is_read(volumes: Path, tmp_path: Path) -> None:
    """In schema V2, closed containers are whole and open ones are skipped. Bytes that a dead
    client left behind a block are reported and are no damage.
    """
    wish = ScrubOptions(data_dirs=[volumes / "v2"], state_dir=tmp_path / "state")

    results = scrubbed(wish)

    assert [ScrubStatus.WHOLE, ScrubStatus.WHOLE, ScrubStatus.SKIPPED] == [
        results[number].status for number in (1, 2, 3)
    ]
    assert [Agreement.EXPLAINED, Agreement.EQUAL] == [
        results[number].comparison.agreement for number in (1, 2)
    ]
    assert {ChecksumDifferenceReason.NO_CHECKSUMS: 1} == results[1].comparison.reasons
    assert [(102, DamageFault.TRAILING_BYTES, 2000)] == [
        (finding.block_id, finding.fault, finding.length_bytes) for finding in results[1].findings
    ]


def test_a_lost_row_is_found(made: MadeVolume, tmp_path: Path) -> None:
    """A file that is alive in Ozone's tree and has no row is a loss. A file that was not
    expected was never committed.
    """
    made.put_tree(1, {9: [], 10: [], 11: []})
    made.file(1, 11).write_bytes(b"its row is gone")
    made.file(1, 12).write_bytes(b"never committed")

    result = scrubbed(ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state"))[1]

    lost = {item.block_id: item for item in result.findings if item.block_id in {11, 12}}
    assert [DamageFault.BLOCK_ROW_MISSING] * 2 == [lost[11].fault, lost[12].fault]
    assert lost[11].is_damage
    assert not lost[12].is_damage


# --- no trace ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dn0-damaged", "v2"])
def test_scrub_changes_nothing_on_the_volume(volumes: Path, tmp_path: Path, name: str) -> None:
    """Names, modes, sizes, links, times and checksums are as before, and inotify saw no change
    during the scrub.
    """
    before = snapshot(volumes / name)

    with changes(volumes / name) as seen:
        scrubbed(ScrubOptions(data_dirs=[volumes / name], state_dir=tmp_path / "state"))

    assert [] == seen
    assert before == snapshot(volumes / name)


def test_a_database_that_is_open_for_writing_is_left_alone(
    made: MadeVolume, tmp_path: Path
) -> None:
    """
    Beside a running datanode nothing below its directory changes either, and no link is left.
    """
    before = snapshot(made.root)

    with changes(made.root) as seen:
        results = scrubbed(ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state"))

    assert ScrubStatus.WHOLE is results[1].status
    assert [] == seen
    assert before == snapshot(made.root)
    assert [] == list((tmp_path / "state" / "views").iterdir())


def test_state_on_the_volume_is_refused(made: MadeVolume) -> None:
    """
    Nothing is written below a data directory, not even where the operator asks for it.
    """
    before = snapshot(made.root)

    with pytest.raises(RefusedError, match="it is on Ozone's volume"):
        scrubbed(ScrubOptions(data_dirs=[made.root], state_dir=made.root / "hdds" / "state"))

    assert before == snapshot(made.root)


# --- what happens meanwhile ----------------------------------------------------------------------


def test_a_block_that_is_deleted_while_it_is_read_is_no_finding(
    made: MadeVolume, tmp_path: Path
) -> None:
    """
    File and row go between the listing and the read.
    """
    made.add_block(1, 11, BIG)

    def delete() -> None:
        made.file(1, 11).unlink()
        made.drop_row(1, 11)

    wish = ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state")
    result = scrubbed(wish, once(delete))[1]

    assert ([], ScrubStatus.WHOLE) == (damage(result), result.status)


def test_a_block_that_is_about_to_be_deleted_is_no_finding(
    made: MadeVolume, tmp_path: Path
) -> None:
    """Ozone removes the file first and the row last, and records the pending delete meanwhile."""
    made.condemn(1, 9)
    made.file(1, 9).unlink()

    result = scrubbed(ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state"))[1]

    assert [] == damage(result)


def test_a_block_that_became_a_tombstone_while_it_was_read_is_no_finding(
    made: MadeVolume, tmp_path: Path
) -> None:
    """
    The tree has it deleted and the file is gone; the row is the last to go.
    """
    made.add_block(1, 11, BIG)
    made.put_tree(1, {9: [], 10: [], 11: []})

    def delete() -> None:
        made.put_tree(1, {9: [], 10: [], 11: []}, 11)
        made.file(1, 11).unlink()

    wish = ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state")
    result = scrubbed(wish, once(delete))[1]

    assert [] == damage(result)


def test_a_file_that_is_missing_is_found_beside_others_that_go(
    made: MadeVolume, tmp_path: Path
) -> None:
    """A missing file without a pending delete is a finding."""
    made.condemn(1, 9)
    made.file(1, 10).unlink()

    result = scrubbed(ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state"))[1]

    assert [(10, DamageFault.BLOCK_FILE_MISSING)] == damage(result)


def test_a_container_that_is_moved_while_it_is_read_is_no_finding(
    made: MadeVolume, tmp_path: Path
) -> None:
    """
    Its directory leaves at the first read, then its files go; the other container is read as ever.
    """
    made.add_block(1, 11, BIG)
    made.add_container(2)
    made.add_block(2, 1, b"stays")

    def move() -> None:
        leave(made.folder(1), tmp_path / "elsewhere")

    wish = ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state")
    results = scrubbed(wish, once(move))

    assert ((), ScrubStatus.SKIPPED) == (results[1].findings, results[1].status)
    assert "moved or deleted meanwhile" in results[1].why
    assert ScrubStatus.WHOLE is results[2].status


def test_a_container_that_is_moved_with_its_database_is_no_finding(tmp_path: Path) -> None:
    """
    In schema V2 the rows leave with the files.
    """
    data_dir = golden(tmp_path / "golden") / "v2"
    (folder,) = data_dir.glob("hdds/*/current/containerDir0/1")

    wish = ScrubOptions(data_dirs=[data_dir], state_dir=tmp_path / "state")
    results = scrubbed(wish, once(lambda: leave(folder, tmp_path / "elsewhere")))

    assert [ScrubStatus.SKIPPED, ScrubStatus.WHOLE] == [results[number].status for number in (1, 2)]


def leave(folder: Path, elsewhere: Path) -> None:
    """Take a container away as a delete does: its directory first, then its files."""
    folder.rename(elsewhere)
    for path in elsewhere.glob("chunks/*"):
        path.unlink()


def test_compactions_in_between_are_survived(made: MadeVolume, tmp_path: Path) -> None:
    """
    All files of the database are replaced while blocks are read; damage is found all the same.
    """
    for block_id in range(11, 40):
        made.add_block(1, block_id, BIG[: 1000 * block_id])
    made.compact()
    made.file(1, 30).write_bytes(BIG[1:30_001])
    before = {path.name for path in made.database.glob("*.sst")}

    wish = ScrubOptions(data_dirs=[made.root], state_dir=tmp_path / "state")
    result = scrubbed(wish, lambda _: made.compact())[1]

    assert not before & {path.name for path in made.database.glob("*.sst")}
    assert [(30, DamageFault.CHUNK_CHECKSUM)] == damage(result)
    assert 31 == result.block_count
