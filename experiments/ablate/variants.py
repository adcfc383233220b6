"""From an ablation config to its variants: which training each needs, and how it is evaluated. Nothing is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ml_collections import config_dict

from experiments import plan, values
from experiments.training import settings
from nexus import record

BASE, FULL = "base", plan.FULL
TRAINED = ("gate", "loss", "data", "train")  # sections that a variant may change of the training
EVALUATED = ("cache", "method")  # ... and of the evaluation
BESIDE = ("mesh", "dev")  # further sections of a training
Changes = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """One line of the report."""

    name: str
    changes: tuple[str, ...]  # section.field=value; () for base
    training: config_dict.FrozenConfigDict  # of experiments/train.py, resolved
    trained_as: str  # the variant with the same training that comes first: its gates are used
    given: str  # gate file, or name of shipped gates, in the place of that training; "" for none

    @property
    def method(self) -> str:
        return self.training.train.method


def resolve(config: config_dict.ConfigDict) -> config_dict.FrozenConfigDict:
    """The config with typed lists, base first. Raises ValueError or KeyError, see `of`."""
    config = config_dict.ConfigDict(config.to_dict(), convert_dict=True)
    config.ablation.variants = _chosen(config)
    config.ablation.gates = values.pieces(config.ablation.gates)
    full = evaluation_of_full(config)
    for name in ("tasks", "lengths", "ratios", "budgets"):
        config.eval[name] = full.eval[name]
    training = settings.resolve(_training(config)).to_dict()
    config.data, config.dev = (config_dict.ConfigDict(training[name]) for name in ("data", "dev"))
    resolved = config_dict.FrozenConfigDict(config)
    of(resolved)
    return resolved


def of(config: config_dict.FrozenConfigDict) -> list[Variant]:
    """The variants, base first.

    Raises ValueError or KeyError: a variant that cannot be trained or evaluated, changes what must be the same for
    all, or is the same as another one; gates for a variant that is not there or uses another one's.
    """
    given, found = _given(config), []
    first: dict[str, str] = {}  # hash of a training -> variant
    same: dict[tuple[str, str], str] = {}  # hashes of training and evaluation -> variant
    for name in config.ablation.variants:
        try:
            training = settings.resolve(_training(_changed(config, name)))
            evaluation_config = _evaluation(config, name, training.train.method, "", config.eval.tasks)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(f"variant {name!r}: {error.args[0] if error.args else error}") from error
        key = record.config_hash(training.to_dict()), record.config_hash(_used(evaluation_config))
        if key in same:
            raise ValueError(f"variant {name!r} is the same as {same[key]!r}: it changes nothing that is used")
        same[key] = name
        trained_as = first.setdefault(key[0], name)
        if name in given and trained_as != name:
            raise ValueError(f"ablation.gates={name}={given[name]}: {name!r} uses the gates of {trained_as!r}")
        changes = tuple(_flat(config.variant[name].to_dict())) if name != BASE else ()
        found.append(
            Variant(name=name, changes=changes, training=training, trained_as=trained_as,
                    given=given.get(trained_as, ""))
        )  # fmt: skip
    return found


def evaluation(
    config: config_dict.FrozenConfigDict, variant: Variant, gates: str, tasks: Sequence[str]
) -> config_dict.ConfigDict:
    """The config of experiments/evaluate.py for a variant on tasks; every example is shown token by token."""
    return _evaluation(config, variant.name, variant.method, gates, tasks)


def evaluation_of_full(config: Any) -> config_dict.ConfigDict:
    """The config of experiments/evaluate.py for the full cache on all tasks, resolved."""
    found = _sections(config, "evaluate", "model", "eval", "cache", "method")
    found.eval.methods, found.eval.show_examples = (FULL,), 0
    return config_dict.ConfigDict(plan.resolve(found).to_dict(), convert_dict=True)


# --- inside -----------------------------------------------------------------------------------------------------------
def _chosen(config: config_dict.ConfigDict) -> tuple[str, ...]:
    known = (BASE, *config.variant.keys())
    for reserved in (BASE, FULL):
        if reserved in config.variant:
            raise ValueError(f"a variant cannot be called {reserved!r}")
    named = values.pieces(config.ablation.variants)
    for name in named:
        if name not in known:
            raise ValueError(f"ablation.variants={name!r} is not known; allowed: {', '.join(known)}")
    return tuple(dict.fromkeys((BASE, *named)))


def _given(config: config_dict.FrozenConfigDict) -> dict[str, str]:
    """variant -> gate file."""
    found: dict[str, str] = {}
    for piece in config.ablation.gates:
        name, equals, file = piece.partition("=")
        if not equals or not file or name not in config.ablation.variants:
            names = ", ".join(config.ablation.variants)
            raise ValueError(f"ablation.gates takes VARIANT=FILE, with a variant of {names}; got {piece!r}")
        if name in found:
            raise ValueError(f"ablation.gates names {name!r} twice")
        found[name] = file
    return found


def _changed(config: config_dict.FrozenConfigDict, name: str) -> config_dict.ConfigDict:
    """The config with a variant's changes. Raises for sections and fields that it cannot change."""
    changed = config_dict.ConfigDict(config.to_dict(), convert_dict=True)
    if name == BASE:
        return changed
    changes = config.variant[name].to_dict()
    for section in changes:
        if section not in TRAINED + EVALUATED:
            raise ValueError(f"it changes {section!r}; allowed: {', '.join(TRAINED + EVALUATED)}")
    changed.lock()
    changed.update(changes)
    changed.unlock()
    return changed


def _training(config: Any) -> config_dict.ConfigDict:
    return _sections(config, "train", "model", *TRAINED, *BESIDE)


def _evaluation(
    config: config_dict.FrozenConfigDict, name: str, method: str, gates: str, tasks: Sequence[str]
) -> config_dict.ConfigDict:
    found = _sections(_changed(config, name), "evaluate", "model", "eval", "cache", "method")
    found.eval.tasks, found.eval.methods, found.eval.full_floor = tuple(tasks), (method,), 0.0
    found.eval.show_examples = plan.num_examples(found.eval)
    found.method[method].gates = gates or method
    plan.resolve(found)
    return found


def _sections(config: Any, experiment: str, *names: str) -> config_dict.ConfigDict:
    whole = config.to_dict()
    parts = {"experiment": experiment} | {name: whole[name] for name in names}
    return config_dict.ConfigDict(parts, convert_dict=True)


def _used(evaluation_config: config_dict.ConfigDict) -> dict[str, Any]:
    """Of an evaluation, what its method reads."""
    (method,) = evaluation_config.eval.methods
    whole = evaluation_config.to_dict()
    return whole | {"method": {method: whole["method"][method]}}


def _flat(changes: Changes, prefix: str = "") -> Iterator[str]:
    """section.field=value of every change, without the name of the method."""
    for key, value in changes.items():
        if isinstance(value, Mapping):
            yield from _flat(value, "" if prefix == "method." else f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={value}"
