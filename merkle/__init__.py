"""Pure: the nouns, the checksums, the tree of a replica, and what differs between two."""
