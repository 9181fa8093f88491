"""How Ozone's services are asked over the network: frames, messages, connections."""
