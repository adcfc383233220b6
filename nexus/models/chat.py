"""Chat templates: Jinja text to prompt text, in the environment that published templates are written for.

The environment is the one transformers documents: sandboxed, blocks trimmed, `raise_exception` and `strftime_now`
present, `{% generation %}` accepted. Templates come from files of strangers, hence the immutable sandbox.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

Message = Mapping[str, str]  # role, content


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks assistant text for training masks; here it only prints its body."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def compile_template(source: str) -> jinja2.Template:
    """Compiled template. Raises ValueError for one that is not valid Jinja."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(f"chat template is not valid (line {error.lineno}): {error.message}") from error


def render(
    template: jinja2.Template, messages: Sequence[Message], *, add_generation_prompt: bool, **variables: Any
) -> str:
    """Prompt text with thinking switched off. Raises ValueError with the template's own words when it refuses."""
    values: dict[str, Any] = {"tools": None, "documents": None, "enable_thinking": False} | variables
    try:
        return template.render(messages=list(messages), add_generation_prompt=add_generation_prompt, **values)
    except jinja2.TemplateError as error:
        raise ValueError(f"chat template refused the messages: {error}") from error


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, indent: int | None = None) -> str:
    """Jinja's own filter escapes HTML characters, which published templates do not expect."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
