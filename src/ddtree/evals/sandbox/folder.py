"""The work folder of one run."""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def work_folder(base: Path, uid: int | None) -> Iterator[Path]:
    """A new folder in `base` that belongs to `uid` (None: to us); gone afterwards, whatever was
    made in it."""
    folder = Path(tempfile.mkdtemp(dir=base))
    try:
        if uid is not None:
            os.chown(folder, uid, uid)
        yield folder
    finally:
        remove(folder)


def remove(folder: Path) -> None:
    """Remove a folder with all that is in it, closed or nested as deep as it may be."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return
    except OSError:
        if os.geteuid() != 0:
            subprocess.run(["chmod", "-R", "u+rwX", folder], stderr=subprocess.DEVNULL, check=False)
        subprocess.run(["rm", "-rf", "--one-file-system", folder], check=True)
