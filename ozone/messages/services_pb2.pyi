from ozone.messages import archive_pb2 as _archive_pb2
from ozone.messages import serving_pb2 as _serving_pb2
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor
