"""The judge: whether a container is whole, what is wrong with it, and what follows. Pure."""
