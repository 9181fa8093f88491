"""Generated from proto/suture/wire/v1 by tools/gen_proto.py; do not edit."""
