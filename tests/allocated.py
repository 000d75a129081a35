"""Bytes allocated by this process, as counted by glibc."""

from __future__ import annotations

import ctypes
from typing import Final

_LIBC: Final = ctypes.CDLL(None)
CAN_COUNT: Final = hasattr(_LIBC, "mallinfo2")
"""glibc has the function since 2.33."""


class _Mallinfo2(ctypes.Structure):
    """`struct mallinfo2` of malloc.h."""

    _fields_ = (
        ("arena", ctypes.c_size_t),
        ("ordblks", ctypes.c_size_t),
        ("smblks", ctypes.c_size_t),
        ("hblks", ctypes.c_size_t),
        ("hblkhd", ctypes.c_size_t),
        ("usmblks", ctypes.c_size_t),
        ("fsmblks", ctypes.c_size_t),
        ("uordblks", ctypes.c_size_t),
        ("fordblks", ctypes.c_size_t),
        ("keepcost", ctypes.c_size_t),
    )


def allocated_bytes() -> int:
    """Bytes that all threads hold, in the heap and mapped by the allocator."""
    _LIBC.mallinfo2.restype = _Mallinfo2
    info = _LIBC.mallinfo2()
    return int(info.uordblks + info.hblkhd)
