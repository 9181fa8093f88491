"""Suture beside a real cluster of Apache Ozone: `make interop`."""
