"""Common parts of the Debian and RPM packages: files, wheels, host scripts."""
