"""All sections together: the type of `tessera.toml`."""

from __future__ import annotations

from pathlib import Path

from tessera.settings.attachments import AttachmentSettings
from tessera.settings.gateway import GatewaySettings
from tessera.settings.http import HttpSettings
from tessera.settings.jobs import ArtifactSettings, JobSettings, WebhookSettings
from tessera.settings.section import Section, Service
from tessera.settings.speech import SpeechSettings
from tessera.settings.suite import RedisSettings, SuiteSettings
from tessera.settings.text import TextSettings
from tessera.settings.video import VideoSettings
from tessera.settings.vision import VisionSettings


class Settings(Section, frozen=True, kw_only=True):
    """All of `tessera.toml`: one field for each section."""

    suite: SuiteSettings = SuiteSettings()
    redis: RedisSettings = RedisSettings()
    http: HttpSettings = HttpSettings()
    gateway: GatewaySettings = GatewaySettings()
    text: TextSettings = TextSettings()
    vision: VisionSettings = VisionSettings()
    video: VideoSettings = VideoSettings()
    speech: SpeechSettings = SpeechSettings()
    attachments: AttachmentSettings = AttachmentSettings()
    jobs: JobSettings = JobSettings()
    artifacts: ArtifactSettings = ArtifactSettings()
    webhooks: WebhookSettings = WebhookSettings()

    @property
    def data_dir(self) -> Path:
        """Absolute path of the directory of all state."""
        return Path(self.suite.data).expanduser().absolute()

    @property
    def models_dir(self) -> Path:
        """Absolute path of the directory of models."""
        return Path(self.suite.models).expanduser().absolute() if self.suite.models else self.data_dir / "models"

    @property
    def spool_dir(self) -> Path:
        """Absolute path of the directory in which forms are kept while they are answered."""
        return Path(self.http.spool_dir).expanduser().absolute() if self.http.spool_dir else self.data_dir / "spool"

    @property
    def artifacts_dir(self) -> Path:
        """Absolute path of the directory of artifacts, for when they are in no bucket."""
        return self.data_dir / "artifacts"

    def service_url(self, service: Service) -> str:
        """Address where the gateway reaches one of our services, without a trailing slash."""
        section = getattr(self, service)
        return (section.url or f"http://{section.host}:{section.port}").rstrip("/")

    @property
    def redis_url(self) -> str:
        """Address of the configured Redis, or of the socket that the embedded one listens on."""
        return self.redis.url or f"unix://{self.data_dir / 'redis' / 'redis.sock'}"
