"""Parts of the replication manager: its queue, the rebuilding of shards, and the removal of
replicas.
"""
