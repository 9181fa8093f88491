"""Commands of the SCM: from the queue to what carries them out."""
