"""An agent as a datanode of Ozone: it answers Ozone's peers and clients from its own store."""
