"""Configuration of all programs: sections of options, values with units, and TOML files."""
