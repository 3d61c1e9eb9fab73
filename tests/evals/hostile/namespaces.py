# expect: passed
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
FLAGS = (0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x10020000)


def solve():
    done = [hex(flag) for flag in FLAGS if libc.unshare(flag) == 0]
    if libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0:
        done.append("mount")
    if libc.mount(None, b"/", None, 32 | 4096, None) == 0:
        done.append("remount")
    if libc.umount2(b"/proc", 2) == 0:
        done.append("umount")
    if libc.chroot(b"/tmp") == 0:
        done.append("chroot")
    return "contained" if not done else f"managed {done}"
