"""Files of a replica on its volume: descriptor, tree, packs, and quarantine."""
