"""The cluster at a glance: what is known of it, what is to be said of it, and how it was."""
