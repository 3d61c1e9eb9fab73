"""The filter of system calls: what no answer to a coding task needs, and what could lead out.

Everything else stays allowed: threads, processes, pipes and files must work.
"""

import errno
import importlib
import socket
import tempfile
from typing import Any

from ddtree.errors import ConfigError

# Namespaces and mounts; other processes; the kernel's inside; keys, which have no uid of their own;
# clocks and names; objects in memory that outlive their maker.
_REFUSED = (
    *("unshare", "setns", "mount", "umount2", "pivot_root", "chroot"),
    *("move_mount", "open_tree", "fsopen", "fsconfig", "fsmount", "fspick"),
    *("ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd"),
    *("bpf", "perf_event_open", "userfaultfd"),
    *("io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module"),
    *("keyctl", "add_key", "request_key"),
    *("open_by_handle_at", "name_to_handle_at", "quotactl", "acct", "swapon", "swapoff", "reboot"),
    *("settimeofday", "clock_settime", "sethostname", "setdomainname", "syslog", "vhangup"),
    *("shmget", "semget", "msgget", "mq_open"),
    *("socket", "connect", "bind", "listen"),
)

# Flags of clone: mount, cgroup, uts, ipc, user, pid and network namespaces.
_NEW_NAMESPACES = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
# Other types than streams can be sent to any address.
_SOCKET_TYPE_MASK = 0xF
_NO_STREAMS = (socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_RDM, socket.SOCK_SEQPACKET)
# Requests that put characters into a terminal's input, as if typed.
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_LOW_WORD = 0xFFFFFFFF


def filter_instructions() -> bytes:
    """The filter as the kernel takes it, for this machine's architecture.

    ConfigError where pyseccomp, or the library it needs, is not there or does not know a call.
    """
    library = _library()
    rules = library.SyscallFilter(library.ALLOW)
    refuse = library.ERRNO(errno.EPERM)

    def masked(argument: int, mask: int, value: int) -> Any:
        return library.Arg(argument, library.MASKED_EQ, mask, value)

    try:
        for name in _REFUSED:
            rules.add_rule(refuse, name)
        for flag in _NEW_NAMESPACES:
            rules.add_rule(refuse, "clone", masked(0, flag, flag))
        # Its flags lie in memory, where no filter can look: callers go back to clone.
        rules.add_rule(library.ERRNO(errno.ENOSYS), "clone3")
        rules.add_rule(refuse, "socketpair", library.Arg(0, library.NE, socket.AF_UNIX))
        for kind in _NO_STREAMS:
            rules.add_rule(refuse, "socketpair", masked(1, _SOCKET_TYPE_MASK, kind))
        for request in (_TIOCSTI, _TIOCLINUX):
            rules.add_rule(refuse, "ioctl", masked(1, _LOW_WORD, request))
        with tempfile.TemporaryFile() as file:
            rules.export_bpf(file)
            file.seek(0)
            return file.read()
    except OSError as error:
        raise ConfigError(f"libseccomp can't build the filter ({error}), expected 2.5") from None


def _library() -> Any:
    try:
        return importlib.import_module("pyseccomp")
    except (ImportError, RuntimeError) as error:
        raise ConfigError(
            f"no filter of system calls ({error}): install pyseccomp (the extra `eval`) and "
            "libseccomp2"
        ) from None
