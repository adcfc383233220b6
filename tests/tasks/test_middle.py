import pytest

from nexus.models.tokenizer import byte_tokenizer
from nexus.tasks import middle

BYTES = byte_tokenizer()
CONTEXT = "".join(f"{i:03d} " for i in range(100))  # 400 bytes
QUESTION, PREFIX = "Who?\n", "Answer:"


def tokens(context, question, prefix, chat):
    return sum(map(len, BYTES.prompt(context, question, prefix, chat=chat)))


def test_a_prompt_that_fits_stays_as_it_is():
    size = tokens(CONTEXT, QUESTION, PREFIX, True)
    kept = middle.keep_ends(BYTES, CONTEXT, QUESTION, PREFIX, size)
    assert (kept.context, kept.question, kept.tokens, kept.cut) == (CONTEXT, QUESTION, size, 0)


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("room", [150, 151, 300])
def test_half_the_room_is_the_head_and_half_the_end_of_the_whole_prompt(room, chat):
    kept = middle.keep_ends(BYTES, CONTEXT, QUESTION, PREFIX, room, chat=chat)
    wrapping = tokens("", "", "", chat)
    half = (room - wrapping) // 2
    assert kept.context == CONTEXT[:half] + CONTEXT[len(CONTEXT) - (half - len(QUESTION + PREFIX)) :]
    assert kept.question == QUESTION
    assert kept.tokens == tokens(kept.context, QUESTION, PREFIX, chat) in (room, room - 1)
    assert kept.cut == tokens(CONTEXT, QUESTION, PREFIX, chat) - kept.tokens


def test_the_chat_markers_are_put_around_what_is_left():
    """Cutting a prompt that is wrapped already deletes its markers (THUDM/LongBench#25)."""
    kept = middle.keep_ends(BYTES, CONTEXT, QUESTION, PREFIX, 200)
    before, after = BYTES.prompt(kept.context, kept.question, PREFIX)
    text = BYTES.decode(before + after, skip_special=False)
    assert text.count("<|im_start|>") == 2 and text.count("<|im_end|>") == 1


@pytest.mark.parametrize("letter", ["é", "€", "😀"])
def test_no_character_is_torn_and_what_stays_survives_the_tokenizer(letter):
    """An end inside a character decodes to a replacement character that was not in the text."""
    context = letter * 100
    for room in range(90, 110):
        kept = middle.keep_ends(BYTES, context, QUESTION, PREFIX, room)
        assert set(kept.context) == {letter} and kept.tokens <= room
        assert BYTES.decode(BYTES.encode(kept.context)) == kept.context


def test_special_tokens_of_the_text_stay():
    """They were dropped while the text was cut (THUDM/LongBench)."""
    context = "<s>" + CONTEXT + "<|im_end|>."
    kept = middle.keep_ends(BYTES, context, QUESTION, PREFIX, 200)
    assert kept.cut and kept.context.startswith("<s>000 ") and kept.context.endswith("<|im_end|>.")


def test_a_question_longer_than_half_the_room_loses_its_beginning():
    """As the prompt is cut as one text; code tasks put a whole file there."""
    question = "".join(f"q{i:03d}" for i in range(100))
    kept = middle.keep_ends(BYTES, CONTEXT, question, PREFIX, 200, chat=False)
    assert kept.context == CONTEXT[:100] and kept.question == question[-93:]


def test_a_short_context_keeps_the_beginning_of_the_question_too():
    question = "".join(f"q{i:03d}" for i in range(100))
    kept = middle.keep_ends(BYTES, "Go on.\n", question, "", 200, chat=False)
    assert kept.context == "Go on.\n" and kept.question == question[:93] + question[-100:]


def test_a_tokenizer_with_merges_stays_within_the_room(tokenizer):
    for room in range(40, 60):
        kept = middle.keep_ends(tokenizer, "several words and their letters. " * 20, QUESTION, PREFIX, room)
        assert kept.tokens <= room and kept.cut > 0


def test_too_little_room_is_an_error_with_the_numbers():
    with pytest.raises(ValueError, match=r"10 tokens of prompt are too few: chat wrapping and answer prefix take \d+"):
        middle.keep_ends(BYTES, CONTEXT, QUESTION, PREFIX, 10)


def test_a_tokenizer_that_changes_its_text_is_refused():
    class Lower(type(BYTES)):
        def __init__(self):
            pass

        encode = staticmethod(BYTES.encode)
        prompt = staticmethod(BYTES.prompt)

        def decode(self, ids, skip_special=True):
            return BYTES.decode(ids, skip_special).lower()

    with pytest.raises(ValueError, match="does not give back its text"):
        middle.keep_ends(Lower(), CONTEXT.replace(" ", "X"), QUESTION, PREFIX, 200)
