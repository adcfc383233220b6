"""Question answering over invented documents, for machines without SQuAD and HotpotQA: look-alikes of qa_1 and qa_2.

    qa_nexus_1   one document holds the answer, the others are about other people
    qa_nexus_2   two documents must be combined: where somebody works, and what there is to say about that place

Form, fitting, limit and metric are those of RULER's tasks (`ruler_qa`), the world is our own (`qa_world`): the numbers
are not those of qa_1 and qa_2, and the names say so.
"""

from __future__ import annotations

from nexus.tasks import qa_world, ruler_qa
from nexus.tasks.fit import Context, Plan
from nexus.tasks.generated import Generated
from nexus.tasks.qa_world import World

VARIANT, VERSION = "qa-nexus", "1.0.0"


def single(where: Context) -> Plan:
    """One fact about one person."""
    world = World(where.draws.sample("world"))
    facts = world.pair(0).person
    asked = where.draws.sample("question").choice(list(qa_world.ASK))
    case = ruler_qa.Case(
        question=qa_world.ASK[asked].format(**facts),
        answers=(facts[asked].removeprefix("the "),),
        gold=(world.pair(0).about_person,),
        others=lambda i: _other(world, i),
    )
    return ruler_qa.plan(case, where)


def double(where: Context) -> Plan:
    """One fact about the place where somebody works."""
    world = World(where.draws.sample("world"))
    pair = world.pair(0)
    asked = where.draws.sample("question").choice(list(qa_world.ASK_TWICE))
    case = ruler_qa.Case(
        question=qa_world.ASK_TWICE[asked].format(**pair.person),
        answers=(pair.place[asked],),
        gold=(pair.about_person, pair.about_place),
        others=lambda i: _other(world, i),
    )
    return ruler_qa.plan(case, where)


def _other(world: World, number: int) -> str:
    """Document `number` beside those of the question: three in four are about places, the fourth about a person."""
    pair = world.pair(number + 1)
    return pair.about_person if number % 4 == 1 else pair.about_place


TASKS: dict[str, Generated] = {
    name: Generated(
        name=name,
        variant=VARIANT,
        version=VERSION,
        max_new_tokens=ruler_qa.MAX_NEW_TOKENS,
        metric=ruler_qa.METRIC,
        wording={**ruler_qa.WORDING, **qa_world.WORDING, **{f"ask {fact}": text for fact, text in asked.items()}},
        planner=planner,
    )
    for name, planner, asked in (
        ("qa_nexus_1", single, qa_world.ASK),
        ("qa_nexus_2", double, qa_world.ASK_TWICE),
    )
}
