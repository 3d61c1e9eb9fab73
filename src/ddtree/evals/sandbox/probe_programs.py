"""Programs that probes run: each defines `probe`, which tries what it must not, and says how
that went."""

RIGHT = "def probe(x):\n    return x + 1\n"
READ = """\
def probe(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError as error:
        return type(error).__name__
"""
WRITE = """\
import os
def probe(folder):
    try:
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "written"), "w") as file:
            file.write("here")
        return "written"
    except OSError as error:
        return type(error).__name__
"""
CONNECT = """\
import socket
def probe(port):
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
        return "connected"
    except OSError as error:
        return type(error).__name__
"""
KERNEL = """\
import os
def probe():
    try:
        os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))
        return "open"
    except OSError as error:
        return type(error).__name__
"""
PROCESSES = """\
import os
def probe(pid, secret):
    found = []
    try:
        os.kill(pid, 0)
        found.append("may be signalled")
    except OSError:
        pass
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            if secret in file.read():
                found.append("is seen")
    except OSError:
        pass
    return found
"""
ENVIRONMENT = "import os\ndef probe():\n    return sorted(os.environ)\n"
ROOT = """\
import os
def probe():
    try:
        os.setuid(0)
    except OSError:
        pass
    return [*os.getresuid(), *os.getresgid(), *os.getgroups()]
"""
NAMESPACE = """\
import ctypes
def probe():
    return ctypes.CDLL(None).unshare(0x10000000)
"""
MEMORY = "def probe(size):\n    return len(bytearray(size))\n"
FORKS = """\
import os, time
def probe(most):
    made = 0
    try:
        while made < most:
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
            made += 1
    except OSError:
        pass
    return made
"""
SURVIVOR = """\
import os, signal, sys, time
def probe(mark):
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            sleep = "import time; time.sleep(60)"
            os.execv(sys.executable, [sys.executable, "-c", sleep, mark])
        os._exit(0)
    os.wait()
    time.sleep(0.3)
    return "left"
"""
SPIN = "def probe():\n    while True:\n        pass\n"
