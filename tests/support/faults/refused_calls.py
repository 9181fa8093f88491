"""Installs a seccomp filter that rejects system calls of this process and its children, as the
SystemCallFilter= of a systemd unit does.
"""

import ctypes
import errno
import os
import struct
from typing import Final

PR_SET_NO_NEW_PRIVS: Final = 38
PR_SET_SECCOMP: Final = 22
SECCOMP_MODE_FILTER: Final = 2
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_LOAD: Final = 0x20  # a word of what is asked: 0 is the number of the call, 4 the architecture
_JUMP_IF_EQUAL: Final = 0x15
_RETURN: Final = 0x06
_INSTRUCTION: Final = struct.Struct("HBBI")

SETPRIORITY: Final = {"x86_64": (0xC000003E, 141), "aarch64": (0xC00000B7, 140)}
"""By machine: the architecture number, and the number of setpriority(2), which nice(3) calls."""


class _Program(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def refuse_setpriority() -> None:
    """Make setpriority(2) fail with EPERM from now on, with seccomp(2)."""
    architecture, number = SETPRIORITY[os.uname().machine]
    instructions = [
        (_LOAD, 0, 0, 4),
        (_JUMP_IF_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, 0),
        (_JUMP_IF_EQUAL, 0, 1, number),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    data = ctypes.create_string_buffer(b"".join(_INSTRUCTION.pack(*one) for one in instructions))
    program = _Program(len(instructions), ctypes.addressof(data))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in (
        (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*call):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
