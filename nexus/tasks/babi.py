"""Facts of a small world, scattered in essays: where is a person, where is an object, where was it before?

After BABILong, Kuratov et al., arXiv 2406.10149; code booydar/babilong (Apache-2.0). Same parts in the same order
(instruction, worked examples, form of the answer, text in tags, question), same rule of scoring, wording ours.
Deviations: stories come from a simulator of our own (`babi_world`) and not from bAbI, the text around them is the
essays' and not books of PG-19, and the answer is begun for the model, so that small ones are asked for a place and not
for a form; hence the name `babi_nexus`, and no number of it is one of BABILong.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from nexus.tasks import babi_world, haystacks
from nexus.tasks.babi_world import Story
from nexus.tasks.fit import Context, Parts, Plan
from nexus.tasks.generated import Generated

VARIANT, VERSION, MAX_NEW_TOKENS, METRIC = "babi-nexus", "1.0.0", 20, "babi"
MOST_TRIES = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frame:
    """The fixed text of a task: what to do, solved examples (facts, question, answer), and the form of an answer."""

    instruction: str
    examples: tuple[tuple[str, str, str], ...]
    form: str
    begun: str = ""  # the begin of the answer; fields: who or what, and the place before which

    @property
    def head(self) -> str:
        """All that comes before the text."""
        solved = "\n".join(f"<example>\n{f}\n{question(q)}\nAnswer: {a}\n</example>" for f, q, a in self.examples)
        return f"{self.instruction}\n{solved}\n{self.form}\n<context>\n"

    @property
    def wording(self) -> dict[str, str]:
        return {"head": self.head, "tail": TAIL, "question": question(""), "answer_prefix": self.begun}


TAIL = "\n</context>\n"


def question(text: str) -> str:
    """What follows the text: the question alone, since the rule of scoring looks for labels in it."""
    return f"Question: {text}"


@dataclasses.dataclass(frozen=True)
class Asked:
    """A person or an object, the place where it is or was, and for the latter the place that came next."""

    who: str
    answer: str
    later: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of question. `find` looks for what a story can be asked, None for nothing; facts: fewest and most."""

    frame: Frame
    ask: str
    facts: tuple[int, int]
    with_objects: bool
    find: Callable[[Story, np.random.Generator], Asked | None]


def plan(kind: Kind, where: Context) -> Plan:
    """One sample; a unit is one word of the essays. The facts stand in order before random sentences."""
    story, asked = _story(kind, where.draws.sample("story"))
    fields = {"who": asked.who, "later": asked.later}
    text = haystacks.package_essays() if where.essays is None else where.essays
    shares = np.sort(where.draws.sample("positions").random(len(story.sentences)))

    def build(n: int) -> Parts:
        sentences = text.first_words(n)
        at = np.floor(shares * (len(sentences) + 1)).astype(int)
        return Parts(
            head=kind.frame.head,
            body=" ".join(haystacks.insert(sentences, at, tuple(story.sentences))),
            tail=TAIL,
            question=question(kind.ask.format(**fields)),
            answer_prefix=kind.frame.begun.format(**fields),
            references=(asked.answer,),
            planted=tuple(story.sentences),
            choices=babi_world.PLACES,
        )

    return Plan(unit="words of essay", floor=1, build=build)


def _story(kind: Kind, rng: np.random.Generator) -> tuple[Story, Asked]:
    for _ in range(MOST_TRIES):
        story = babi_world.tell(rng, int(rng.integers(kind.facts[0], kind.facts[1] + 1)), kind.with_objects)
        asked = kind.find(story, rng)
        if asked is not None:
            return story, asked
    raise ValueError(f"no story with an answer in {MOST_TRIES} tries of {kind.facts} facts")


# --- what a story can be asked ----------------------------------------------------------------------------------------
def _person(story: Story, rng: np.random.Generator) -> Asked | None:
    name = babi_world.one(rng, sorted(story.at))
    return Asked(name, story.at[name])


def _object(story: Story, rng: np.random.Generator) -> Asked | None:
    """An object that has been carried: where it is was told by more than one sentence."""
    moved = [thing for thing, places in sorted(story.seen.items()) if len(places) > 1]
    if not moved:
        return None
    thing = babi_world.one(rng, moved)
    return Asked(thing, story.seen[thing][-1])


def _before(story: Story, rng: np.random.Generator) -> Asked | None:
    """A place at which an object has been once, so that there is one answer."""
    found = [
        Asked(thing, places[i - 1], places[i])
        for thing, places in sorted(story.seen.items())
        for i in range(1, len(places))
        if places.count(places[i]) == 1
    ]
    return found[rng.integers(len(found))] if found else None


_CARRIED = (
    "Some sentences of the text say where people are and what they carry; the others have nothing to do with it. Answer"
    " the question from those sentences alone. Whoever takes an object carries it along to every place until it is put"
    " down; what was put down stays where it is."
)
KINDS = {
    "babi_nexus_qa1": Kind(
        frame=Frame(
            instruction="Some sentences of the text say where people are; the others have nothing to do with it."
            " Answer the question from those sentences alone. If somebody was at several places, the latest counts.",
            examples=(
                ("Ruth walked to the bank. Omar hurried to the stadium.", "Where is Ruth?", "Ruth is at the bank."),
                ("Omar went to the bank. Ruth set off for the lighthouse. Omar walked to the stadium.",
                 "Where is Omar?", "Omar is at the stadium."),
            ),
            form="Answer in one sentence of this form: PERSON is at the PLACE. Write nothing after it.",
            begun=" {who} is at the",
        ),
        ask="Where is {who}?", facts=(4, 6), with_objects=False, find=_person,
    ),
    "babi_nexus_qa2": Kind(
        frame=Frame(
            instruction=_CARRIED,
            examples=(
                ("Ruth walked to the bank. Ruth took the kite. Ruth went to the stadium.", "Where is the kite?",
                 "The kite is at the stadium."),
                ("Omar set off for the stadium. Omar grabbed the kite. Omar went to the lighthouse. Omar dropped the"
                 " kite. Omar walked to the bank.", "Where is the kite?", "The kite is at the lighthouse."),
            ),
            form="Answer in one sentence of this form: The OBJECT is at the PLACE. Write nothing after it.",
            begun=" The {who} is at the",
        ),
        ask="Where is the {who}?", facts=(6, 10), with_objects=True, find=_object,
    ),
    "babi_nexus_qa3": Kind(
        frame=Frame(
            instruction=_CARRIED,
            examples=(
                ("Ruth walked to the bank. Ruth took the kite. Ruth went to the stadium. Ruth hurried to the"
                 " lighthouse.", "Where was the kite before the lighthouse?",
                 "Before the lighthouse the kite was at the stadium."),
                ("Omar went to the stadium. Omar grabbed the kite. Omar set off for the bank.",
                 "Where was the kite before the bank?", "Before the bank the kite was at the stadium."),
            ),
            form="Answer in one sentence of this form: Before the PLACE the OBJECT was at the OTHER PLACE. Write"
            " nothing after it.",
            begun=" Before the {later} the {who} was at the",
        ),
        ask="Where was the {who} before the {later}?", facts=(6, 10), with_objects=True, find=_before,
    ),
}  # fmt: skip

TASKS: dict[str, Generated] = {
    name: Generated(
        name=name,
        variant=VARIANT,
        version=VERSION,
        max_new_tokens=MAX_NEW_TOKENS,
        metric=METRIC,
        wording=kind.frame.wording | {"ask": kind.ask},
        planner=functools.partial(plan, kind),
        uses_essays=True,
    )
    for name, kind in KINDS.items()
}
