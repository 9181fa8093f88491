"""Transfers of whole containers between Ozone's datanodes, as archives, in both directions."""
