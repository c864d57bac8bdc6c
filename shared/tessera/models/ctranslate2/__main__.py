"""`python -m tessera.models.ctranslate2 SOURCE DIRECTORY`: converts a Whisper of CTranslate2.

Its last line of output is `{"error": …}`; a success prints nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tessera.errors import ModelLoadError
from tessera.models.ctranslate2.whisper import convert_whisper


def main() -> None:
    """Convert the directory that the command line names."""
    source, directory = (Path(argument) for argument in sys.argv[1:3])
    try:
        convert_whisper(source, directory)
    except Exception as error:  # noqa: BLE001 - whatever a hostile file does, the caller gets a sentence
        said = error.message if isinstance(error, ModelLoadError) else f"{type(error).__name__}: {error}"[:500]
        sys.stdout.write(json.dumps({"error": said}) + "\n")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
