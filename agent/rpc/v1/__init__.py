"""Generated from proto/agent/rpc/v1 by tools/gen_proto.py; do not edit."""
