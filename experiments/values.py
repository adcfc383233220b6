"""Values of configs as a person writes them: lists with commas, names out of a few, numbers in a range."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def pieces(value: Iterable[Any]) -> tuple[str, ...]:
    """Items of a tuple, of a text with commas, or of a tuple of such texts."""
    items = [value] if isinstance(value, str) else list(value)
    return tuple(piece.strip() for item in items for piece in str(item).split(",") if piece.strip())


def numbers(
    name: str, value: Iterable[Any], kind: Callable[[str], Any], low: float, high: float | None = None
) -> tuple[Any, ...]:
    """The numbers of a list. Raises ValueError for one that is none, out of range, or there twice."""
    found = []
    for text in pieces(value):
        try:
            found.append(kind(text))
        except ValueError:
            raise ValueError(f"{name} takes numbers ({kind.__name__}); got {text!r}") from None
        within(name, found[-1], low, high)
    return unique(name, found)


def names(name: str, value: Iterable[Any], known: Sequence[str]) -> tuple[str, ...]:
    """Names out of `known`; "all" is all of them. Raises ValueError for none, an unknown one, or one twice."""
    found = pieces(value)
    if found == ("all",):
        return tuple(known)
    for item in found:
        one_of(name, item, known)
    if not found:
        raise ValueError(f"{name} is empty; allowed: {', '.join(known)}, or all")
    return unique(name, found)


def unique(name: str, items: Sequence[Any]) -> tuple[Any, ...]:
    if len(set(items)) < len(items):
        raise ValueError(f"{name} names something twice: {text(items)}")
    return tuple(items)


def one_of(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{name}={value!r} is not known; allowed: {', '.join(repr(k) if not k else k for k in known)}")


def within(name: str, value: float, low: float, high: float | None) -> None:
    if not low <= value <= (math.inf if high is None else high):
        raise ValueError(f"{name}={value} is out of range: {f'at least {low}' if high is None else f'{low} to {high}'}")


def text(items: Iterable[Any]) -> str:
    return ",".join(map(str, items))
