"""Containers as Ozone's datanodes send them to each other: an archive of files, both ways."""
