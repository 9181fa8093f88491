"""The workers that look at the data of this host: rounds, on demand, on change, parity, volumes."""
