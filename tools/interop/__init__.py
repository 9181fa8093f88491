"""Tests of Suture with a real cluster of Apache Ozone: `make interop`."""
