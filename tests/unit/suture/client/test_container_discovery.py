"""Parts of files in a temporary database: they come back as the files that they are parts of."""

from hypothesis import given
from hypothesis import strategies as st

from suture.client.container_discovery import PartStore
from suture.client.put_metadata import PartBlock, PutMetadata, files_of

NAMES = st.sampled_from(["a", "a\0", "a\0b", "a~", "aa", "é", "\U0001f600", "z" * 1_024])
NUMBERS = st.integers(0, 3) | st.just(2**63 - 1)
NOTES = st.none() | st.builds(
    PutMetadata, st.sampled_from(["one", "two"]), st.integers(1, 3), NUMBERS, NUMBERS
)
PARTS = st.builds(PartBlock, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NAMES, st.integers(0, 3), NOTES)


@given(st.lists(st.lists(PARTS, max_size=6), max_size=4))
def test_stored_parts_return_as_the_files_of_all_parts(portions: list[list[PartBlock]]) -> None:
    """The portions in which they came make no difference."""
    with PartStore() as store:
        for portion in portions:
            store.add(portion)
        found = list(store.files())

    assert files_of([part for portion in portions for part in portion]) == found
