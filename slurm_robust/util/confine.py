"""Lets this process and its children change files below some folders only.

It uses Landlock, which every user may use (Linux 5.13): the kernel itself refuses.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from typing import Any

# System calls of Landlock, the same on every architecture.
_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_GET_VERSION = 1
_PATH_BENEATH = 1
_NO_NEW_PRIVS = 38

# linux/landlock.h
_WRITE_FILE = 1 << 1
_CHANGES = _WRITE_FILE | sum(1 << bit for bit in range(4, 13))  # remove or make anything
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_REFER_SINCE, _TRUNCATE_SINCE = 2, 3


class NoLandlock(Exception):
    """This kernel has no Landlock, or it is switched off."""


def confine_changes(folders: Iterable[str]) -> None:
    """Let this process change files below ``folders`` only; absent folders are left out.

    What is open stays so. Called while there is one thread. Raises :class:`NoLandlock`, ``OSError``.
    """
    places = [folder for folder in map(os.path.realpath, folders) if os.path.isdir(folder)]
    version = _call(_CREATE, None, 0, _GET_VERSION)
    if version < 1:
        raise NoLandlock("this kernel cannot keep it from changing files (no Landlock, see landlock(7))")
    changes = _CHANGES
    changes |= _REFER if version >= _REFER_SINCE else 0
    changes |= _TRUNCATE if version >= _TRUNCATE_SINCE else 0
    rules = _checked(_CREATE, struct.pack("<Q", changes), 8, 0)
    for place in places:
        folder = os.open(place, os.O_PATH | os.O_CLOEXEC)
        _checked(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("<Qi", changes, folder), 0)
        os.close(folder)
    if ctypes.CDLL(None, use_errno=True).prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    _checked(_RESTRICT, rules, 0)
    os.close(rules)


def _call(*arguments: Any) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return int(libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]))


def _checked(*arguments: Any) -> int:
    result = _call(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"Landlock: {os.strerror(number)}")
    return result
