"""Plans: the actions that follow from a judgement, one per row, each with its reason."""
