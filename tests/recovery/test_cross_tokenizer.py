"""Alignment of a student's responses with the tokens of a teacher that has another tokenizer."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from recovery.errors import ModelError
from recovery.models.chat_template import ChatFormat
from recovery.teachers.cross_tokenizer import CrossTokenizer, Spelled, token_bytes
from recovery.types import Message
from tests.models import FAMILIES, OTHER_TEXT

ASKED = [Message(role="system", content="Be brief."), Message(role="user", content="Name a boat.")]
TEXTS = (
    "The harbour office opens at seven. Le bureau du port ouvre à sept heures.",
    "naïve façade: 東京, Москва, \U0001f6a2!\n\n* first point\n",
    "<think>\nno\n</think>\n\nYes.",
    " ",
)


@pytest.fixture(scope="module")
def make_chat(make_tokenizer: Callable[..., Any]) -> Callable[..., ChatFormat]:
    def made(kind: str, *arguments: Any) -> ChatFormat:
        tokenizer = make_tokenizer(kind, *arguments)
        ends = SimpleNamespace(eos_token_id=tokenizer.convert_tokens_to_ids(list(FAMILIES[kind].ends)))
        return ChatFormat.of(tokenizer, ends)

    return made


@pytest.fixture(scope="module")
def pair(make_chat: Callable[..., ChatFormat]) -> CrossTokenizer:
    return CrossTokenizer(make_chat("qwen3"), make_chat("llama", OTHER_TEXT, 400), "other", 512)


def sides(cross: CrossTokenizer, response: list[int], found: Spelled) -> list[tuple[str, str]]:
    """The text of both sides of every span."""
    return [
        (cross.student.raw_text(response[a:b]), cross.teacher.raw_text(found.ids[c:d])) for a, b, c, d in found.spans
    ]


@pytest.mark.parametrize("text", TEXTS)
def test_every_token_of_a_response_is_aligned(pair: CrossTokenizer, text: str) -> None:
    end = pair.student.tokenizer.convert_tokens_to_ids("<|im_end|>")
    response = [*pair.student.encode(text), end]
    found = pair.spelled(ASKED, response)
    prompt = pair.teacher.render(ASKED, generation_prompt=True)
    assert pair.teacher.raw_text(found.ids) == f"{prompt}{text}<|eot_id|>"
    *said, ended = sides(pair, response, found)
    assert ended == ("<|im_end|>", "<|eot_id|>"), "the end of a turn is the same, whatever it is called"
    assert sum(b - a for a, b, _, _ in found.spans) == len(response)
    assert "".join(one for one, _ in said).replace("\ufffd", "") in text or "\ufffd" in "".join(map(str, said))


def test_an_unfinished_response_has_no_end(pair: CrossTokenizer) -> None:
    response = pair.student.encode("The harbour")
    found = pair.spelled(ASKED, response)
    assert pair.teacher.raw_text(found.ids).endswith("The harbour")
    assert found.spans[-1][1] == len(response)


def test_any_bytes_are_aligned_even_those_of_no_character(pair: CrossTokenizer) -> None:
    """A student samples any token after any other: the teacher reads such bytes one by one."""
    draw = random.Random(0)
    for _ in range(50):
        response = [draw.randrange(5, 448) for _ in range(12)]
        spelled = token_bytes(pair.student.tokenizer, "s")
        found = pair.spelled(ASKED, response)
        theirs = token_bytes(pair.teacher.tokenizer, "t")
        start = len(pair.prompt_ids(ASKED))
        data = b"".join(spelled[token] or b"" for token in response)
        assert b"".join(theirs[token] or b"" for token in found.ids[start:]) == data
        assert sum(b - a for a, b, _, _ in found.spans) == len(response)
    # Padding of the head has no bytes: it belongs to the span before it.
    assert (
        pair.spelled(ASKED, [*pair.student.encode("boat"), 500, 501]).spans[-1][1]
        == len(pair.student.encode("boat")) + 2
    )


def test_an_end_of_one_side_alone_is_the_end_of_a_turn(make_chat: Callable[..., ChatFormat]) -> None:
    qwen, gemma = make_chat("qwen3"), make_chat("gemma3", OTHER_TEXT, 400)
    cross = CrossTokenizer(qwen, gemma, "other", 512)
    for end in ("<|im_end|>", "<|endoftext|>"):
        found = cross.spelled(ASKED, [qwen.tokenizer.convert_tokens_to_ids(end)])
        assert gemma.raw_text(found.ids).endswith("<start_of_turn>model\n<end_of_turn>")
    student, teacher, count = cross.outcomes(512, 512)
    ends = {student[qwen.tokenizer.convert_tokens_to_ids(end)] for end in ("<|im_end|>", "<|endoftext|>")}
    ends |= {teacher[gemma.tokenizer.convert_tokens_to_ids(end)] for end in ("<end_of_turn>", "<eos>")}
    assert ends == {count - 2}
    assert student[460:] == [count - 1] * 52 == teacher[460:], "padding of the heads"


def test_an_outcome_is_the_longest_shared_token_that_a_token_begins_with(pair: CrossTokenizer) -> None:
    sizes = len(pair.student.tokenizer), len(pair.teacher.tokenizer)
    *numbered, count = pair.outcomes(*sizes)
    tables = token_bytes(pair.student.tokenizer, "s"), token_bytes(pair.teacher.tokenizer, "t")
    named = {number: spelled for spelled, number in zip(tables[0], numbered[0], strict=True) if spelled in pair.shared}
    assert len(named) == len(pair.shared) == count - 2
    for table, numbers, chat in zip(tables, numbered, (pair.student, pair.teacher), strict=True):
        alone = 0
        for token, (spelled, number) in enumerate(zip(table, numbers, strict=True)):
            assert spelled is not None
            if token in chat.end_ids:
                assert number == count - 2
                continue
            assert named[number] == max(filter(spelled.startswith, pair.shared), key=len)
            alone += spelled not in pair.shared
        assert alone > 20, "both vocabularies have tokens of their own"


def test_a_tokenizer_aligns_with_itself_token_by_token(make_chat: Callable[..., ChatFormat]) -> None:
    chat = make_chat("qwen3")
    cross = CrossTokenizer(chat, chat, "itself", 512)
    response = [*chat.encode(TEXTS[0]), chat.tokenizer.convert_tokens_to_ids("<|im_end|>")]
    found = cross.spelled(ASKED, response)
    start = len(found.ids) - len(response)
    assert found.ids == [*chat.prompt_ids(ASKED), *response]
    assert found.spans == [(at, at + 1, at + start, at + start + 1) for at in range(len(response))]
    student, teacher, count = cross.outcomes(448, 448)
    assert student == teacher and len(set(student)) == 448 == count - 1


def test_what_is_beyond_the_window_is_left_out(pair: CrossTokenizer) -> None:
    prompt = len(pair.prompt_ids(ASKED))
    short = CrossTokenizer(pair.student, pair.teacher, "short", prompt + 3)
    response = pair.student.encode(TEXTS[0])
    found = short.spelled(ASKED, response)
    assert len(found.ids) == prompt + 3 and found.spans[-1][3] <= prompt + 3
    assert found.spans == [span for span in pair.spelled(ASKED, response).spans if span[3] <= prompt + 3]


def test_each_template_has_its_own_whitespace_before_a_response(make_chat: Callable[..., ChatFormat]) -> None:
    """As the built-in model: a space after "assistant" instead of a line break."""
    spaced, other = make_chat("qwen3"), make_chat("llama", OTHER_TEXT, 400)
    spaced.tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role + ' ' + m.content + '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant' }}{% endif %}"
    )
    response = spaced.encode(" The harbour is open.")
    found = CrossTokenizer(spaced, other, "other", 512).spelled(ASKED, response)
    assert other.raw_text(found.ids) == other.render(ASKED, generation_prompt=True) + "The harbour is open."
    first = found.spans[0]
    assert first[1] - first[0] > 1, "the token with another space is never compared by itself"
    back = other.encode("The harbour is open.")
    found = CrossTokenizer(other, spaced, "other", 512).spelled(ASKED, back)
    assert spaced.raw_text(found.ids).endswith("assistant The harbour is open.")
    assert sum(b - a for a, b, _, _ in found.spans) == len(back)


def sentencepiece(prepend: bool) -> ChatFormat:
    """A tokenizer in the form of Llama 2's (with a space before each text) or Gemma's."""
    words = ["▁The", "▁boat", "The", "boat", "▁", "s", "▁is", "."]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    core = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0, byte_fallback=True))
    replace = normalizers.Replace(" ", "▁")
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prepend else replace
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", bos_token="<s>")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content + '</s>' }}{% endfor %}"
    return ChatFormat.of(tokenizer)


@pytest.mark.parametrize("prepend", [True, False])
def test_sentencepiece_is_known_too(pair: CrossTokenizer, prepend: bool) -> None:
    text = "The boats is 東."
    cross = CrossTokenizer(pair.student, sentencepiece(prepend), "pieces", 512)
    response = pair.student.encode(text)
    found = cross.spelled([Message(role="user", content="a")], response)
    start = len(cross.prompt_ids([Message(role="user", content="a")]))
    said = b"".join(token_bytes(cross.teacher.tokenizer, "pieces")[token] or b"" for token in found.ids[start:])
    assert said == text.encode(), "the space that the tokenizer adds is not part of the response"
    assert sum(b - a for a, b, _, _ in found.spans) == len(response)


def test_what_cannot_be_compared_is_refused(pair: CrossTokenizer, make_tokenizer: Callable[..., Any]) -> None:
    plain = make_tokenizer("llama", OTHER_TEXT)
    plain.chat_template = None
    with pytest.raises(ModelError, match="the teacher bare has another tokenizer and no chat template"):
        CrossTokenizer(pair.student, ChatFormat.of(plain), "bare", 512)
    core = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    words = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="[UNK]")
    words.chat_template = "{{ messages[0].content }}"
    with pytest.raises(ModelError, match="the tokens of the teacher words cannot be compared"):
        CrossTokenizer(pair.student, ChatFormat.of(words), "words", 512)
    gemma = make_tokenizer("gemma2", OTHER_TEXT)
    twice = [Message(role="user", content="a"), Message(role="user", content="b")]
    with pytest.raises(ModelError, match="the teacher strict cannot read a prompt: the chat template refuses"):
        CrossTokenizer(pair.student, ChatFormat.of(gemma), "strict", 512).prompt_ids(twice)
