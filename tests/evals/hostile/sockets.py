# expect: passed
import socket

PLACES = (("127.0.0.1", 22), ("1.1.1.1", 53), ("169.254.169.254", 80))


def solve():
    made = []
    for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
            try:
                socket.socket(family, kind).close()
                made.append((family, kind))
            except OSError:
                pass
    for place in PLACES:
        try:
            socket.create_connection(place, 1).close()
            made.append(place)
        except OSError:
            pass
    try:
        one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        one.sendto(b"x", "/run/systemd/journal/dev-log")
        made.append("a message to the log")
    except OSError:
        pass
    return "contained" if not made else f"got {made}"
