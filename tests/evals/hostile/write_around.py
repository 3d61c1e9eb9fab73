# expect: passed
import pathlib

PLACES = ("/", "/dev", "/etc", "/usr", "/usr/bin", "/opt", "/root", "/run", "/var/tmp", "/work")


def solve():
    written = []
    for place in (*PLACES, "@OUTSIDE@"):
        try:
            pathlib.Path(place, "written-by-a-program").write_text("x")
            written.append(place)
        except OSError:
            pass
    return "contained" if not written else f"wrote to {written}"
