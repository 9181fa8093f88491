"""The judge: decides the health of containers and the actions that follow. No I/O."""
