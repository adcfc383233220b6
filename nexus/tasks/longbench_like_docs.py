"""Tasks of `longbench_like` about documents: questions on one and on several, counting and finding paragraphs.

Documents are the paragraphs of `qa_world` about people and places. They grow by sentences, so that any length is
filled; the last paragraph may stop short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from nexus.tasks import draws, haystacks
from nexus.tasks.fit import Context, Parts, Plan
from nexus.tasks.qa_world import ASK_TWICE, Pair, World

_BRIEF = "Reply in as few words as you can and give no reasons."
DOC_QA = dict(
    head=f"What follows is an article about people of a county; one question about it stands at the end. {_BRIEF}\n\n"
    "Article: ",
    tail=f"\n\nThat was the article. Reply to the question about it. {_BRIEF}\n\n",
    question="Question: {ask}\n\n",
    answer_prefix="Answer: {begin}",
)
# What somebody did, the question about it, and how the answer begins: small models need the words of the text.
DEEDS = dict(
    parrot=("{name} called the parrot", "What did {name} call the parrot?"),
    door=("{name} painted the front door", "In which colour did {name} paint the front door?"),
    meal=("{name} cooked for the wedding guests", "What did {name} cook for the wedding guests?"),
    ride=("{name} went to the seaside by", "How did {name} go to the seaside?"),
)
ALL_DEEDS = {f"deed_{kind}": " / ".join(texts) for kind, texts in DEEDS.items()}
THINGS = dict(
    parrot=("Biscuit", "Pepper", "Domino", "Clover", "Rascal", "Noodle", "Truffle", "Tango", "Pickle", "Bandit"),
    door=("purple", "turquoise", "orange", "crimson", "yellow", "pink", "brown", "white", "black", "green"),
    meal=("pancakes", "lasagne", "dumplings", "meatballs", "omelettes", "lentils", "noodles", "sausages", "lobster"),
    ride=("tram", "canoe", "tractor", "balloon", "bicycle", "helicopter", "taxi", "donkey", "bus", "motorcycle"),
)
DOCS_QA = dict(
    head=f"Reply to the question with the help of the passages. {_BRIEF}\n\nHere are the passages.\n",
    tail=f"\n\nReply to the question with the help of the passages. {_BRIEF}\n\n",
    question="Question: {ask}\n\n",
    answer_prefix="Answer:",
    document="Passage {number}:\n{text}",
    **{f"ask_{name}": text for name, text in ASK_TWICE.items()},
)
COUNT = dict(
    head="What follows is a list of paragraphs in which some occur several times. Count how many different paragraphs"
    " the list has; what occurs several times counts once.\n\n",
    tail="\n\n",
    question="So how many different paragraphs does the list have? Give the number alone, such as 2 or 5 or 11.\n\n",
    answer_prefix="The number of different paragraphs is: ",
    document="Paragraph {number}: {text}",
)
RETRIEVAL = dict(
    head="What follows are numbered paragraphs and then a remark that fits one of them alone. Find that paragraph.\n\n",
    tail="\n\n",
    question="The remark:\n\n{ask}\n\nWhich paragraph does it fit? Reply in the form"
    ' "Paragraph 2" or "Paragraph 5".\n\n',
    answer_prefix="The remark fits: ",
    document="Paragraph {number}: {text}",
    about="Here we read of {name}, from {town}, {article} {occupation} who owned {an_instrument}.",
)


# --- questions --------------------------------------------------------------------------------------------------------
def doc_qa(where: Context) -> Plan:
    """One article; between its paragraphs, at drawn depths, stands one deed of each kind, by different people."""
    rng, world = where.draws.sample("question"), World(where.draws.sample("world"))
    kinds = [sorted(DEEDS)[i] for i in rng.permutation(len(DEEDS))]
    names = [world.pair(0).person[part] for part in ("name", "spouse")]
    names += [world.pair(0).place["founder"], world.pair(1).person["spouse"]]
    things = [draws.one(rng, THINGS[kind]) for kind in kinds]
    begins = [DEEDS[kind][0].format(name=name) for kind, name in zip(kinds, names, strict=True)]
    deeds = tuple(f"{begin} {thing}." for begin, thing in zip(begins, things, strict=True))
    depths, asked = np.sort(rng.random(len(deeds))), int(rng.integers(len(deeds)))

    def build(n: int) -> Parts:
        paragraphs = _others(world, n)
        at = np.round(depths * len(paragraphs)).astype(int)
        return Parts(
            head=DOC_QA["head"],
            body="\n".join(haystacks.insert(paragraphs, at, deeds)),
            tail=DOC_QA["tail"],
            question=DOC_QA["question"].format(ask=DEEDS[kinds[asked]][1].format(name=names[asked])),
            answer_prefix=DOC_QA["answer_prefix"].format(begin=begins[asked]),
            references=(things[asked],),
            planted=deeds,
        )

    return Plan(unit="further sentences", floor=0, build=build)


def docs_qa(where: Context) -> Plan:
    """Numbered passages in drawn order; one tells where somebody worked, another one about that place."""
    rng, world = where.draws.sample("question"), World(where.draws.sample("world"))
    kind = draws.one(rng, sorted(ASK_TWICE))
    asked = world.pair(0)

    def build(n: int) -> Parts:
        passages = [asked.about_person, asked.about_place, *_others(world, n)]
        return Parts(
            head=DOCS_QA["head"],
            body=_numbered(DOCS_QA["document"], _shuffled(where, passages)),
            tail=DOCS_QA["tail"],
            question=DOCS_QA["question"].format(ask=DOCS_QA[f"ask_{kind}"].format(**asked.person)),
            answer_prefix=DOCS_QA["answer_prefix"],
            references=(asked.place[kind],),
            planted=(*_sentences(asked.about_person), *_sentences(asked.about_place)),
        )

    return Plan(unit="further sentences", floor=0, build=build)


# --- paragraphs -------------------------------------------------------------------------------------------------------
def count(where: Context) -> Plan:
    """Every paragraph once, then a drawn share of them again, in drawn order."""
    share, world = where.draws.sample("question").uniform(0.2, 0.8), World(where.draws.sample("world"))

    def build(n: int) -> Parts:
        # n sentences of which about share / (1 + share) are repeated
        single = _others(world, max(1, round(n / (1 + share))))
        rng = where.draws.sample("again")
        again, left = [], n - sum(len(_sentences(text)) for text in single)
        for i in rng.permutation(len(single)):
            size = len(_sentences(single[i]))
            if size <= left:
                again.append(single[i])
                left -= size
        return Parts(
            head=COUNT["head"],
            body=_numbered(COUNT["document"], _shuffled(where, single + again)),
            tail=COUNT["tail"],
            question=COUNT["question"],
            answer_prefix=COUNT["answer_prefix"],
            references=(str(len(single)),),
        )

    return Plan(unit="sentences", floor=4, build=build)


def retrieval(where: Context) -> Plan:
    """Numbered paragraphs in drawn order, all about people; the remark takes facts of one of them."""
    world = World(where.draws.sample("world"))
    asked = world.pair(0)
    instrument = asked.person["instrument"]
    ask = RETRIEVAL["about"].format(**asked.person, an_instrument=f"{_article(instrument)} {instrument}")

    def build(n: int) -> Parts:
        paragraphs = _shuffled(where, [asked.about_person, *_others(world, n, places=False)])
        number = paragraphs.index(asked.about_person) + 1
        return Parts(
            head=RETRIEVAL["head"],
            body=_numbered(RETRIEVAL["document"], paragraphs),
            tail=RETRIEVAL["tail"],
            question=RETRIEVAL["question"].format(ask=ask),
            answer_prefix=RETRIEVAL["answer_prefix"],
            references=(f"Paragraph {number}",),
            planted=tuple(_sentences(asked.about_person)),
        )

    return Plan(unit="further sentences", floor=0, build=build)


# --- text -------------------------------------------------------------------------------------------------------------
def _others(world: World, num_sentences: int, places: bool = True) -> list[str]:
    """Paragraphs about everybody but pair 0, up to a number of sentences; the last one may be cut."""
    found: list[str] = []
    left = num_sentences
    for text in _about(world.pair, places):
        sentences = _sentences(text)[:left]
        if not sentences:
            break
        found.append(" ".join(sentences))
        left -= len(sentences)
    return found


def _about(pair: Callable[[int], Pair], places: bool) -> Iterator[str]:
    number = 1
    while True:
        yield pair(number).about_person
        if places:
            yield pair(number).about_place
        number += 1


def _sentences(text: str) -> list[str]:
    return haystacks.SENTENCE_END.split(text)


def _shuffled(where: Context, texts: list[str]) -> list[str]:
    return [texts[i] for i in where.draws.sample("order").permutation(len(texts))]


def _numbered(form: str, texts: list[str]) -> str:
    return "\n\n".join(form.format(number=i, text=text) for i, text in enumerate(texts, 1))


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"
