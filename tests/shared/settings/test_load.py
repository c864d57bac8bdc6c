"""Settings: read once, in a fixed order, and every mistake is refused by the name of the key."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.errors import SettingsError
from tessera.settings.example import example
from tessera.settings.load import config_path, load
from tessera.settings.section import Section
from tessera.settings.tree import Settings


def write(path: Path, text: str) -> Path:
    file = path / "tessera.toml"
    file.write_text(text)
    return file


def sections(kind: type[Section], above: str = "") -> list[tuple[str, str]]:
    """Every key as (section, key), nested sections with dots."""
    found = []
    for field in msgspec.structs.fields(kind):
        hint = get_type_hints(kind)[field.name]
        if isinstance(hint, type) and issubclass(hint, Section):
            found += sections(hint, f"{above}{field.name}.")
        else:
            found.append((above.rstrip("."), field.name))
    return found


def test_the_example_has_every_key_and_loads_to_the_defaults(tmp_path: Path) -> None:
    parsed = tomllib.loads(example())
    for section, key in sections(Settings):
        table = parsed
        for part in section.split("."):
            table = table[part]
        assert key in table, f"{section}.{key}"
    assert load(write(tmp_path, example()), environment={}) == Settings()


def test_later_sources_win_over_earlier_ones(tmp_path: Path) -> None:
    file = write(tmp_path, "[gateway]\nport = 9001\nhost = '127.0.0.2'\n")
    assert load(None, environment={}).gateway.port == 8000
    assert load(file, environment={}).gateway.port == 9001
    environment = {"TESSERA_GATEWAY__PORT": "9002"}
    assert load(file, environment=environment).gateway.port == 9002
    loaded = load(file, environment=environment, overrides={"gateway": {"port": 9003}})
    assert (loaded.gateway.port, loaded.gateway.host) == (9003, "127.0.0.2")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[gatway]\nport = 1\n", "gatway"),
        ("[gateway]\nprot = 1\n", "gateway.prot"),
        ("[text.engine]\npagesize = 1\n", "text.engine.pagesize"),
        ("[gateway]\nport = 'high'\n", "gateway.port"),
        ("[gateway]\nport = 70000\n", "gateway.port"),
        ("[suite]\nlog_level = 'loud'\n", "suite.log_level"),
        ("gateway = 3\n", "gateway"),
        ("[gateway\n", "not valid TOML"),
    ],
)
def test_a_mistake_in_the_file_is_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(SettingsError, match=named.replace(".", r"\.")):
        load(write(tmp_path, text), environment={})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TESSERA_GATEWAY__PROT", "1"),
        ("TESSERA_GATEWAY", "1"),
        ("TESSERA_PORT", "1"),
        ("TESSERA_GATEWAY__PORT__DEEP", "1"),
        ("TESSERA_GATEWAY__PORT", "many"),
        ("TESSERA_GATEWAY__UPSTREAMS", "not json"),
    ],
)
def test_a_mistake_in_the_environment_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        load(None, environment={name: value})


def test_lists_and_tables_come_from_the_environment_too() -> None:
    upstream = '[{"name": "vllm", "url": "http://10.0.0.2:8000"}]'
    loaded = load(
        None,
        environment={
            "TESSERA_GATEWAY__API_KEYS": "one, two",
            "TESSERA_GATEWAY__SERVICES": "",
            "TESSERA_GATEWAY__UPSTREAMS": upstream,
            "TESSERA_TEXT__ENGINE__THREADS": "3",
            "REDIS_URL": "redis://elsewhere:6379/1",
            "PATH": "/bin",
        },
    )
    assert loaded.gateway.api_keys == ["one", "two"]
    assert loaded.gateway.services == []
    assert loaded.gateway.upstreams[0].url == "http://10.0.0.2:8000"
    assert loaded.text.engine.threads == 3
    assert loaded.redis_url == "redis://elsewhere:6379/1"


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read the settings file .*absent\.toml"):
        load(tmp_path / "absent.toml", environment={})
    with pytest.raises(SettingsError, match=r"absent\.toml"):
        load(None, environment={"TESSERA_CONFIG": str(tmp_path / "absent.toml")})


def test_the_file_that_is_read_is_the_file_that_children_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert config_path(None, environment={}) is None
    write(tmp_path, "[gateway]\nport = 9001\n")
    assert config_path(None, environment={}) == Path("tessera.toml")
    assert config_path(None, environment={"TESSERA_CONFIG": "other.toml"}) == Path("other.toml")
    assert config_path(Path("mine.toml"), environment={"TESSERA_CONFIG": "other.toml"}) == Path("mine.toml")
    assert load(None, environment={}).gateway.port == 9001


@given(st.text(min_size=1, max_size=20), st.text(max_size=20))
def test_no_environment_variable_breaks_anything_but_by_a_settings_error(name: str, value: str) -> None:
    message = f"TESSERA_{name} is fine"
    try:
        load(None, environment={f"TESSERA_{name}": value})
    except SettingsError as error:
        message = error.message
    assert f"TESSERA_{name}" in message
