"""An agent that is led by a storage container manager of Apache Ozone."""
