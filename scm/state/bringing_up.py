"""A state of an earlier version is brought to this one when it is opened."""

from collections.abc import Mapping
from typing import Any, Final

import lmdb

from scm.state import records
from scm.state.replicas import replica_rows
from scm.state.replicas.replica_table import ReplicaTable

_BY_CONTAINER: Final = (4, 5)  # versions of the format in which replicas lay by containers


def bring_up(
    environment: lmdb.Environment, table: ReplicaTable, databases: Mapping[str, Any]
) -> None:
    """Have replicas lie by their datanodes, with all numbers that are kept of them."""
    replicas, meta = databases[table.name], databases["meta"]
    with environment.begin(write=True) as transaction:
        row = transaction.get(b"format_version", db=meta)
        version = 0 if row is None else int(records.unpack(bytes(row), 1)[0])
        if version not in _BY_CONTAINER and version not in replica_rows.FORMAT_VERSIONS_WIDENED:
            return
        if version in _BY_CONTAINER:
            old = environment.open_db(b"replicas", txn=transaction)
            for key, row in transaction.cursor(db=old):
                transaction.put(table.key_since_6(key), row, db=replicas)
            transaction.drop(old)
        if version in replica_rows.FORMAT_VERSIONS_WIDENED:
            with transaction.cursor(db=replicas) as cursor:
                for key, row in cursor:  # goes on behind what it puts
                    cursor.put(key, replica_rows.widened(bytes(row), version))
        transaction.put(b"format_version", records.pack([records.FORMAT_VERSION]), db=meta)
