"""Lends this environment the torch of another: `python borrow_torch.py ../.venv`.

guidellm loads its data through torch. The suite's own environment has one that works on this machine, and a second copy
would be up to 3 GB. The packages that torch itself needs are in requirements.txt.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path


def main() -> None:
    """Link the packages; a link that exists is made anew, because the other environment may have been."""
    here = Path(sysconfig.get_path("purelib"))
    there = next(Path(sys.argv[1]).resolve().glob("lib/python3*/site-packages"))
    for name in (
        "torch",
        "torchgen",
        "functorch",
        "triton",
        "nvidia",
        *(p.name for p in there.glob("torch-*.dist-info")),
    ):
        if (there / name).exists():
            (here / name).unlink(missing_ok=True)
            (here / name).symlink_to(there / name)


if __name__ == "__main__":
    main()
