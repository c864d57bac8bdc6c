"""Messages between a service and its engine process: tagged unions in MessagePack, never pickle.

A frame is four bytes of big-endian length and then the message (`tessera.engine.connection`). Tensors travel as
`Array`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tessera.errors import ErrorBody
from tessera.wire.models import Card

MAX_MESSAGE_BYTES = 1 << 30
"""Most bytes of a message."""


class EngineMessage(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all messages, tagged by the name of the class unless the class sets a tag."""


class Array(msgspec.Struct, frozen=True, kw_only=True):
    """A dense array: C order, little-endian, `dtype` by NumPy's name."""

    dtype: str
    shape: list[int]
    data: bytes


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    """Where a grammar begins in the answer of a model that thinks first: after the thought.

    `begin` is the token that opens a thought (None: the model always thinks), `end` the tokens that close it. `open` is
    true if the prompt has opened the thought already.
    """

    begin: int | None
    end: list[int]
    open: bool


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """A grammar that the text of an answer must follow. The engine compiles it; an error names the request's `param`.

    `source` by kind: a JSON schema; a regular expression; a grammar in GBNF with a rule `root`; a JSON list of texts,
    one of which is the answer; or for `calls` the JSON of `{begin, calls: [{begin, schema, end}], separator, end,
    most}`, of which one or more are called (exactly one if `most` is 1). `calls_or_json` is the same with an `answer:
    {begin, schema, param}`, JSON that the text may be instead of calls.
    """

    kind: Literal["json_schema", "regex", "ebnf", "choice", "calls", "calls_or_json"]
    source: str
    param: str
    markers: list[str] = []
    """Control tokens that the grammar may produce; no other control token is part of an answer."""
    thinking: Thinking | None = None


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are sampled. The defaults are greedy, and stop only at `max_tokens` or at one of `stop_ids`."""

    max_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    stop_ids: list[int] = []
    min_tokens: int = 0
    """Tokens of the answer before which none of `held_ids` is sampled."""
    held_ids: list[int] = []
    banned: list[list[int]] = []
    """Sequences of tokens that the answer must not have; the last token of one is never sampled behind the others."""
    allowed_ids: list[int] | None = None
    """The only tokens that may be sampled; None allows all."""
    logprobs: int | None = None
    """How many likeliest tokens to report beside the sampled one; None reports no log-probabilities."""
    prompt_logprobs: int | None = None
    """The same for all tokens of the prompt but the first. Then no token of the prompt comes from the prefix cache."""
    grammar: Grammar | None = None


class Generate(EngineMessage, frozen=True, kw_only=True):
    """Service → sequence engine: continue `token_ids`. `media` feeds a vision-language model's processor outputs."""

    request_id: str
    token_ids: list[int]
    sampling: Sampling
    media: dict[str, Array] = {}
    priority: int = 0
    """Requests with a lower value are served first."""
    tenant: str = ""
    """Tenant to whose fair share the request counts."""
    cache_salt: str = ""
    """Only requests with the same salt share cached prefixes."""
    deadline_s: float | None = None
    """Seconds from now after which the answer is of no use and the request is ended."""
    pin: bool = False
    """Whether the pages of the prompt stay in the prefix cache for ever. Only services set it, never a client."""


class Embed(EngineMessage, frozen=True, kw_only=True):
    """Service → sequence engine: the mean of the last hidden states over `token_ids`, normalised to length one."""

    request_id: str
    token_ids: list[int]
    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""
    deadline_s: float | None = None


class EncoderText(msgspec.Struct, frozen=True, array_like=True):
    """A text, or a pair of texts, for an encoder: its tokens and, where the model takes them, their types.

    The first `skip` tokens do not count in the pooling.
    """

    token_ids: list[int]
    types: list[int] = []
    skip: int = 0


class Encode(EngineMessage, frozen=True, kw_only=True):
    """Service → encoder engine: a vector, or the outputs of a classifier, for each text; answered by `Encoded`.

    `model` is the index of the model in `Ready.cards`.
    """

    request_id: str
    model: int
    texts: list[EncoderText]
    priority: int = 0
    tenant: str = ""
    deadline_s: float | None = None


class Utterance(msgspec.Struct, frozen=True, kw_only=True):
    """A sentence to speak, and the silence after it.

    `rates` multiplies the request's speed for each token; empty means 1 for all. Without tokens there is only silence.
    """

    token_ids: list[int] = []
    rates: list[float] = []
    pause_s: float = 0.0


class Synthesize(EngineMessage, frozen=True, kw_only=True):
    """Service → speech engine: speak `sentences` one after another; answered by several `Audio` for each sentence.

    `voices` has the weights of the model's voices by index; several voices are mixed.
    """

    request_id: str
    sentences: list[Utterance]
    voices: dict[int, float] = msgspec.field(default_factory=lambda: {0: 1.0})
    speed: float = 1.0
    seed: int = 0
    tenant: str = ""


class Transcribe(EngineMessage, frozen=True, kw_only=True):
    """Service → speech engine: transcribe `audio` (float32 mono at the model's rate); answered by `Transcript`.

    `timestamps` asks for segments inside a window of the model; without it a recording that fits one window is one
    segment. `seed` matters only where tokens are sampled. `windows` are the parts to transcribe, each as its first
    sample and the one after its last; each is no longer than the model's window and cut where nobody speaks. Without
    them the model itself decides, one window after another, where the next begins.
    """

    request_id: str
    audio: Array
    language: str | None = None
    prompt_ids: list[int] = []
    temperature: float = 0.0
    timestamps: bool = False
    seed: int = 0
    windows: list[tuple[int, int]] | None = None
    words: bool = False
    """Whether to return the times of words, too."""
    translate: bool = False
    """Whether to translate into English, if the model can."""
    offset: int = 0
    """Samples of the recording before `audio`, if that is a part of it; times count from the recording's beginning."""
    tenant: str = ""


class Cancel(EngineMessage, frozen=True, kw_only=True):
    """Service → engine: end this request at the next step. An unknown id is ignored: the request may just have
    ended."""

    request_id: str


class Shutdown(EngineMessage, frozen=True, kw_only=True):
    """Service → engine: end now."""


ToEngine = Generate | Embed | Encode | Synthesize | Transcribe | Cancel | Shutdown


class Ready(EngineMessage, frozen=True, kw_only=True):
    """Engine → service, once: the models in `directories` are loaded. `report` has the seconds of each part of the
    start."""

    device: str
    cards: list[Card]
    directories: list[str]
    report: dict[str, float]


class TokenScore(msgspec.Struct, frozen=True, array_like=True):
    """A token's log-probability (natural logarithm), the likeliest tokens at its position with theirs, and its rank.

    `rank` 1 is the likeliest token; 0 if the rank was not asked for.
    """

    logprob: float
    top: list[tuple[int, float]]
    rank: int = 0


class GeneratedTokens(EngineMessage, frozen=True, kw_only=True, tag="Tokens"):
    """Engine → service: the next tokens of a request; the last message has a `finish_reason`."""

    request_id: str
    token_ids: list[int]
    scores: list[TokenScore] = []
    finish_reason: Literal["stop", "length"] | None = None
    cached_tokens: int | None = None
    """Prompt tokens that the prefix cache had, so they were not computed; sent once, with the first tokens."""
    prompt_scores: list[TokenScore] = []
    """Scores of the prompt's tokens from the second on, if they were asked for; sent once, with the first tokens."""


class Embedded(EngineMessage, frozen=True, kw_only=True):
    """Engine → service: the vector asked for by `Embed`, float32 of shape [hidden]."""

    request_id: str
    vector: Array


class Encoded(EngineMessage, frozen=True, kw_only=True):
    """Engine → service: what `Encode` asked for, float32 of shape [texts, values], in the order of the texts."""

    request_id: str
    rows: Array


class Audio(EngineMessage, frozen=True, kw_only=True):
    """Engine → service: the next samples, float32 mono; the last message has `last`.

    `token_samples` is how many samples each token of a sentence lasts, sent once, with the sentence's first samples;
    the sentence's pause comes after them. `sentence` is the index of the sentence in the request, `frames` the number
    of frames that the model made for these samples.
    """

    request_id: str
    samples: Array
    last: bool
    sentence: int = 0
    token_samples: list[int] = []
    frames: int = 0


class TranscriptWord(msgspec.Struct, frozen=True, kw_only=True):
    """A word of a segment. Times are seconds from the beginning of the request's audio."""

    start: float
    end: float
    token_ids: list[int]


class TranscriptSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of transcribed audio. Times are seconds from the beginning of the request's audio.

    `words` are the segment's tokens again, word by word, if they were asked for and the model knows them. The measures
    are those of the window that the segment was transcribed in, which begins at `seek`: the mean log-probability
    (natural) of its tokens, the compression ratio of its text by zlib, and the probability that nobody speaks (0 if the
    model has none).
    """

    start: float
    end: float
    token_ids: list[int]
    words: list[TranscriptWord] = []
    seek: float = 0.0
    temperature: float = 0.0
    avg_logprob: float = 0.0
    compression_ratio: float = 1.0
    no_speech_prob: float = 0.0


class Transcript(EngineMessage, frozen=True, kw_only=True):
    """Engine → service: the next segments; the last message has `last`."""

    request_id: str
    segments: list[TranscriptSegment]
    language: str
    last: bool


class Failed(EngineMessage, frozen=True, kw_only=True):
    """Engine → service: this request ended with an error; the engine goes on."""

    request_id: str
    error: ErrorBody
    retry_after: float | None = None


class Metrics(EngineMessage, frozen=True, kw_only=True):
    """Engine → service, about once a second while it works: values for `/metrics`, by metric name."""

    values: dict[str, float]


class Stopped(EngineMessage, frozen=True, kw_only=True):
    """Engine → service: the engine cannot go on, because the model did not load; `error` says why."""

    error: ErrorBody


FromEngine = Ready | GeneratedTokens | Embedded | Encoded | Audio | Transcript | Failed | Metrics | Stopped

to_engine_decoder = msgspec.msgpack.Decoder(ToEngine)
from_engine_decoder = msgspec.msgpack.Decoder(FromEngine)
encoder = msgspec.msgpack.Encoder()
