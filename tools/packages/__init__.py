"""What the packages of Debian and of RPM share: files, wheels, what is done on a host."""
