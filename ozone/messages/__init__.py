"""Generated from proto/ozone/messages by tools/gen_proto.py: the parts of Ozone's protocols in use."""
