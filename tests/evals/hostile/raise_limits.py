# expect: passed
import resource

NAMES = ("AS", "CPU", "NPROC", "NOFILE", "FSIZE", "STACK", "CORE")


def solve():
    raised = []
    for name in NAMES:
        which = getattr(resource, f"RLIMIT_{name}")
        try:
            resource.setrlimit(which, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            raised.append(name)
        except (OSError, ValueError):
            pass
    return "contained" if not raised else f"raised {raised}"
