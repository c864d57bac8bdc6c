"""Starts the embedded Redis in place of this process, in the way that the space on its disk allows.

`python redis_start.py <least free bytes> <server> <directory> <option> …`. With `appendfsync always` the server ends
itself when its file cannot be written, and every read with it. On a disk that is nearly full it is started with
`everysec` instead: then it goes on to answer reads, and refuses writes by name (MISCONF). Uses nothing but the standard
library and is run without the site packages, so that it takes some milliseconds. Does not know who goes back to
`always` (`tessera.suite.disk_watch`).
"""

import os
import shutil
import signal
import sys


def main() -> None:
    """Become the server."""
    least, server, directory, *options = sys.argv[1:]
    if shutil.disk_usage(directory).free < int(least):
        options[options.index("--appendfsync") + 1] = "everysec"
    # A write over a limit of file sizes is an error as on a full disk, and not the end of the process.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    os.execv(server, [server, *options])  # noqa: S606 - without a shell, on purpose


if __name__ == "__main__":
    main()
