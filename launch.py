"""Runs an experiment: `python launch.py --config=configs/llama_ruler.py[:name=value,...] [--config.section.key=value]`.

The config says which experiment (a file of experiments/) and every setting of it. Without --workdir the run gets the
folder runs/<config name>-<hash over all fields>, and the same command continues a run that was stopped. Whatever is
wrong with a config ends here, in one line and with exit code 2, before anything is loaded. Other exit codes: 0 done,
1 a crash, 130 stopped by Ctrl-C, with all finished rows kept.

    python launch.py --config=configs/llama_ruler.py --help                     # a config, its keys and their defaults
    python launch.py --config=configs/llama_ruler.py:methods=full,snapkv,limit=2                          # a quick try
"""

from __future__ import annotations

import importlib
import itertools
import os
import re
import runpy
import sys
from collections.abc import Sequence
from logging import WARNING
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from absl import app, flags, logging
from ml_collections import config_dict, config_flags

from experiments import config_help
from experiments.plan import ConfigError
from nexus import cli, compiled, record
from nexus.fetch import FetchError

EXPERIMENTS = (
    "evaluate",
    "benchmark",
    "survival",
    "dilution",
    "dialogue",
    "perplexity",
    "train",
    "train_judgeq",
    "ablation",
    "calibrate_heads",
)
NOT_RUN = ("__init__", "base")  # files of configs/ that are no experiment
REFUSED = (AttributeError, KeyError, TypeError, ValueError, OSError, flags.Error)  # what a wrong command line raises

_CONFIG = config_flags.DEFINE_config_file("config", None, "File of configs/, with options behind a colon.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run; default runs/<config name>-<config hash>.")


def main(arguments: Sequence[str]) -> None:
    handler = logging.get_absl_handler()  # plain messages: our own, and the warnings of everybody else
    handler.setFormatter(None)
    handler.addFilter(lambda message: message.name.startswith("nexus") or message.levelno >= WARNING)
    if len(arguments) > 1:
        refuse(f"unknown argument {arguments[1]!r}; settings are written --config.section.key=value")
    if _CONFIG.value is None:
        refuse("--config is missing, for example --config=configs/llama_ruler.py")
    try:
        experiment = load_experiment(_CONFIG.value.experiment)
        resolved = experiment.resolve(_CONFIG.value)
    except REFUSED as error:
        refuse(message(error))
    workdir = Path(_WORKDIR.value or default_workdir(config_flags.get_config_filename(flags.FLAGS["config"]), resolved))
    print(f"run folder {workdir}", flush=True)
    try:
        compiled.keep_programs()
        record.check_workdir(workdir, resolved.to_dict())
    except (FetchError, *REFUSED) as error:
        refuse(message(error))
    try:
        experiment.run(_CONFIG.value, workdir)
    except (ConfigError, FetchError) as error:
        refuse(message(error))
    except KeyboardInterrupt:
        kept = f"what is finished is kept in {workdir}, continue with the same command"
        print(f"\nlaunch.py: stopped; {kept if workdir.exists() else 'nothing was finished yet'}", file=sys.stderr)
        sys.exit(cli.STOPPED)


def load_experiment(name: str) -> ModuleType:
    """The module of an experiment. Raises ValueError with the known names."""
    if name not in EXPERIMENTS:
        raise ValueError(f"experiment {name!r} is not known; allowed: {', '.join(EXPERIMENTS)}")
    return importlib.import_module(f"experiments.{name}")


def default_workdir(config_file: str, resolved: config_dict.FrozenConfigDict) -> str:
    """runs/<file name>-<hash>: two configs that differ in any field never share a folder."""
    return f"runs/{Path(config_file.split(':', 1)[0]).stem}-{record.config_hash(resolved.to_dict())}"


# --- the command line -------------------------------------------------------------------------------------------------
def parse(argv: list[str]) -> list[str]:
    """Parses the flags. Exits with one line for a wrong key, value or file."""
    try:
        check(argv)
        return flags.FLAGS(argv)
    except REFUSED as error:
        refuse(message(error))


def check(argv: Sequence[str]) -> None:
    """Raises ValueError for a config that cannot be read and for a --config.key that it does not have."""
    file = config_file(argv)
    if not file:
        return
    config = load_config(file)
    for argument in argv:
        if match := re.match(r"--?config\.([^=]+)", argument):
            check_key(config, match[1])


def config_file(argv: Sequence[str]) -> str:
    """FILE or FILE:OPTIONS of the last --config, "" without one."""
    files = [match[1] or following for argument, following in itertools.pairwise([*argv, ""])
             if (match := re.fullmatch(r"--?config(?:=(.*))?", argument))]  # fmt: skip
    return files[-1] if files else ""


def load_config(text: str) -> config_dict.ConfigDict:
    """The config of FILE or FILE:OPTIONS. Raises what its get_config raises, without the flag library's wrapping."""
    return _read(text)[1]


def _read(text: str) -> tuple[dict[str, Any], config_dict.ConfigDict]:
    """The globals of a config file, and its config."""
    path, _, options = text.partition(":")
    if not Path(path).is_file():
        raise ValueError(f"--config={path}: there is no such file; configs here: {configs_here()}")
    module = runpy.run_path(path)
    if "get_config" not in module:
        raise ValueError(f"--config={path}: the file has no get_config; configs here: {configs_here()}")
    return module, module["get_config"](*[options] if options else [])


def help_text(argv: Sequence[str]) -> str:
    """What --help prints: of the config that is named, or of this program. Raises as load_config."""
    file = config_file(argv)
    if file:
        return config_help.text(file.partition(":")[0], *_read(file))
    return f"{(__doc__ or '').strip()}\n\nconfigs: {configs_here()}"


def configs_here() -> str:
    """The configs of the checkout, as they are written on the command line from the current folder."""
    files = (Path(__file__).resolve().parent / "configs").glob("*.py")
    return ", ".join(sorted(os.path.relpath(file) for file in files if file.stem not in NOT_RUN))


def check_key(config: config_dict.ConfigDict, key: str) -> None:
    """Raises ValueError if `key` (dotted) is not in the config."""
    section = config
    for part in key.split("."):
        known = sorted(section) if isinstance(section, config_dict.ConfigDict) else ()
        if part not in known:
            raise ValueError(f"--config.{key}: there is no {part!r}; allowed here: {', '.join(known) or 'nothing'}")
        section = section[part]


def message(error: BaseException) -> str:
    """One line."""
    return " ".join(str(error.args[0] if isinstance(error, KeyError) and error.args else error).split())


def refuse(text: str) -> NoReturn:
    print(f"launch.py: {text}", file=sys.stderr)
    sys.exit(cli.WRONG)


if __name__ == "__main__":
    if {"--help", "-h", "-help"} & set(sys.argv[1:]):
        try:
            print(help_text(sys.argv[1:]))
        except REFUSED as error:
            refuse(message(error))
        sys.exit(cli.DONE)
    app.run(main, flags_parser=parse)
