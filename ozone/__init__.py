"""Integration with Apache Ozone: scrub and repair of its volumes, and its protocols."""
