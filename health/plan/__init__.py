"""What follows from a judgement: rows of a plan, each with its reason."""
