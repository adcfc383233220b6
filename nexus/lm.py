"""The Python door for notebooks: load a model by name, generate under a budget, stream, look at what was kept.

    lm = nexus.load("smollm2-135m-instruct")
    out = lm.generate("Once upon a time", method="snapkv", budget=256)
    out.text, out.kept[layer][head]                      # the answer, positions that survived
    for piece in lm.stream("Tell me a story", method="streaming_llm", budget=128): print(piece, end="")
    chat = lm.session(method="keydiff", budget=512); chat.ask("Hi"); chat.ask("What did I just say?")

Eviction is lossy: with a budget below the prompt's length the answer may differ from the full cache's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from nexus import methods
from nexus.generate import Session, Settings
from nexus.models.load import Model, load_model

Prompt = str | list[dict[str, str]]
SETTINGS = tuple(field.name for field in dataclasses.fields(Settings))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """An answer and what the cache held when it was finished."""

    text: str
    tokens: list[int]
    kept: list[list[np.ndarray]]  # [layer][kv head] -> increasing positions
    prompt_tokens: int
    kv_bytes: int  # bytes allocated for keys and values

    def __str__(self) -> str:
        return self.text


def load(name_or_path: str, dtype: str | None = None) -> LM:
    """A language model by local path (safetensors folder, GGUF file), embedded or preset name, or hub name."""
    return LM(load_model(name_or_path, dtype))


class LM:
    """A model with its tokenizer; every call builds its own cache, nothing is shared between calls."""

    def __init__(self, model: Model):
        self.model = model

    def generate(
        self, prompt: Prompt, method: str = "full", budget: int | None = None, max_new_tokens: int = 64, *,
        temperature: float = 0.0, seed: int = 0, **options: Any,
    ) -> Generation:  # fmt: skip
        """Answers a prompt (a user's text, or chat messages) with a method and a budget of slots per layer and kv head.

        Args:
            budget: needed by every method but `full`.
            options: `num_sinks`, `recent`, `min_per_head`, the method's own (see `nexus.methods.options`), and how the
                cache is run (`protocol`, `tail`, `chunk`, `evict_every`).
        Raises:
            KeyError, ValueError: unknown names or values out of range, before anything is computed.
        """
        options |= {"temperature": temperature, "seed": seed, "max_new_tokens": max_new_tokens}
        chat = self.session(method, budget, **options)
        return chat.ask(prompt)

    def stream(
        self, prompt: Prompt, method: str = "full", budget: int | None = None, max_new_tokens: int = 64, *,
        temperature: float = 0.0, seed: int = 0, **options: Any,
    ) -> Iterator[str]:  # fmt: skip
        """The same answer as `generate`, piece by piece as it is written."""
        options |= {"temperature": temperature, "seed": seed, "max_new_tokens": max_new_tokens}
        chat = self.session(method, budget, **options)
        return chat.stream(prompt)

    def session(
        self, method: str = "full", budget: int | None = None, *, temperature: float = 0.0, seed: int = 0,
        max_new_tokens: int = 64, **options: Any,
    ) -> Chat:  # fmt: skip
        """A conversation on one buffer: every turn goes on from what the earlier ones left."""
        if budget is None and method != "full":
            methods.row(method)  # an unknown name is named before a missing budget
            raise ValueError(f"method {method!r} needs a budget: slots per layer and kv head")
        _check_count("max_new_tokens", max_new_tokens)
        if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not 0 <= temperature < math.inf:
            raise ValueError(f"temperature must be a finite number of at least 0, got {temperature!r}")
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ValueError(f"seed must be an integer, got {seed!r}")
        if budget is not None:
            _check_count("budget", budget)
        settings = Settings(**{name: options.pop(name) for name in SETTINGS if name in options})
        built = methods.build(method, budget=budget or 1, **options)
        return Chat(self.model, built, settings, budget, max_new_tokens, temperature, seed)


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")


def _check_prompt(prompt: Any) -> None:
    """A user's text, or a non-empty list of messages whose role and content are texts."""
    if isinstance(prompt, str) and prompt:
        return
    messages = prompt if isinstance(prompt, list) else []
    good = [isinstance(m, dict) and all(isinstance(m.get(key), str) for key in ("role", "content")) for m in messages]
    if not good or not all(good):
        raise ValueError(
            f"a prompt is a non-empty text, or a list of {{'role': text, 'content': text}} messages; got {prompt!r:.80}"
        )


class Chat:
    """A conversation; `ask` and `stream` take the next user turn."""

    def __init__(
        self, model: Model, method: methods.Method, settings: Settings, budget: int | None, max_new_tokens: int,
        temperature: float, seed: int,
    ):  # fmt: skip
        self.model, self.method, self.settings = model, method, settings
        self.max_new_tokens, self.temperature = max_new_tokens, temperature
        self._rng, self._budget = jax.random.key(seed), budget
        self._session: Session | None = None

    def ask(self, prompt: Prompt) -> Generation:
        """The whole answer to the next turn."""
        session, fed = self._feed(prompt)
        tokens = session.generate(self.max_new_tokens, temperature=self.temperature)[0]
        return Generation(
            text=self.model.tokenizer.decode(tokens), tokens=tokens, kept=session.kept()[0], prompt_tokens=fed,
            kv_bytes=session.buffer.kv_bytes_allocated(),
        )  # fmt: skip

    def stream(self, prompt: Prompt, every: int = 4) -> Iterator[str]:
        """Pieces of the answer, `every` tokens at a time."""
        session, _ = self._feed(prompt)
        tokens: list[int] = []
        shown = ""
        while len(tokens) < self.max_new_tokens:
            new = session.generate(min(every, self.max_new_tokens - len(tokens)), temperature=self.temperature)[0]
            tokens += new
            text = self.model.tokenizer.decode(tokens)
            last = session.ended[0] or len(tokens) >= self.max_new_tokens
            if last or not text.endswith("\ufffd"):  # a character whose bytes are not all there yet
                yield text[len(shown) :]
                shown = text
            if session.ended[0]:
                return

    def _feed(self, prompt: Prompt) -> tuple[Session, int]:
        """Streams the next turn in: the first opens the template, later ones close the last answer."""
        _check_prompt(prompt)
        tokenizer = self.model.tokenizer
        if self._session is not None and not isinstance(prompt, str):
            raise ValueError("a conversation goes on with a user's text; messages can only open it")
        ids = tokenizer.first_turn(prompt) if self._session is None else tokenizer.next_turn(prompt)  # type: ignore[arg-type]
        if self._session is None:
            needs = max(len(ids) + self.max_new_tokens, (self._budget or 0) if self.method.full else 0)
            capacity = min(needs, self.model.config.max_position)
            self._session = Session(self.model, self.method, self.settings, 1, capacity=capacity, rng=self._rng)
        self._session.feed([ids])
        if self.settings.protocol == "oneshot" and not self.method.full and not self._session.evicting:
            self._session.compress()
        return self._session, len(ids)
