"""The model an experiment runs on and the methods it has the parts for, or one line that says why not."""

from __future__ import annotations

import dataclasses
import functools

import jax
from ml_collections import config_dict

from experiments import plan
from experiments.plan import ConfigError
from nexus import decode
from nexus.models.load import Model, load_model


def load(config: config_dict.FrozenConfigDict, **tokens: int) -> Model:
    """The model of config.model.

    Args:
        tokens: config field (with "__" for ".") -> positions that the experiment needs.

    Raises:
        ConfigError: there is none of this name, its files are broken, or it has too few positions.
    """
    name = config.model.name
    try:
        model = load_model(name, dtype=config.model.dtype or None)
    except (KeyError, ValueError, FileNotFoundError) as error:
        raise ConfigError(f"model.name={name!r}: {error}") from error
    allowed = min(model.config.max_position, model.config.sliding_window or model.config.max_position)
    for field, needed in tokens.items():
        if needed > allowed:
            raise ConfigError(f"{field.replace('__', '.')}={needed} goes beyond the {allowed} positions of {name}")
    return model


def runnable(
    config: config_dict.FrozenConfigDict, model: Model, cells: list[plan.Cell], every: bool, *, told: bool = False
) -> list[plan.Cell]:
    """The cells whose methods have what they need for this model: trained gates, calibrations, or the answers (`told`).

    methods=all (`every`) leaves the others out and says so; for one that was named: ConfigError.
    """
    shapes = jax.eval_shape(lambda: model.params)
    missing: dict[str, str] = {}
    for cell in {(cell.method, cell.budget): cell for cell in cells}.values():
        method = plan.build(config, cell)
        method = dataclasses.replace(method, scorer=method.scorer.bind(model.tokenizer))
        try:
            jax.eval_shape(functools.partial(decode.with_weights, model.config, method), shapes)
        except ValueError as error:
            missing.setdefault(cell.method, f"method {cell.method!r}: {error}")
        if method.scorer.foresees and not told:
            missing.setdefault(cell.method, f"method {cell.method!r}: this experiment tells it no answers")
    if missing and not every:
        raise ConfigError("; ".join(missing.values()))
    for text in missing.values():
        print(f"left out: {text}", flush=True)
    return [cell for cell in cells if cell.method not in missing]
