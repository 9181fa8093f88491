"""The last look before a replica goes: what may be deleted, of copies, origins and shards. Pure."""
