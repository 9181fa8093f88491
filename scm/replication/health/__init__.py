"""The judge applied to the state, which it reads as columns."""
