"""What a client of a live session may send, as OpenAI's Realtime API has it: events and the session's settings.

Server events are written where they are made (`tessera_speech.live`); the tests hold them to the SDK's types. Source:
OpenAI's Python SDK 3.52, `openai.types.realtime`. Fields that are not here are refused, not ignored.
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
    """Sixteen bits, mono, little-endian, 24,000 a second."""

    type: Literal["audio/pcm"] = "audio/pcm"
    rate: Literal[24000] = 24000


class ServerVAD(_StrictStruct, frozen=True, kw_only=True):
    """The server hears when somebody begins and ends to speak."""

    type: Literal["server_vad"] = "server_vad"
    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.5
    prefix_padding_ms: Milliseconds = 300
    silence_duration_ms: Annotated[int, Meta(ge=50, le=10_000)] = 500
    create_response: bool = True
    interrupt_response: bool = True


class InputTranscription(_StrictStruct, frozen=True, kw_only=True):
    """How what is heard is written down. Without a model: this service's."""

    model: str | None = None
    language: Annotated[str, Meta(min_length=2, max_length=16)] | None = None
    prompt: Annotated[str, Meta(max_length=4096)] | None = None


class AudioInput(_StrictStruct, frozen=True, kw_only=True):
    """What comes from the client."""

    format: PCMFormat = PCMFormat()
    transcription: InputTranscription | None = InputTranscription()
    turn_detection: ServerVAD | None = ServerVAD()
    noise_reduction: None = None


class AudioOutput(_StrictStruct, frozen=True, kw_only=True):
    """What goes to the client."""

    format: PCMFormat = PCMFormat()
    voice: str | VoiceReference | None = None
    speed: Annotated[float, Meta(ge=0.25, le=4.0)] = 1.0


class TranscriptionAudio(_StrictStruct, frozen=True, kw_only=True):
    """Only the way in."""

    input: AudioInput = AudioInput()


class ConversationAudio(_StrictStruct, frozen=True, kw_only=True):
    """Both ways."""

    input: AudioInput = AudioInput()
    output: AudioOutput = AudioOutput()


class TranscriptionSession(_StrictStruct, frozen=True, kw_only=True, tag_field="type", tag="transcription"):
    """A session that writes down what it hears."""

    audio: TranscriptionAudio = TranscriptionAudio()


Modalities = Annotated[list[Literal["text", "audio"]], Meta(min_length=1, max_length=1)]
MaxTokens = Annotated[int, Meta(ge=1)] | Literal["inf"]


class ConversationSession(_StrictStruct, frozen=True, kw_only=True, tag_field="type", tag="realtime"):
    """A session that answers. `model` is the language model that thinks; without one the first there is."""

    audio: ConversationAudio = ConversationAudio()
    instructions: Text = ""
    model: str | None = None
    max_output_tokens: MaxTokens = "inf"
    output_modalities: Modalities = msgspec.field(default_factory=lambda: ["audio"])


Session = TranscriptionSession | ConversationSession


class ResponseAudio(_StrictStruct, frozen=True, kw_only=True):
    """As `ConversationAudio`, for one response."""

    output: AudioOutput = AudioOutput()


class ResponseParameters(_StrictStruct, frozen=True, kw_only=True):
    """What is otherwise for one response than for the session."""

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
    """Base of client events; `event_id` comes back in errors about it."""

    event_id: str | None = None


class SessionUpdate(_ClientEventBase, frozen=True, kw_only=True, tag="session.update"):
    """Change settings: those that are named."""

    session: dict[str, Any]


class BufferAppend(_ClientEventBase, frozen=True, kw_only=True, tag="input_audio_buffer.append"):
    """More sound, in base64."""

    audio: str


class BufferCommit(_ClientEventBase, frozen=True, kw_only=True, tag="input_audio_buffer.commit"):
    """What was appended is a message."""


class BufferClear(_ClientEventBase, frozen=True, kw_only=True, tag="input_audio_buffer.clear"):
    """Forget what was appended."""


class ItemCreate(_ClientEventBase, frozen=True, kw_only=True, tag="conversation.item.create"):
    """Add a message."""

    item: RealtimeMessage
    previous_item_id: Identity | None = None


class ItemDelete(_ClientEventBase, frozen=True, kw_only=True, tag="conversation.item.delete"):
    """Take a message out."""

    item_id: Identity


class ItemRetrieve(_ClientEventBase, frozen=True, kw_only=True, tag="conversation.item.retrieve"):
    """Tell a message again."""

    item_id: Identity


class ItemTruncate(_ClientEventBase, frozen=True, kw_only=True, tag="conversation.item.truncate"):
    """Of an answer only so much was heard."""

    item_id: Identity
    content_index: Literal[0]
    audio_end_ms: Annotated[int, Meta(ge=0)]


class ResponseCreate(_ClientEventBase, frozen=True, kw_only=True, tag="response.create"):
    """Answer now."""

    response: ResponseParameters = ResponseParameters()


class ResponseCancel(_ClientEventBase, frozen=True, kw_only=True, tag="response.cancel"):
    """Stop answering."""

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
