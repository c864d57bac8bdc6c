"""The `tessera` command: reads arguments and calls the room that does the work.

Each subcommand imports what it needs when it runs, so that `tessera --help` answers at once and nothing here imports
torch. Knows nothing about how the work is done.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera.errors import SettingsError, TesseraError

if TYPE_CHECKING:
    from tessera.settings.tree import Settings

EXIT_FAILED = 1
EXIT_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status: 0 done, 1 failed, 2 wrong settings or arguments."""
    given = _parser().parse_args(arguments)
    try:
        status: int = given.run(given)
    except SettingsError as error:
        print(f"tessera: {error.message}", file=sys.stderr)
        return EXIT_USAGE
    except TesseraError as error:
        print(f"tessera: {error.message}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return EXIT_FAILED
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tessera", description="A self-hosted multimodal generation suite: text, vision, video and speech."
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    up = commands.add_parser("up", help="start the suite and serve until Ctrl-C")
    _add_suite_options(up)
    up.add_argument("--skip-doctor", action="store_true", help="start even if the doctor finds what will fail")
    up.set_defaults(run=_up)

    doctor = commands.add_parser("doctor", help="check what would keep the suite from starting, and say how to cure it")
    _add_suite_options(doctor)
    doctor.set_defaults(run=_doctor)

    demo = commands.add_parser("demo", help="one request per modality against a running suite")
    demo.add_argument("--url", help="address of the gateway (default: the one in the settings)")
    demo.add_argument("--api-key", default="none", help="key to send, if the gateway asks for one")
    demo.add_argument("--output", default="tessera-demo", type=Path, help="folder for the results (%(default)s)")
    _add_config(demo)
    demo.set_defaults(run=_demo)

    models = commands.add_parser("models", help="model directories on this machine")
    actions = models.add_subparsers(required=True, metavar="action")
    listing = actions.add_parser("list", help="list the models that are there and those that can be made")
    listing.set_defaults(run=_models, action="list")
    pull = actions.add_parser("pull", help="fetch or make a model")
    pull.add_argument("model", help="name of a starter, or hf:owner/name")
    pull.add_argument("--force", action="store_true", help="fetch or make the model even if it is there")
    pull.set_defaults(run=_models, action="pull")
    verify = actions.add_parser("verify", help="compare weights with their checksums")
    verify.add_argument("model", nargs="*", help="names or directories (default: all models that are there)")
    verify.set_defaults(run=_models, action="verify")
    for action in (listing, pull, verify):
        _add_config(action)
        _add_data(action)

    _add_starters(commands)
    _add_jobs(commands)

    config = commands.add_parser("config", help="print a tessera.toml with every key and its default")
    config.set_defaults(run=_config)
    version = commands.add_parser("version", help="print the installed version")
    version.set_defaults(run=_version)
    return parser


def _add_starters(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    starters = commands.add_parser("starters", help="train and judge the small models that ship with the suite")
    actions = starters.add_subparsers(required=True, metavar="action")
    listing = actions.add_parser("list", help="list the starters and the measures of each")
    listing.set_defaults(run=_starters_list)
    train = actions.add_parser("train", help="train a starter, or resume its training")
    train.add_argument("name", help="name of the starter")
    train.add_argument("--minutes", type=float, help="minutes after which it pauses; the same command resumes it")
    train.add_argument("--output", type=Path, help="directory to write the model to (default: the one that is served)")
    train.add_argument("--seed", type=int, help="seed of data, initial weights and order")
    train.add_argument(
        "--processes",
        type=int,
        default=0,
        help="processes that share each step (default: one a core, if the recipe can)",
    )
    train.add_argument("--fresh", action="store_true", help="delete the checkpoints and begin anew")
    train.set_defaults(run=_starters_train)
    evaluate = actions.add_parser("evaluate", help="judge one starter, or `all`, on fresh held-out samples")
    evaluate.add_argument("name", help="name of the starter, or `all`")
    evaluate.add_argument("--directory", type=Path, help="judge this model directory instead of the one that is served")
    evaluate.add_argument("--seed", type=int, help="seed of the samples (default: another each time)")
    evaluate.add_argument("--samples", type=int, help="samples of each kind (default: as many as for the card)")
    evaluate.set_defaults(run=_starters_evaluate)
    for action in (train, evaluate):
        action.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
        action.add_argument("--threads", type=int, default=0, help="CPU threads (default: all cores)")
    for action in (listing, train, evaluate):
        _add_config(action)
        _add_data(action)


def _add_jobs(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    jobs = commands.add_parser("jobs", help="list, show, cancel, retry and purge jobs of all keys")
    actions = jobs.add_subparsers(required=True, metavar="action")
    states = ["queued", "in_progress", "completed", "failed", "cancelled"]
    listing = actions.add_parser("list", help="list jobs, the newest first")
    listing.add_argument("--status", choices=states)
    listing.add_argument("--limit", type=int, default=50, help="most lines (%(default)s)")
    show = actions.add_parser("show", help="show all of one job, as JSON")
    cancel = actions.add_parser("cancel", help="stop jobs: queued ones at once, others at their worker's next step")
    retry = actions.add_parser("retry", help="queue failed or cancelled jobs again")
    purge = actions.add_parser("purge", help="delete records and their files")
    purge.add_argument("--status", choices=states[2:], help="delete all jobs with this status")
    purge.add_argument(
        "--older-than", type=float, default=0.0, metavar="HOURS", help="fewest hours since the end (default: 0)"
    )
    for action in (show, cancel, retry, purge):
        action.add_argument("id", nargs={show: None, purge: "*"}.get(action, "+"))
    for name, action in (("list", listing), ("show", show), ("cancel", cancel), ("retry", retry), ("purge", purge)):
        action.set_defaults(run=_jobs, action=name)
        _add_config(action)
        _add_data(action)


def _jobs(given: argparse.Namespace) -> int:
    from tessera.jobs import command  # noqa: PLC0415

    settings, _ = _load(given)
    with command.admin_of(settings) as admin:
        if given.action == "list":
            return command.show_list(admin, status=given.status, limit=given.limit, say=print)
        if given.action == "show":
            return command.show(admin, given.id, print)
        if given.action == "purge":
            older = given.older_than * 3600
            return command.purge(admin, given.id, status=given.status, older_than_s=older, say=print)
        return {"cancel": command.cancel, "retry": command.retry}[given.action](admin, given.id, print)


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, help="settings file (default: $TESSERA_CONFIG, else ./tessera.toml)")


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", help="data directory, instead of suite.data")


def _add_suite_options(parser: argparse.ArgumentParser) -> None:
    _add_config(parser)
    _add_data(parser)
    parser.add_argument("--only", help="parts to start: gateway, text, vision, video, speech, separated by commas")
    parser.add_argument("--host", help="address that the gateway listens on, instead of gateway.host")
    parser.add_argument("--port", type=int, help="port of the gateway, instead of gateway.port")


def _load(given: argparse.Namespace) -> tuple[Settings, dict[str, Any]]:
    """The settings, and the overrides that the command line set."""
    from tessera.settings import load as settings  # noqa: PLC0415

    overrides: dict[str, Any] = {}
    for option, section in (("data", "suite"), ("host", "gateway"), ("port", "gateway")):
        value = getattr(given, option, None)
        if value is not None:
            overrides.setdefault(section, {})[option] = value
    return settings.load(given.config, overrides=overrides), overrides


def _up(given: argparse.Namespace) -> int:
    from tessera.settings.load import config_path  # noqa: PLC0415
    from tessera.suite import parts, supervisor  # noqa: PLC0415

    settings, overrides = _load(given)
    path = config_path(given.config)
    return supervisor.run(
        settings,
        parts.select(given.only, settings),
        config=str(path.absolute()) if path else None,
        overrides=overrides,
        skip_doctor=given.skip_doctor,
    )


def _doctor(given: argparse.Namespace) -> int:
    from tessera.suite import doctor, parts  # noqa: PLC0415

    settings, _ = _load(given)
    findings = doctor.examine(settings, parts.select(given.only, settings))
    print(doctor.shown(findings))
    return EXIT_FAILED if any(finding.level == "fail" for finding in findings) else 0


def _demo(given: argparse.Namespace) -> int:
    from tessera.demo import run as demo  # noqa: PLC0415
    from tessera.suite.parts import local_url  # noqa: PLC0415

    settings, _ = _load(given)
    url = given.url or local_url(settings.gateway.host, settings.gateway.port)
    status: int = demo.run(url, given.api_key, given.output)
    return status


def _models(given: argparse.Namespace) -> int:
    from tessera.hub import command  # noqa: PLC0415

    settings, _ = _load(given)
    if given.action == "list":
        return command.list_models(settings.models_dir, _say)
    if given.action == "pull":
        return command.pull(given.model, settings.models_dir, force=given.force, say=_say)
    return command.verify(given.model, settings.models_dir, _say)


def _starters_list(given: argparse.Namespace) -> int:
    from tessera.hub import store  # noqa: PLC0415
    from tessera.starters import recipe  # noqa: PLC0415

    settings, _ = _load(given)
    for name in recipe.names():
        print(f"{name:<26} {recipe.find(name).summary}")
        found = store.locate(name, settings.models_dir)
        for measure in found.card.quality if found else ():
            print(f"{'':<28} {measure.name}: {measure.value:.4g} {measure.unit}".rstrip())
    return 0


def _starters_train(given: argparse.Namespace) -> int:
    from tessera.starters import command  # noqa: PLC0415

    settings, _ = _load(given)
    status: int = command.train(
        given.name,
        work=settings.data_dir / "training" / given.name,
        output=(given.output or settings.models_dir / given.name).absolute(),
        device=given.device,
        threads=given.threads,
        seed=command.SEED if given.seed is None else given.seed,
        minutes=given.minutes,
        fresh=given.fresh,
        processes=given.processes,
        report=_say,
    )
    return status


def _starters_evaluate(given: argparse.Namespace) -> int:
    from tessera.starters import command, recipe  # noqa: PLC0415

    settings, _ = _load(given)
    if given.name == "all" and given.directory is not None:
        raise SettingsError("--directory is one starter's: name it instead of `all`")
    status: int = command.evaluate(
        recipe.names() if given.name == "all" else [given.name],
        models=settings.models_dir,
        directory=given.directory,
        device=given.device,
        threads=given.threads,
        seed=given.seed,
        samples=given.samples,
        report=_say,
    )
    return status


def _say(text: str) -> None:
    print(text, flush=True)


def _config(_: argparse.Namespace) -> int:
    from tessera.settings.example import example  # noqa: PLC0415

    print(example(), end="")
    return 0


def _version(_: argparse.Namespace) -> int:
    from importlib.metadata import version  # noqa: PLC0415

    print(version("tessera"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
