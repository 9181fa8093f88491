"""Options of all programs: sections, units, and TOML files."""
