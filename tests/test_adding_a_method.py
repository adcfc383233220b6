"""docs/adding_a_method.md, run as it stands: the scorer, the row and the test of its example."""

from __future__ import annotations

import re
import sys
import types

import pytest

from nexus import methods, record, scorers
from tests import tiny

TEXT = (record.ROOT / "docs" / "adding_a_method.md").read_text("utf-8")
BLOCKS = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", TEXT, re.S))


@pytest.fixture
def added(monkeypatch):
    """The method of the page: its scorer as a module, its row in the table. Returns the test's module."""
    module = types.ModuleType("nexus.scorers.value_norm")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look their module up
    exec(compile(BLOCKS["nexus/scorers/value_norm.py"], "value_norm.py", "exec"), module.__dict__)
    monkeypatch.setattr(scorers, "ValueNorm", module.ValueNorm, raising=False)
    monkeypatch.setattr(methods, "ROWS", dict(methods.ROWS))
    exec(compile(BLOCKS["nexus/methods.py"], "row.py", "exec"), vars(methods))
    tests = types.ModuleType("test_value_norm")
    exec(compile(BLOCKS["tests/scorers/test_value_norm.py"], "test_value_norm.py", "exec"), tests.__dict__)
    return tests


def test_the_page_has_three_places():
    assert list(BLOCKS) == ["nexus/scorers/value_norm.py", "nexus/methods.py", "tests/scorers/test_value_norm.py"]


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_its_own_test_holds(added, power, monkeypatch):
    added.test_a_stream_keeps_what_the_equation_says(power, monkeypatch)


def test_its_refusal_holds(added):
    added.test_a_power_below_zero_is_refused()


def test_the_row_is_all_that_the_rest_needs(added):
    """Named in the printed table, buildable with other parts, exact while the budget holds everything."""
    assert "value_norm" in methods.names() and "`value_norm`" in methods.table()
    assert methods.options("value_norm")["power"] == 1.0
    full, small = (tiny.session(tiny.build("full")), methods.build("value_norm", budget=64, allocator="global"))
    held = tiny.session(small)
    texts = tiny.prompts(37, 5, 20)
    for session in (full, held):
        session.feed(texts)
    assert full.generate(6, end=()) == held.generate(6, end=())


def test_the_page_says_where_things_are():
    for target in re.findall(r"\]\(\.\./([^)#]+)\)", TEXT):
        assert (record.ROOT / target.replace("\\", "")).exists(), target
