"""Parts of every server: binding, limits, access control, health."""
