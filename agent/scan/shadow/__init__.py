"""A part of what is read, hashed a second time by other code in another process."""
