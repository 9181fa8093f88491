"""What was verified, repaired and deleted on a volume, written so that a change of it is found."""
