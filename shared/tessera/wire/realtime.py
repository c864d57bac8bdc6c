"""Events and session settings that a client of a live session may send, as in OpenAI's Realtime API.

The speech service writes the server's events itself (`tessera_speech.live`); tests compare them with the SDK's types.
Source: OpenAI's Python SDK 3.52, `openai.types.realtime`. Fields that are not here are refused, not ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tessera.wire.audio import VoiceReference

Milliseconds = Annotated[int, Meta(ge=0, le=10_000)]
Identity = Annotated[str, Meta(min_length=1, max_length=64)]
Text = Annotated[str, Meta(max_length=65_536)]


class _StrictStruct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base: an unknown field is an error."""


class PCMFormat(_StrictStruct, frozen=True, kw_only=True):
    """Samples of sixteen bits, mono, little-endian, 24,000 in a second."""

    type: Literal["audio/pcm"] = "audio/pcm"
    rate: Literal[24000] = 24000


class ServerVAD(_StrictStruct, frozen=True, kw_only=True):
    """Voice activity detection by the server: when an utterance begins and ends, and what happens then."""

    type: Literal["server_vad"] = "server_vad"
    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.5
    prefix_padding_ms: Milliseconds = 300
    silence_duration_ms: Annotated[int, Meta(ge=50, le=10_000)] = 500
    create_response: bool = True
    interrupt_response: bool = True


class InputTranscription(_StrictStruct, frozen=True, kw_only=True):
    """How incoming speech is transcribed. Without `model`, by the service's own model."""

    model: str | None = None
    language: Annotated[str, Meta(min_length=2, max_length=16)] | None = None
    prompt: Annotated[str, Meta(max_length=4096)] | None = None


class AudioInput(_StrictStruct, frozen=True, kw_only=True):
    """Audio that comes from the client."""

    format: PCMFormat = PCMFormat()
    transcription: InputTranscription | None = InputTranscription()
    turn_detection: ServerVAD | None = ServerVAD()
    noise_reduction: None = None


class AudioOutput(_StrictStruct, frozen=True, kw_only=True):
    """Audio that goes to the client."""

    format: PCMFormat = PCMFormat()
    voice: str | VoiceReference | None = None
    speed: Annotated[float, Meta(ge=0.25, le=4.0)] = 1.0


class TranscriptionAudio(_StrictStruct, frozen=True, kw_only=True):
    """Audio of a session that only transcribes: from the client."""

    input: AudioInput = AudioInput()


class ConversationAudio(_StrictStruct, frozen=True, kw_only=True):
    """Audio of a session that answers: in both directions."""

    input: AudioInput = AudioInput()
    output: AudioOutput = AudioOutput()


class TranscriptionSession(_StrictStruct, frozen=True, kw_only=True, tag_field="type", tag="transcription"):
    """A session that only transcribes."""

    audio: TranscriptionAudio = TranscriptionAudio()


Modalities = Annotated[list[Literal["text", "audio"]], Meta(min_length=1, max_length=1)]
MaxTokens = Annotated[int, Meta(ge=1)] | Literal["inf"]


class ConversationSession(_StrictStruct, frozen=True, kw_only=True, tag_field="type", tag="realtime"):
    """A session that answers. `model` is the language model; without one, the first that there is."""

    audio: ConversationAudio = ConversationAudio()
    instructions: Text = ""
    model: str | None = None
    max_output_tokens: MaxTokens = "inf"
    output_modalities: Modalities = msgspec.field(default_factory=lambda: ["audio"])


Session = TranscriptionSession | ConversationSession


class ResponseAudio(_StrictStruct, frozen=True, kw_only=True):
    """Audio of one response."""

    output: AudioOutput = AudioOutput()


class ResponseParameters(_StrictStruct, frozen=True, kw_only=True):
    """Settings of one response that differ from the session's."""

    instructions: Text | None = None
    output_modalities: Modalities | None = None
    max_output_tokens: MaxTokens | None = None
    audio: ResponseAudio | None = None
    conversation: Literal["auto", "none"] = "auto"
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | None = None


class MessageContent(_StrictStruct, frozen=True, kw_only=True):
    """A part of a message."""

    type: Literal["input_text", "output_text"]
    text: Text


class RealtimeMessage(_StrictStruct, frozen=True, kw_only=True):
    """A message that a client adds to the conversation."""

    type: Literal["message"]
    role: Literal["user", "assistant", "system"]
    content: Annotated[list[MessageContent], Meta(min_length=1, max_length=16)]
    id: Identity | None = None
    object: Literal["realtime.item"] = "realtime.item"
    status: Literal["completed", "incomplete", "in_progress"] = "completed"


class _ClientEventBase(_StrictStruct, frozen=True, kw_only=True, tag_field="type"):
    """Base of client events; an error about an event names its `event_id`."""

    event_id: str | None = None


class SessionUpdate(_ClientEventBase, frozen=True, kw_only=True, tag="session.update"):
    """Change the settings that are named."""

    session: dict[str, Any]


class BufferAppend(_ClientEventBase, frozen=True, kw_only=True, tag="input_audio_buffer.append"):
    """Append audio, in base64."""

    audio: str


class BufferCommit(_ClientEventBase, frozen=True, kw_only=True, tag="input_audio_buffer.commit"):
    """Make a message of the appended audio."""


class BufferClear(_ClientEventBase, frozen=True, kw_only=True, tag="input_audio_buffer.clear"):
    """Drop the appended audio."""


class ItemCreate(_ClientEventBase, frozen=True, kw_only=True, tag="conversation.item.create"):
    """Add a message."""

    item: RealtimeMessage
    previous_item_id: Identity | None = None


class ItemDelete(_ClientEventBase, frozen=True, kw_only=True, tag="conversation.item.delete"):
    """Delete a message."""

    item_id: Identity


class ItemRetrieve(_ClientEventBase, frozen=True, kw_only=True, tag="conversation.item.retrieve"):
    """Send a message again."""

    item_id: Identity


class ItemTruncate(_ClientEventBase, frozen=True, kw_only=True, tag="conversation.item.truncate"):
    """Cut an answer to the part that the client has played."""

    item_id: Identity
    content_index: Literal[0]
    audio_end_ms: Annotated[int, Meta(ge=0)]


class ResponseCreate(_ClientEventBase, frozen=True, kw_only=True, tag="response.create"):
    """Begin a response now."""

    response: ResponseParameters = ResponseParameters()


class ResponseCancel(_ClientEventBase, frozen=True, kw_only=True, tag="response.cancel"):
    """Cancel a response."""

    response_id: Identity | None = None


ClientEvent = (
    SessionUpdate
    | BufferAppend
    | BufferCommit
    | BufferClear
    | ItemCreate
    | ItemDelete
    | ItemRetrieve
    | ItemTruncate
    | ResponseCreate
    | ResponseCancel
)
EVENT_NAMES = tuple(kind.__struct_config__.tag for kind in ClientEvent.__args__)
EVENT_KINDS = dict(zip(EVENT_NAMES, ClientEvent.__args__, strict=True))
