"""The house as it is drawn: folders, file lengths, what a wheel installs, what is written where."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMPORT_ROOTS = ("kernels", "shared", "services", "loadtests")
FOLDERS = ("compose", "k8s", "kernels", "loadtests", "services", "shared", "tests")
PACKAGES = {
    "tessera_kernels",
    "tessera",
    "tessera_gateway",
    "tessera_text",
    "tessera_vision",
    "tessera_video",
    "tessera_speech",
    "tessera_bench",
}
ASK_ABOVE = 350
"""Lines of a file above which somebody asks whether it answers two questions."""
LONGER: dict[str, str] = {
    "shared/tessera/cache/prefix.py": "one tree: matching, inserting and evicting share its invariants",
    "shared/tessera/jobs/worker/runner.py": "one job from its lease to its terminal state, under one fencing token",
    "shared/tessera/sequence/engine.py": "one step: take the inbox, schedule, run, tell the clients",
    "shared/tessera/wire/chat.py": "the types of one route, whose request and answer refer to each other",
}
"""Files above `ASK_ABOVE` that answer one question all the same, each with the sentence that says why."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def tracked() -> list[Path]:
    """Files of the checkout that are under version control, or would be (a source archive has no git)."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], capture_output=True, text=True, cwd=ROOT
    )
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / line for line in done.stdout.splitlines() if (ROOT / line).is_file()]


def python_files() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".py"]


def test_import_roots_hold_packages_and_no_loose_modules() -> None:
    for root in IMPORT_ROOTS:
        loose = [path.name for path in (ROOT / root).iterdir() if path.suffix == ".py"]
        assert loose == [], root
    packages = {path.parent.name for root in IMPORT_ROOTS for path in (ROOT / root).glob("*/__init__.py")}
    assert packages == PACKAGES


def test_every_top_level_folder_says_what_it_is() -> None:
    here = {path.relative_to(ROOT).parts[0] for path in tracked() if len(path.relative_to(ROOT).parts) > 1}
    assert {name for name in here if not name.startswith(".")} == set(FOLDERS)
    for folder in FOLDERS:
        assert (ROOT / folder / "README.md").is_file(), folder


def test_a_long_file_has_a_reason_to_be_one_file() -> None:
    """The length is a question, not a rule: a file that belongs together stays whole and is listed with its reason."""
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in python_files()}
    long = {name for name, count in lines.items() if not name.startswith("tests/") and count > ASK_ABOVE}
    assert long - LONGER.keys() == set(), "two questions: split it; one: say why in LONGER"
    short = {name for name in LONGER if lines.get(name, 0) < ASK_ABOVE - 50}
    assert short == set(), "not long any more: take it out of LONGER"


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT)) for path in python_files() if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_the_environment_is_read_in_one_place() -> None:
    reading = re.compile(r"os\.(environ|getenv)")
    wrong = [
        str(path.relative_to(ROOT))
        for path in python_files()
        if path.is_relative_to(ROOT / "shared") or path.is_relative_to(ROOT / "services")
        if reading.search(path.read_text()) and path != ROOT / "shared" / "tessera" / "settings" / "load.py"
    ]
    assert wrong == []


def test_nothing_is_unpickled_and_no_remote_code_runs() -> None:
    forbidden = re.compile(
        r"^\s*(import|from) (pickle|dill|cloudpickle|marshal)\b|trust_remote_code\s*=\s*True", re.MULTILINE
    )
    wrong = [str(path.relative_to(ROOT)) for path in python_files() if forbidden.search(path.read_text())]
    assert wrong == []


def test_nothing_that_is_committed_names_a_private_place() -> None:
    # In two halves, so that this file does not name them either.
    hosts = ("pypi." + "org", "pytorch." + "org/whl", "registry.npmjs." + "org", "files.python" + "hosted")
    places = ("/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/")
    wrong = [
        f"{path.relative_to(ROOT)} names {word}"
        for path in tracked()
        if path.suffix not in {".safetensors", ".png", ".wav", ".mp4"}
        for word in (*hosts, *places)
        if word in path.read_text(encoding="utf-8", errors="ignore")
    ]
    assert wrong == []


def test_the_base_needs_no_torch() -> None:
    names = {re.split(r"[\s<>=!~;\[]", line)[0].lower() for line in PROJECT["dependencies"]}
    assert names.isdisjoint({"torch", "transformers", "diffusers", "accelerate", "triton", "numpy", "torchvision"})


def test_constraints_fix_every_library_that_is_declared() -> None:
    fixed = {
        re.sub(r"[-_.]+", "-", line.split("==")[0]).lower()
        for line in (ROOT / ".ci" / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    declared = [
        *PROJECT["dependencies"],
        *(line for extra in PROJECT["optional-dependencies"].values() for line in extra),
    ]
    names = {re.sub(r"[-_.]+", "-", re.split(r"[\s<>=!~;\[]", line)[0]).lower() for line in declared} - {"tessera"}
    assert names - fixed == set()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel as pip would build it, without the network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_a_wheel_installs_our_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    top = {name.split("/")[0] for name in wheel.namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == PACKAGES
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    files = {
        str(path.relative_to(ROOT / root))
        for root in IMPORT_ROOTS
        for path in python_files()
        if path.is_relative_to(ROOT / root)
    }
    assert files - inside == set()


def test_every_package_of_a_wheel_says_that_it_is_typed(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {package for package in PACKAGES if f"{package}/py.typed" not in names} == set()


def test_mypy_checks_every_package_strictly() -> None:
    mypy = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert mypy["strict"] is True
    assert set(mypy["mypy_path"]) == set(IMPORT_ROOTS)
    assert set(mypy["packages"]) == PACKAGES


def test_every_entry_point_of_a_wheel_leads_to_something_in_it(wheel: zipfile.ZipFile) -> None:
    (file,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    points = configparser.ConfigParser()
    points.read_string(wheel.read(file).decode())
    assert points["console_scripts"]["tessera"] == "tessera.cli:main"
    assert set(points["tessera.recipes"]) <= set(points["tessera.starters"])
    for section in points.sections():
        for value in points[section].values():
            module, _, function = value.partition(":")
            source = wheel.read(module.replace(".", "/") + ".py").decode()
            body = ast.parse(source).body
            defined = {node.name for node in body if isinstance(node, ast.FunctionDef)}
            defined |= {
                target.id
                for node in body
                if isinstance(node, ast.Assign)
                for target in node.targets
                if isinstance(target, ast.Name)
            }
            assert function in defined, value


def test_the_wheel_holds_the_weights_of_every_starter_and_they_stay_small(wheel: zipfile.ZipFile) -> None:
    weights = [info for info in wheel.infolist() if "/starter/" in info.filename and "/weights/" in info.filename]
    sizes = {info.filename: info.file_size for info in weights if info.filename.endswith(".safetensors")}
    folders = {name.split("/weights/")[0] for name in sizes}
    tracked_folders = {
        path.relative_to(ROOT / "services").as_posix().split("/weights/")[0]
        for path in tracked()
        if path.suffix == ".safetensors"
    }
    assert folders == tracked_folders
    for folder in folders:
        mine = sum(size for name, size in sizes.items() if name.startswith(f"{folder}/weights/"))
        assert mine <= 16 * 1024 * 1024, f"{folder} has {mine} bytes of weights"
        assert f"{folder}/weights/card.json" in {info.filename for info in weights}
    assert sum(sizes.values()) <= 48 * 1024 * 1024
