"""What a replica is made of on its volume: descriptor, tree, packs, what is kept aside."""
