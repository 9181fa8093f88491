"""An hour, or as long as one likes, of load and harm in a real Ozone cluster with agents in it."""
