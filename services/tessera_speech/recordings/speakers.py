"""Tells the speakers of a recording apart by its turns: an interface, and an implementation that needs no model.

The implementation is the classical one: mel-frequency cepstra of the turns, a Gaussian for each speaker, and turns
merged for as long as the Bayesian information criterion says that one Gaussian describes them better than two (Chen and
Gopalakrishnan, "Speaker, environment and channel change detection and clustering via the BIC", 1998). It tells apart
voices that sound different, not voices that overlap. Knows nothing about words or HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

RATE = 16_000
HOP = 320
"""Samples between two frames, 20 ms: closer frames repeat each other, but the criterion counts them as independent."""
WINDOW = 512
"""Samples of a frame."""
BANDS = 32
"""Number of mel bands."""
COEFFICIENTS = 16
"""Cepstral coefficients of a frame, without the one of loudness."""
PENALTY = 1.6
"""Weight of the criterion's penalty for a further speaker; a higher one merges more."""
PAUSE_DB = 30.0
"""Frames this far below the loudest frame of a turn are pauses."""
MIN_FRAMES = 2 * COEFFICIENTS
"""Turns with fewer frames have no Gaussian of their own: they go to the speaker with the nearest mean."""
MAX_CLUSTERED_TURNS = 600
"""Turns that are clustered at most, the longest ones; the others go to the speaker with the nearest mean."""


class Diarizer(Protocol):
    """Tells speakers apart."""

    def speakers(
        self,
        samples: np.ndarray[Any, Any],
        turns: Sequence[tuple[int, int]],
        references: Sequence[np.ndarray[Any, Any]] = (),
    ) -> list[int]:
        """The speaker of each turn.

        Args:
            samples: float32 [samples] at 16 kHz.
            turns: (first sample, the one after the last) of each turn.
            references: samples of each known speaker.

        Returns:
            For each turn the index of a reference, or the next free index for a further speaker, by first appearance.
        """
        ...


@dataclass
class _SpeakerGaussian:
    """The Gaussian of a speaker as sums over frames, so that two are merged by addition."""

    count: int
    total: np.ndarray[Any, Any]
    products: np.ndarray[Any, Any]

    @classmethod
    def of(cls, frames_FC: np.ndarray[Any, Any]) -> _SpeakerGaussian:
        return cls(len(frames_FC), frames_FC.sum(0), frames_FC.T @ frames_FC)

    def merged(self, other: _SpeakerGaussian) -> _SpeakerGaussian:
        return _SpeakerGaussian(self.count + other.count, self.total + other.total, self.products + other.products)

    @property
    def spread(self) -> float:
        """Half the number of frames times the logarithm of the covariance's determinant."""
        mean = self.total / self.count
        covariance = self.products / self.count - np.outer(mean, mean)
        # The diagonal gets a little more: few frames may lie in a plane.
        _, logarithm = np.linalg.slogdet(covariance + 1e-3 * np.eye(len(mean)))
        return float(self.count * logarithm / 2)


class ClusteringDiarizer:
    """Implements `Diarizer` with cepstra and the Bayesian information criterion.

    Args:
        penalty: see `PENALTY`.
    """

    def __init__(self, penalty: float = PENALTY) -> None:
        self._penalty = penalty

    def speakers(
        self,
        samples: np.ndarray[Any, Any],
        turns: Sequence[tuple[int, int]],
        references: Sequence[np.ndarray[Any, Any]] = (),
    ) -> list[int]:
        """Implements `Diarizer.speakers`."""
        frames = [cepstra(samples[first:end]) for first, end in turns]
        found = [_SpeakerGaussian.of(cepstra(reference)) for reference in references]
        known = len(found)
        long = [turn for turn, part in enumerate(frames) if len(part) >= MIN_FRAMES]
        long = sorted(sorted(long, key=lambda turn: -len(frames[turn]))[:MAX_CLUSTERED_TURNS])
        members = [{turn} for turn in long]
        clusters = self._merged([_SpeakerGaussian.of(frames[turn]) for turn in long], members)
        labels: dict[int, int] = {}
        for cluster, turns_of_cluster in sorted(zip(clusters, members, strict=True), key=lambda pair: min(pair[1])):
            gains = [self._gain(one, cluster) for one in found[:known]]
            if gains and min(gains) < 0:
                label = int(np.argmin(gains))
            else:
                label = len(found)
                found.append(cluster)
            labels |= dict.fromkeys(turns_of_cluster, label)
        for turn, part in enumerate(frames):
            if turn not in labels:
                labels[turn] = self._nearest(part, found) if found and len(part) else max(0, known)
        return _in_order([labels[turn] for turn in range(len(turns))], known)

    def _merged(self, clusters: list[_SpeakerGaussian], members: list[set[int]]) -> list[_SpeakerGaussian]:
        """Merge the two clusters with the largest gain until none gain; `members` is merged with them."""
        size = len(clusters)
        gains = np.full((size, size), np.inf)
        for one in range(size):
            for other in range(one):
                gains[one, other] = self._gain(clusters[one], clusters[other])
        while len(clusters) > 1:
            one, other = (int(place) for place in np.unravel_index(gains.argmin(), gains.shape))
            if gains[one, other] >= 0:
                break
            clusters[other] = clusters[other].merged(clusters[one])
            members[other] |= members[one]
            del clusters[one], members[one]
            gains = np.delete(np.delete(gains, one, 0), one, 1)
            for further in range(len(clusters)):
                if further != other:
                    gains[max(other, further), min(other, further)] = self._gain(clusters[other], clusters[further])
        return clusters

    def _gain(self, one: _SpeakerGaussian, other: _SpeakerGaussian) -> float:
        """Change of the criterion by merging two clusters; below zero, one Gaussian describes both better."""
        together = one.merged(other)
        size = len(one.total)
        penalty = (size + size * (size + 1) / 2) / 2 * np.log(together.count)
        return together.spread - one.spread - other.spread - self._penalty * float(penalty)

    @staticmethod
    def _nearest(frames_FC: np.ndarray[Any, Any], found: list[_SpeakerGaussian]) -> int:
        means = np.stack([one.total / one.count for one in found])
        return int(((means - frames_FC.mean(0)) ** 2).sum(1).argmin())


def cepstra(samples: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Mel-frequency cepstra without loudness, float64 [frames, 16], of float32 [samples]; pauses are left out."""
    if samples.size < WINDOW:
        return np.zeros((0, COEFFICIENTS))
    windows = np.lib.stride_tricks.sliding_window_view(samples, WINDOW)[::HOP] * np.hanning(WINDOW)
    power = np.abs(np.fft.rfft(windows, axis=1)) ** 2
    loudness = 10 * np.log10(power.sum(1) + 1e-10)
    bands = np.log(power[loudness > loudness.max() - PAUSE_DB] @ _mel_bands().T + 1e-10)
    angles = np.pi / BANDS * (np.arange(BANDS) + 0.5)[:, None] * np.arange(1, COEFFICIENTS + 1)
    cepstra_FC: np.ndarray[Any, Any] = bands @ (np.cos(angles) * np.sqrt(2 / BANDS))
    return cepstra_FC


def _mel_bands() -> np.ndarray[Any, Any]:
    """Triangular filters, evenly spaced on the mel scale between 80 and 7,600 Hz, [bands, bins]."""
    low, high = (2595 * np.log10(1 + hertz / 700) for hertz in (80.0, 7600.0))
    corners = 700 * (10 ** (np.linspace(low, high, BANDS + 2) / 2595) - 1)
    bins = np.fft.rfftfreq(WINDOW, 1 / RATE)
    rise = (bins - corners[:-2, None]) / (corners[1:-1] - corners[:-2])[:, None]
    fall = (corners[2:, None] - bins) / (corners[2:] - corners[1:-1])[:, None]
    triangles: np.ndarray[Any, Any] = np.maximum(0, np.minimum(rise, fall))
    return triangles


def _in_order(labels: list[int], known: int) -> list[int]:
    """Labels in which speakers that are not known are numbered by their first turn."""
    order: dict[int, int] = {label: label for label in range(known)}
    for label in labels:
        order.setdefault(label, len(order))
    return [order[label] for label in labels]
