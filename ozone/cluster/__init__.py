"""A whole cluster of Ozone, through its storage container manager."""
