"""Log-probabilities of tokens in the shapes of OpenAI's chat, OpenAI's completions and vLLM's prompts.

Knows no request: `TokenNames` says how tokens are named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.language.generation import Prompt, TextDelta
from tessera.tokenizer.detokenizer import Detokenizer
from tessera.tokenizer.tokenizer import Tokenizer
from tessera.wire.chat import TokenLogprob, TopLogprob
from tessera.wire.engine import TokenScore
from tessera.wire.vllm.logprobs import CompletionLogprobs, PromptLogprob, PromptLogprobs


@dataclass(frozen=True)
class TokenNames:
    """How log-probabilities name tokens.

    Attributes:
        tokenizer: of the model.
        by_id: whether as `token_id:7` instead of by their text, so that every token has a name of its own.
    """

    tokenizer: Tokenizer
    by_id: bool = False

    def name(self, token: int) -> str:
        """The name of a token."""
        return f"token_id:{token}" if self.by_id else self.tokenizer.token_text(token)


def prompt_logprobs(prompt: Prompt, scores: list[TokenScore], tokenizer: Tokenizer) -> PromptLogprobs:
    """Log-probabilities of a prompt's tokens in vLLM's shape; the first token has none."""
    shown: PromptLogprobs = [None]
    for token, score in zip(prompt.token_ids[1:], scores, strict=True):
        likeliest = {
            str(other): PromptLogprob(value, rank, tokenizer.token_text(other))
            for rank, (other, value) in enumerate(score.top, start=1)
        }
        own = PromptLogprob(score.logprob, score.rank, tokenizer.token_text(token))
        shown.append(likeliest | {str(token): own})
    return shown


def token_logprobs(piece: TextDelta, names: TokenNames) -> list[TokenLogprob]:
    """The tokens of a delta with their log-probabilities in OpenAI's shape; empty when none were requested."""
    shown = []
    tokenizer = names.tokenizer
    for token, score in zip(piece.token_ids, piece.scores, strict=False):
        top = [TopLogprob(names.name(other), value, list(tokenizer.token_bytes(other))) for other, value in score.top]
        own = list(tokenizer.token_bytes(token))
        shown.append(TokenLogprob(names.name(token), score.logprob, own, top))
    return shown


def completion_logprobs(
    names: TokenNames, prompt: Prompt | None, pieces: Sequence[TextDelta], offset: int
) -> CompletionLogprobs:
    """Log-probabilities in the shape of completions.

    Args:
        names: how tokens are named.
        prompt: whose tokens come first, if it is echoed.
        pieces: deltas of one choice.
        offset: characters of the choice before these tokens.
    """
    logprobs = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
    if prompt is not None:
        detokenizer = Detokenizer(names.tokenizer, [])
        for token, score in zip(prompt.token_ids, [None, *pieces[0].prompt_scores], strict=True):
            _add(logprobs, names, token, score, offset)
            offset += len(detokenizer.push(token))
        offset += len(detokenizer.flush())
    for piece in pieces:
        for token, own in zip(piece.token_ids, piece.scores, strict=False):
            _add(logprobs, names, token, own, offset)
        offset += len(piece.text)
    return logprobs


def _add(logprobs: CompletionLogprobs, names: TokenNames, token: int, score: TokenScore | None, offset: int) -> None:
    logprobs.tokens.append(names.name(token))
    logprobs.token_logprobs.append(None if score is None else score.logprob)
    assert logprobs.top_logprobs is not None
    top = None if score is None else {names.name(other): value for other, value in score.top}
    logprobs.top_logprobs.append(top)
    logprobs.text_offset.append(offset)
