"""`sample` in plain torch, by sorting, and the random numbers that both implementations draw.

Shape letters: B rows, V vocabulary.
"""

from __future__ import annotations

import torch

GREEDY_BELOW = 1e-5
"""Temperature below which the likeliest token is chosen, because dividing logits by it overflows."""
SEEN = 1 << 24
"""Bit of a token's count that marks tokens of the prompt; the bits below count how often the token was drawn."""
STRIP = 1024
"""Tokens of a strip; four strips share the four words of one Philox call. Changing it changes what seeds draw."""
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
    position_B: torch.Tensor,
    counts_BV: torch.Tensor | None,
    repetition_B: torch.Tensor | None,
    presence_B: torch.Tensor | None,
    frequency_B: torch.Tensor | None,
) -> torch.Tensor:
    """Reference of `tessera_kernels.sampling.sample`."""
    x_BV = logits_BV.float()
    if counts_BV is not None:
        assert repetition_B is not None
        assert presence_B is not None
        assert frequency_B is not None
        x_BV = _penalized(x_BV, counts_BV, repetition_B, presence_B, frequency_B)
    greedy_B = temperature_B < GREEDY_BELOW
    x_BV = x_BV * (1.0 / torch.where(greedy_B, 1.0, temperature_B))[:, None]
    largest_B = x_BV.amax(dim=-1)
    invalid_B = ~largest_B.isfinite()
    allowed_BV = allowed_tokens(x_BV.nan_to_num(neginf=-torch.inf), top_k_B, top_p_B, min_p_B)
    noisy_BV = torch.where(allowed_BV, x_BV + gumbel(seed_B, position_B, x_BV.shape[1]), -torch.inf)
    chosen_B = torch.where(greedy_B, x_BV.argmax(dim=-1), noisy_BV.argmax(dim=-1))
    return chosen_B.masked_fill_(invalid_B, -1)


def allowed_tokens(
    x_BV: torch.Tensor, top_k_B: torch.Tensor, top_p_B: torch.Tensor, min_p_B: torch.Tensor
) -> torch.Tensor:
    """Mask of the tokens that top-k, top-p and min-p allow, of logits after temperature."""
    vocabulary = x_BV.shape[1]
    sorted_BV, order_BV = x_BV.sort(dim=-1, descending=True)
    first_BV = torch.searchsorted(-sorted_BV, -sorted_BV)  # number of likelier tokens; equal logits have the same
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
    """Count tokens that rows have drawn, or mark tokens of their prompts with `SEEN`, in place.

    Args:
        counts_BV: int32, contiguous.
        rows_N: int64, the row of each token.
        tokens_N: int64, token ids.
        prompt: whether these are tokens of prompts, which are marked once however often they occur.
    """
    flat, places_N = counts_BV.view(-1), rows_N * counts_BV.shape[1] + tokens_N
    if prompt:
        flat[places_N] = flat[places_N] | SEEN
    else:
        flat.scatter_add_(0, places_N, torch.ones_like(places_N, dtype=torch.int32))


def gumbel(seed_B: torch.Tensor, position_B: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Standard Gumbel noise [B, V], float32."""
    share_BV = uniform_bits(seed_B, position_B, vocabulary).float().add_(0.5).mul_(2.0**-32)
    # Shares near zero win most draws; log(1 - share) would lose all of their digits.
    near_BV = share_BV + share_BV * share_BV * (0.5 + share_BV * (1 / 3))
    far_BV = -torch.log((1.0 - share_BV).clamp_min(2.0**-26))
    return -torch.log(torch.where(share_BV < 2.0**-10, near_BV, far_BV))


def uniform_bits(seed_B: torch.Tensor, position_B: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """32 random bits for each token, int64 [B, V].

    Word j of counter c belongs to token (4 · (c // S) + j) · S + c % S, with S = `STRIP`.
    """
    groups = -(-vocabulary // (4 * STRIP))
    counters = vocabulary if vocabulary <= STRIP else groups * STRIP  # the first strip uses the first word only
    counter_1C = torch.arange(counters, device=seed_B.device)[None]
    position_B1 = position_B[:, None]
    words = (counter_1C, position_B1 & _WORD, (position_B1 >> 32) & _WORD, torch.zeros_like(position_B1))
    made = philox((words[0], words[1], words[2], words[3]), seed_B[:, None])
    if vocabulary <= STRIP:
        return made[0]
    strips_BGJS = torch.stack([word.view(-1, groups, STRIP) for word in made], dim=2)
    return strips_BGJS.flatten(1)[:, :vocabulary]


def philox(
    counter: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], key: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Philox4x32-10 (Salmon et al. 2011) of four 32-bit words, each in an int64, with a key of 64 bits."""
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
