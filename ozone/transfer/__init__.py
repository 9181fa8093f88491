"""Transfers of complete containers between Ozone's datanodes, as archives, in both directions."""
