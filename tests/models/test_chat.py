"""The template environment: what published templates rely on, and what strangers' templates must not do."""

import re

import pytest

from nexus.models import chat

USER = [{"role": "user", "content": "hi"}]


def render(source, messages=USER, **variables):
    return chat.render(chat.compile_template(source), messages, add_generation_prompt=True, **variables)


def test_blocks_are_trimmed_as_templates_expect():
    assert render("  {% for m in messages %}\n{{ m['content'] }}\n  {% endfor %}\nend") == "hi\nend"


def test_loop_controls_and_generation_blocks():
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"
    assert render(source, USER * 2) == "hi"


def test_names_that_templates_test_for():
    assert render("{{ tools is none }}{{ documents is none }}{{ enable_thinking }}") == "TrueTrueFalse"
    assert render("{{ bos_token }}", bos_token="<s>") == "<s>"
    assert re.fullmatch(r"\d{4}", render("{{ strftime_now('%Y') }}"))


def test_tojson_does_not_escape_html():
    assert render("{{ {'a': '<é>'} | tojson }}") == '{"a": "<é>"}'


def test_refusals_are_value_errors_with_the_template_s_words():
    with pytest.raises(ValueError, match="refused the messages: roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_broken_templates_are_named():
    with pytest.raises(ValueError, match=r"not valid \(line 2\)"):
        chat.compile_template("a\n{% if %}")


@pytest.mark.parametrize("attack", ["{{ messages.append(1) }}", "{{ ''.__class__.__mro__[1].__subclasses__() }}"])
def test_templates_are_sandboxed(attack):
    with pytest.raises(ValueError, match="refused"):
        render(attack)
