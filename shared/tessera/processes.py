"""Child processes that never outlive their parent, not even when it is killed with SIGKILL.

When the thread that started a child dies, Linux sends the child a signal of our choice (prctl's PR_SET_PDEATHSIG). The
check of the parent's id closes the race with a parent that died before the call. Start children from the main thread.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def die_with_parent(sign: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """A `preexec_fn` that ties the child's life to its parent's.

    Args:
        sign: signal that the child gets when its parent has died. SIGKILL cannot be ignored; SIGTERM allows a clean
        end.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def tie() -> None:
        if libc.prctl(_PR_SET_PDEATHSIG, int(sign), 0, 0, 0) != 0 or os.getppid() != parent:
            os._exit(1)

    return tie
