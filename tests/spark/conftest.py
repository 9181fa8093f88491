"""One Spark session for all tests that need one."""

from collections.abc import Iterator

import pytest

from spark_verify.pipeline import HERE_ROWS
from tests.support.verification.java import skip_without_java
from tests.support.verification.object_store import give_credentials


@pytest.fixture(scope="session", autouse=True)
def spark_local_dirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have every process of Spark keep its files where they go with the tests': some are killed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_DIRS", str(tmp_path_factory.mktemp("spark-local")))
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    """A session on two cores with four shuffle partitions."""
    skip_without_java()
    from spark_verify.tasks.session import open_session

    give_credentials()  # of the object store: Spark's workers have the environment of its start
    session = open_session(replica_count=0, master="local[2]")
    session.conf.set("spark.sql.shuffle.partitions", "4")
    yield session
    session.stop()


@pytest.fixture(
    scope="session",
    params=[pytest.param(0, marks=pytest.mark.spark), HERE_ROWS],
    ids=["spark", "here"],
)
def here_rows(request: pytest.FixtureRequest) -> int:
    """How many replicas this process verifies by itself: none, so that Spark does, or all."""
    if request.param == 0:
        request.getfixturevalue("spark")
    return int(request.param)
