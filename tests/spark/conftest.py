"""One Spark session for all tests that need one."""

from collections.abc import Iterator

import pytest

from tests.support.java import skip_without_java


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    """A session on two cores with four shuffle partitions."""
    skip_without_java()
    from spark_verify.session import open_session

    session = open_session(replica_count=0, master="local[2]")
    session.conf.set("spark.sql.shuffle.partitions", "4")
    yield session
    session.stop()
