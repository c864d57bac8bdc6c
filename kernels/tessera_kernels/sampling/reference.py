"""`sample` in plain torch, by sorting; and the random numbers of both implementations. B rows, V vocabulary."""

from __future__ import annotations

import torch

GREEDY_BELOW = 1e-5
"""Temperatures below this one take the likeliest token: dividing by them overflows."""
SEEN = 1 << 24
"""Of a token's count, that the prompt has it; what is below it counts how often it was drawn."""
STRIP = 1024
"""Four strips of tokens share the four numbers that Philox makes at once; it is part of what a seed means."""
_ROUNDS = 10
_A, _B = 0xD2511F53, 0xCD9E8D57
_KEY_A, _KEY_B = 0x9E3779B9, 0xBB67AE85
_WORD = 0xFFFFFFFF


def sample(
    logits_BV: torch.Tensor,
    temperature_B: torch.Tensor,
    top_k_B: torch.Tensor,
    top_p_B: torch.Tensor,
    min_p_B: torch.Tensor,
    seed_B: torch.Tensor,
    place_B: torch.Tensor,
    counts_BV: torch.Tensor | None,
    repetition_B: torch.Tensor | None,
    presence_B: torch.Tensor | None,
    frequency_B: torch.Tensor | None,
) -> torch.Tensor:
    """See `tessera_kernels.sampling.sample`."""
    x_BV = logits_BV.float()
    if counts_BV is not None:
        assert repetition_B is not None
        assert presence_B is not None
        assert frequency_B is not None
        x_BV = _penalized(x_BV, counts_BV, repetition_B, presence_B, frequency_B)
    greedy_B = temperature_B < GREEDY_BELOW
    x_BV = x_BV * (1.0 / torch.where(greedy_B, 1.0, temperature_B))[:, None]
    largest_B = x_BV.amax(dim=-1)
    lost_B = ~largest_B.isfinite()
    kept_BV = kept(x_BV.nan_to_num(neginf=-torch.inf), top_k_B, top_p_B, min_p_B)
    noisy_BV = torch.where(kept_BV, x_BV + gumbel(seed_B, place_B, x_BV.shape[1]), -torch.inf)
    chosen_B = torch.where(greedy_B, x_BV.argmax(dim=-1), noisy_BV.argmax(dim=-1))
    return chosen_B.masked_fill_(lost_B, -1)


def kept(x_BV: torch.Tensor, top_k_B: torch.Tensor, top_p_B: torch.Tensor, min_p_B: torch.Tensor) -> torch.Tensor:
    """Which tokens may be drawn, after temperature."""
    vocabulary = x_BV.shape[1]
    sorted_BV, order_BV = x_BV.sort(dim=-1, descending=True)
    first_BV = torch.searchsorted(-sorted_BV, -sorted_BV)  # how many are likelier: equal ones have the same number
    k_B1 = torch.where(top_k_B > 0, top_k_B, vocabulary)[:, None]
    stay_BV = (first_BV < k_B1) & (sorted_BV > -torch.inf)
    mass_BV = (sorted_BV - sorted_BV[:, :1]).double().exp().masked_fill(~stay_BV, 0.0)
    before_BV = (mass_BV.cumsum(dim=-1) - mass_BV).gather(1, first_BV)
    p_B1 = torch.where(top_p_B < 1, top_p_B.double(), torch.inf)[:, None]
    stay_BV &= before_BV < p_B1 * mass_BV.sum(dim=-1, keepdim=True)
    stay_BV &= sorted_BV >= sorted_BV[:, :1] + min_p_B.log()[:, None]
    stay_BV |= sorted_BV == sorted_BV[:, :1]
    return torch.empty_like(stay_BV).scatter_(1, order_BV, stay_BV)


def count_tokens(counts_BV: torch.Tensor, rows_N: torch.Tensor, tokens_N: torch.Tensor, *, prompt: bool) -> None:
    """Count tokens that rows have drawn, or mark those that their prompts have, in place.

    Args:
        counts_BV: int32, contiguous.
        rows_N: int64, which row each token belongs to.
        tokens_N: int64.
        prompt: whether they are of prompts; these are marked once however often they come.
    """
    flat, places_N = counts_BV.view(-1), rows_N * counts_BV.shape[1] + tokens_N
    if prompt:
        flat[places_N] = flat[places_N] | SEEN
    else:
        flat.scatter_add_(0, places_N, torch.ones_like(places_N, dtype=torch.int32))


def gumbel(seed_B: torch.Tensor, place_B: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Standard Gumbel noise [B, V], float32."""
    share_BV = uniform_bits(seed_B, place_B, vocabulary).float().add_(0.5).mul_(2.0**-32)
    # What wins is near zero, where a logarithm of 1 - share would have no digits left.
    near_BV = share_BV + share_BV * share_BV * (0.5 + share_BV * (1 / 3))
    far_BV = -torch.log((1.0 - share_BV).clamp_min(2.0**-26))
    return -torch.log(torch.where(share_BV < 2.0**-10, near_BV, far_BV))


def uniform_bits(seed_B: torch.Tensor, place_B: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """32 random bits for each token, int64 [B, V]; word j of counter c is for token (4 · (c // S) + j) · S + c % S."""
    groups = -(-vocabulary // (4 * STRIP))
    counters = vocabulary if vocabulary <= STRIP else groups * STRIP  # the first strip needs no other word
    counter_1C = torch.arange(counters, device=seed_B.device)[None]
    place_B1 = place_B[:, None]
    words = (counter_1C, place_B1 & _WORD, (place_B1 >> 32) & _WORD, torch.zeros_like(place_B1))
    made = philox((words[0], words[1], words[2], words[3]), seed_B[:, None])
    if vocabulary <= STRIP:
        return made[0]
    strips_BGJS = torch.stack([word.view(-1, groups, STRIP) for word in made], dim=2)
    return strips_BGJS.flatten(1)[:, :vocabulary]


def philox(
    counter: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], key: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Philox4x32-10 of words of 32 bits, each in an int64, and a key of 64."""
    shape = (key + counter[0]).shape
    c0, c1, c2, c3 = (word.expand(shape) for word in counter)
    k0, k1 = key & _WORD, (key >> 32) & _WORD
    for _ in range(_ROUNDS):
        # Products of int64 wrap as those of uint64 do.
        low, high = c0 * _A, c2 * _B
        c0, c1, c2, c3 = (
            ((high >> 32) & _WORD) ^ c1 ^ k0,
            high & _WORD,
            ((low >> 32) & _WORD) ^ c3 ^ k1,
            low & _WORD,
        )
        k0, k1 = (k0 + _KEY_A) & _WORD, (k1 + _KEY_B) & _WORD
    return c0, c1, c2, c3


def _penalized(
    x_BV: torch.Tensor,
    counts_BV: torch.Tensor,
    repetition_B: torch.Tensor,
    presence_B: torch.Tensor,
    frequency_B: torch.Tensor,
) -> torch.Tensor:
    repetition_B1 = repetition_B[:, None]
    repeated_BV = torch.where(x_BV > 0, x_BV / repetition_B1, x_BV * repetition_B1)
    drawn_BV = counts_BV % SEEN
    taken_BV = torch.where(drawn_BV > 0, presence_B[:, None] + frequency_B[:, None] * drawn_BV, 0.0)
    return torch.where(counts_BV != 0, repeated_BV, x_BV) - taken_BV
