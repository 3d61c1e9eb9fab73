"""What a process gives up before it runs a program: resources, its uid, files, system calls.

All of it holds for whatever the process starts, and nothing of it can be taken back.
"""

import base64
import ctypes
import os
import resource
import signal
import stat
from collections.abc import Mapping, Sequence
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2
# Bytes of one instruction of a filter.
_INSTRUCTION = 8

# System calls of this age have the same numbers on every machine.
_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_ADD_RULE = 445
_LANDLOCK_RESTRICT_SELF = 446
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_DEVICE = _READ_FILE | _WRITE_FILE | _TRUNCATE
_WORK = ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV)
# Rights that a rule on something other than a folder may name.
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
# How many of the rights on files each version of the interface knows.
_RIGHTS = {0: 0, 1: 13, 2: 14, 3: 15, 4: 15}
_ALL_RIGHTS = 16
# Binding and connecting of TCP sockets; connecting to abstract sockets and signals to the outside.
_NETWORK, _NETWORK_ABI = 0b11, 4
_SCOPES, SCOPES_ABI = 0b11, 6


class _Ruleset(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def apply(settings: Mapping[str, Any]) -> None:
    """Give up what `settings` say; OSError where the kernel refuses, and then nothing may run.

    `rlimits`: (soft, hard) by name. `keep`: the one open file beside the standard three. `uid`:
    whom to become, None to stay. `landlock`: arguments of `restrict_files`, None for no
    restriction. `seccomp`: a filter's instructions in base64, None for no filter.
    """
    os.umask(0o077)
    for name, (soft, hard) in settings["rlimits"].items():
        _limit(getattr(resource, name), soft, hard)
    os.set_inheritable(settings["keep"], False)
    os.closerange(3, settings["keep"])
    os.closerange(settings["keep"] + 1, 1 << 16)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    if settings["landlock"] is not None:
        restrict_files(**settings["landlock"])
    if settings["uid"] is not None:
        become(settings["uid"])
    # After the change of uid, which undoes both.
    prctl(PR_SET_DUMPABLE, 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if settings["seccomp"] is not None:
        filter_calls(base64.b64decode(settings["seccomp"]))


def prctl(option: int, argument: int) -> None:
    """OSError where the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    rest = (ctypes.c_ulong(0),) * 3
    _check(libc.prctl(ctypes.c_int(option), ctypes.c_ulong(argument), *rest))


def become(uid: int) -> None:
    """Become `uid`, with the group of the same number and no other."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    if {*os.getresuid(), *os.getresgid()} != {uid} or os.getgroups():
        raise PermissionError(f"uid {uid} asked for, got {os.getresuid()}, {os.getresgid()}")


def landlock_abi() -> int:
    """The version of Landlock's interface; 0 where the kernel has none."""
    try:
        version = ctypes.c_uint(_CREATE_RULESET_VERSION)
        return _call(_LANDLOCK_CREATE_RULESET, ctypes.c_void_p(None), ctypes.c_size_t(0), version)
    except OSError:
        return 0


def restrict_files(read: Sequence[str], devices: Sequence[str], work: Sequence[str]) -> None:
    """Leave nothing but these paths, and what is beneath them: to read and execute, to read and
    write, to do as one likes in. Paths that don't exist are left out."""
    abi = landlock_abi()
    handled = (1 << _RIGHTS.get(abi, _ALL_RIGHTS)) - 1
    network = _NETWORK if abi >= _NETWORK_ABI else 0
    scopes = _SCOPES if abi >= SCOPES_ABI else 0
    rules = _Ruleset(handled, network, scopes)
    size = ctypes.c_size_t(ctypes.sizeof(rules))
    ruleset = _call(_LANDLOCK_CREATE_RULESET, ctypes.byref(rules), size, ctypes.c_uint(0))
    for paths, rights in ((read, _READ), (devices, _DEVICE), (work, _WORK)):
        for path in paths:
            _allow(ruleset, path, rights & handled)
    _call(_LANDLOCK_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0))
    os.close(ruleset)


def filter_calls(instructions: bytes) -> None:
    """Let a seccomp filter decide about every system call from here on."""
    buffer = ctypes.create_string_buffer(instructions, len(instructions))
    wanted = _Filter(len(instructions) // _INSTRUCTION, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    mode = ctypes.c_ulong(SECCOMP_MODE_FILTER)
    _check(libc.prctl(ctypes.c_int(PR_SET_SECCOMP), mode, ctypes.byref(wanted)))


def _limit(which: int, soft: int, hard: int) -> None:
    """A limit that is lower already stays: only root could raise it."""
    most = resource.getrlimit(which)[1]
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(which, (soft, hard))


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        where = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(os.fstat(where).st_mode):
        rights &= _OF_FILES
    rule = _PathBeneath(rights, where)
    kind, none = ctypes.c_int(_RULE_PATH_BENEATH), ctypes.c_uint(0)
    _call(_LANDLOCK_ADD_RULE, ctypes.c_int(ruleset), kind, ctypes.byref(rule), none)
    os.close(where)


def _call(number: int, *arguments: Any) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return _check(libc.syscall(ctypes.c_long(number), *arguments))


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
