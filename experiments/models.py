"""The model an experiment runs on, or one line that says why not."""

from __future__ import annotations

from ml_collections import config_dict

from experiments.plan import ConfigError
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
