"""Meanings of settings are the comments beside them."""

import dataclasses

from nexus import explain


@dataclasses.dataclass(frozen=True)
class Base:
    width: int = 1  # of the base
    height: int = 2  # in pixels


@dataclasses.dataclass(frozen=True)
class Derived(Base):
    width: int = 3  # of the derived
    bare: int = 4

    def area(self):
        bare = self.width  # a variable, not the field  # noqa: F841


def test_comments_of_assignments_by_their_target():
    source = "a.b = 1  # one\nx: int = 2  # two # three\nc = (\n    1,  # inside\n)  # behind\nd = '#no'\n"
    assert explain.notes(source) == {"a.b": "one", "x": "two # three", "c": "behind"}


def test_the_first_assignment_counts_even_without_a_comment():
    """A special case in a branch would explain the default."""
    assert explain.notes("if True:\n    a = 1  # special\na = 0\n") == {}
    assert explain.notes("a = 0  # default\na = 1  # later\n") == {"a": "default"}


def test_marks_for_tools_are_no_meaning():
    assert explain.notes("a = 1  # fmt: skip\nb = 2  # noqa: E501\nc = 3  # type: ignore\n") == {}


def test_fields_have_the_comment_of_the_nearest_class():
    assert explain.field_notes(Derived()) == {"width": "of the derived", "height": "in pixels"}
