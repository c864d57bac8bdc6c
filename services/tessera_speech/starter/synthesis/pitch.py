"""Makes another voice from a recording: pulses at even distances, each a grain of the recording, stretched or not.

Pitch-synchronous overlap-add (Moulines & Charpentier 1990). A voice whose pulses fall on the same places in every frame
of latents can be learned by regression, because no state has to keep the phase. It speaks at one pitch. Knows nothing
about text.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.signal import butter, sosfiltfilt

from tessera_speech.starter.synthesis.teacher import HOP, RATE, Floats

LOWEST, HIGHEST = 65.0, 260.0
"""Range of the recording's pitch, in hertz."""
_WINDOW = 1200
_VOICED = 0.6
"""Lowest autocorrelation of a voiced frame."""
_AUDIBLE = 0.3
_PULSES_BELOW = 900.0
_REACH = 200
"""Most samples between a new pulse and the old pulse from which it is made."""
_MARGIN = 1024

Doubles = npt.NDArray[np.float64]


def revoiced(samples: Floats, *, period: int, stretch: float) -> Floats:
    """The recording at a pitch of `RATE / period` hertz, with the same duration.

    Args:
        samples: recording at `RATE` [time].
        period: samples between two pulses; `HOP` must be a multiple of it.
        stretch: factor of the spectrum; above 1, formants rise as in a smaller speaker.
    """
    pitch = pitch_of(samples)
    pulses = _pulses(samples, pitch)
    made = np.zeros(len(samples) + 2 * _MARGIN)
    times = np.arange(len(samples))
    for place in range(0, len(samples), period):
        hertz = pitch[min(place // HOP, len(pitch) - 1)]
        source, reach, gain = place, period, 1.0
        if len(pulses) and not np.isnan(hertz):
            nearest = int(pulses[np.abs(pulses - place).argmin()])
            if abs(nearest - place) < _REACH:
                source, reach = nearest, int(RATE / hertz / stretch)
                gain = max(period / reach, 0.8)
        offsets = np.arange(-reach, reach + 1)
        grain = np.interp(source + stretch * offsets, times, samples, left=0.0, right=0.0)
        start = place - reach + _MARGIN
        made[start : start + len(offsets)] += gain * grain * (0.5 + 0.5 * np.cos(np.pi * offsets / reach))
    return made[_MARGIN : _MARGIN + len(samples)].astype(np.float32)


def pitch_of(samples: Floats) -> Doubles:
    """Pitch in hertz of every frame of `HOP` samples, by autocorrelation; NaN where a frame is unvoiced."""
    count = len(samples) // HOP
    around = np.pad(samples.astype(np.float64), (_WINDOW // 2 - HOP // 2, _WINDOW))
    window = np.hanning(_WINDOW)
    rows = around[np.arange(count)[:, None] * HOP + np.arange(_WINDOW)] * window
    longest, shortest = int(RATE / LOWEST), int(RATE / HIGHEST)
    similar, own = _autocorrelation(rows)[:, : longest + 1], _autocorrelation(window)[: longest + 1]
    power = similar[:, 0].copy()
    similar = similar / (power[:, None] + 1e-9) / (own / own[0])
    lags = shortest + similar[:, shortest:longest].argmax(axis=1)
    hertz: Doubles = RATE / lags
    hertz[(similar[np.arange(count), lags] < _VOICED) | (power < _AUDIBLE)] = np.nan
    return hertz


def _autocorrelation(rows: Doubles) -> Doubles:
    power = np.abs(np.fft.rfft(rows, 4096)) ** 2
    return np.asarray(np.fft.irfft(power), dtype=np.float64)


def _pulses(samples: Floats, pitch: Doubles) -> npt.NDArray[np.int64]:
    """Positions of the voice's pulses, in order, found from the highest peak of each voiced stretch to both sides."""
    low = sosfiltfilt(butter(4, 2 * _PULSES_BELOW / RATE, output="sos"), samples)
    low = low * np.sign((low**3).sum())
    found: set[int] = set()
    voiced = np.flatnonzero(~np.isnan(pitch))
    for stretch in np.split(voiced, np.flatnonzero(np.diff(voiced) > 1) + 1):
        if len(stretch) < 2:
            continue
        start, end = int(stretch[0]) * HOP, min(int(stretch[-1] + 1) * HOP, len(samples))
        highest = start + int(low[start:end].argmax())
        found.add(highest)
        for direction in (1, -1):
            at = highest
            while True:
                period = RATE / pitch[min(max(at // HOP, stretch[0]), stretch[-1])]
                first, last = int(at + (direction - 0.15) * period), int(at + (direction + 0.15) * period) + 1
                if first < start or last > end:
                    break
                at = first + int(low[first:last].argmax())
                found.add(at)
    return np.array(sorted(found), dtype=np.int64)
