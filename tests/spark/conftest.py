"""Where Spark keeps its files in these tests."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def spark_local_dirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have every process of Spark keep its files where they go with the tests': some are killed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_DIRS", str(tmp_path_factory.mktemp("spark-local")))
        yield
