"""An hour (or another time) of load and faults in a real Ozone cluster with agents."""
