"""From a training config to checked settings; nothing is loaded."""

from __future__ import annotations

from typing import Any

from ml_collections import config_dict

from experiments import values
from nexus import methods
from nexus.gates import GateConfig
from nexus.models.config import ASKED
from nexus.tasks import catalog
from nexus.training.retention import Recipe
from nexus.training.rows import Mix
from nexus.training.sharding import MeshShape

SHARING = {"global_retention": "global", "trimkv": "per_head"}  # method -> whose budget the hinge fills


def resolve(config: config_dict.ConfigDict) -> config_dict.FrozenConfigDict:
    """The config with typed lists. Raises ValueError or KeyError for anything that cannot run."""
    config = config_dict.ConfigDict(config.to_dict(), convert_dict=True)
    train, dev = config.train, config.dev
    with config.ignore_type():
        config.data.mix = values.pieces(config.data.mix)
    dev.tasks = values.pieces(dev.tasks)
    config.data.shares = tuple(_number("data.shares", text, float) for text in values.pieces(config.data.shares))
    if train.method not in SHARING:
        raise ValueError(f"train.method={train.method!r} is not known; allowed: {', '.join(SHARING)}")
    values.one_of("model.dtype", config.model.dtype, ("", *ASKED))
    limits = {"steps": 1, "batch": 1, "accumulate": 1, "warmup": 0, "regress_steps": 0, "save_every": 1, "seed": 0}
    for name, least in limits.items():
        _least(f"train.{name}", train[name], least)
    for name in ("learning_rate", "clip"):
        if not train[name] > 0:
            raise ValueError(f"train.{name} must be above 0, got {train[name]}")
    if train.warmup >= train.steps:
        raise ValueError(f"train.warmup={train.warmup} must be below train.steps={train.steps}")
    if train.regress_steps > train.steps:
        raise ValueError(f"train.regress_steps={train.regress_steps} are more than train.steps={train.steps}")
    _least("data.rows", config.data.rows, train.batch)
    _least("dev.every", dev.every, 0)
    if dev.every:
        dev.ratios = values.numbers("dev.ratios", dev.ratios, float, 0, 1)
        for name in ("tasks", "ratios"):
            if not dev[name]:
                raise ValueError(f"dev.{name} is empty; dev.every=0 trains without small evaluations")
        for task in dev.tasks:
            catalog.task_named(task)
        _least("dev.num_examples", dev.num_examples, 1)
        for ratio in dev.ratios:
            methods.build("knorm", budget=round(ratio * dev.length))
    resolved = config_dict.FrozenConfigDict(config)
    gate(resolved), mix(resolved), mesh(resolved)
    _check_cuts(recipe(resolved), config.data.row)
    return resolved


def gate(config: config_dict.FrozenConfigDict) -> GateConfig:
    return GateConfig(**config.gate.to_dict())


def recipe(config: config_dict.FrozenConfigDict) -> Recipe:
    return Recipe(sharing=SHARING[config.train.method], **config.loss.to_dict())


def _check_cuts(recipe: Recipe, row: int) -> None:
    """Raises ValueError for cuts that a row never meets, or that leave no room beside the sinks."""
    if not recipe.cut_most:
        return
    if recipe.cut_every >= row:
        raise ValueError(f"loss.cut_every={recipe.cut_every} must be below data.row={row}: nothing would be cut")
    if recipe.cut_least * row <= recipe.sinks:
        raise ValueError(
            f"loss.cut_least={recipe.cut_least} of data.row={row} tokens leaves only sinks ({recipe.sinks})"
        )


def mesh(config: config_dict.FrozenConfigDict) -> MeshShape:
    return MeshShape(data=config.mesh.data, fsdp=config.mesh.fsdp, model=config.mesh.model)


def mix(config: config_dict.FrozenConfigDict) -> Mix:
    """Raises ValueError for a piece that is not kind=share."""
    kinds = []
    for piece in config.data.mix:
        kind, equals, share = piece.partition("=")
        if not equals:
            raise ValueError(f"data.mix takes kind=share; got {piece!r}")
        kinds.append((kind, _number(f"data.mix {kind}", share, float)))
    return Mix(kinds=tuple(kinds), row=config.data.row, seed=config.train.seed, shares=config.data.shares)


def _number(name: str, text: str, kind: Any) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{name} takes numbers; got {text!r}") from None


def _least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
