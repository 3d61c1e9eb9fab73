# Deleted at once, so that no folder shows them.
# expect: passed
import tempfile


def solve():
    files = []
    try:
        for _ in range(200):
            file = tempfile.TemporaryFile()  # noqa: SIM115 - kept open
            file.truncate(1 << 20)
            files.append(file)
    except OSError:
        return "contained"
    return f"{len(files)} open files"
