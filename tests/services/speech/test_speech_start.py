"""What the speech engine's process refuses at its start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera.errors import SettingsError
from tessera.hub.store import ModelDirectory
from tessera.settings.load import load
from tessera_speech import worker


def test_recordings_that_no_message_can_carry_are_refused_at_the_start(
    synthesis_model: ModelDirectory, transcription_model: ModelDirectory, models_dir: Path
) -> None:
    values = {"suite": {"models": str(models_dir)}, "speech": {"max_audio_seconds": 20_000, "threads": 1}}
    with pytest.raises(SettingsError, match="at most 16760 fit"):
        worker.build(load(environment={}, overrides=values))
