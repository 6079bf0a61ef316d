"""Token rows of documents: no text is lost, no row is too long, special tokens only at row boundaries."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE, Unigram, WordLevel
from transformers import PreTrainedTokenizerFast

from pipelines.data.document_rows import document_rows, end_of_document_id, unknown_characters
from recovery.data.corpus.documents import Document
from recovery.models.control_tokens import adds_bos


def document(text: str, title: str = "Docks") -> Document:
    return Document("a.md", title, text, "a.md")


LONG = "# Docks\n\n" + "\n\n".join(
    f"Dock {i} belongs to keeper {i * 3}. It opens at {i % 12} o'clock and closes late." for i in range(60)
)


@pytest.mark.parametrize("kind", ["qwen3", "llama", "gemma2", "gemma3"])
def test_a_short_document_is_one_row_between_begin_and_end_tokens(make_tokenizer, kind):
    tokenizer = make_tokenizer(kind)
    (row,) = document_rows([document("The port opens at six.")], tokenizer, 128)
    begin = [tokenizer.bos_token_id] if adds_bos(tokenizer) else []
    end = end_of_document_id(tokenizer)
    assert end is not None
    assert row[: len(begin)] == begin
    assert row[-1] == end
    assert tokenizer.decode(row[len(begin) : -1]) == "The port opens at six."


@pytest.mark.parametrize("kind", ["qwen3", "llama", "gemma2"])
@pytest.mark.parametrize("length", [48, 100, 333])
def test_a_long_document_is_cut_into_rows_that_hold_all_of_it(make_tokenizer, kind, length):
    tokenizer = make_tokenizer(kind)
    rows = list(document_rows([document(LONG)], tokenizer, length))
    assert len(rows) > 3
    assert max(map(len, rows)) <= length
    end = end_of_document_id(tokenizer)
    assert [row[-1] == end for row in rows] == [False] * (len(rows) - 1) + [True]
    words = " ".join(tokenizer.decode(row, skip_special_tokens=True) for row in rows).split()
    for i in range(60):
        assert any(
            words[j : j + 6] == ["Dock", str(i), "belongs", "to", "keeper", f"{i * 3}."] for j in range(len(words))
        )


def test_later_rows_repeat_the_title_and_begin_where_a_paragraph_does(make_tokenizer):
    tokenizer = make_tokenizer("qwen3")
    rows = [tokenizer.decode(r, skip_special_tokens=True) for r in document_rows([document(LONG)], tokenizer, 200)]
    assert rows[0].startswith("# Docks\n\nDock 0")
    assert all(row.startswith("Docks\n\nDock ") for row in rows[1:])
    assert "".join(rows).count("belongs") == 60


def test_a_title_too_long_for_the_row_is_left_out(make_tokenizer):
    tokenizer = make_tokenizer("qwen3")
    rows = list(document_rows([document(LONG, title="very long title " * 30)], tokenizer, 64))
    assert not any("very long title" in tokenizer.decode(row) for row in rows)


def test_one_endless_paragraph_and_one_endless_word_are_cut(make_tokenizer):
    tokenizer = make_tokenizer("qwen3")
    for text in ("harbour " * 500, "x1" * 2000):
        rows = list(document_rows([document(text.strip(), title="T")], tokenizer, 64))
        assert max(map(len, rows)) <= 64
        joined = "".join(tokenizer.decode(r, skip_special_tokens=True).removeprefix("T\n\n") for r in rows)
        assert joined.replace(" ", "").replace("T\n\n", "") == text.replace(" ", "").strip()


def test_text_that_spells_a_special_token_stays_text(make_tokenizer):
    tokenizer = make_tokenizer("qwen3")
    end = end_of_document_id(tokenizer)
    (row,) = document_rows([document("He wrote <|endoftext|> and <|im_end|> on the wall.")], tokenizer, 128)
    assert row.count(end) == 1
    assert not set(row[:-1]) & set(tokenizer.all_special_ids)


def test_rows_too_short_for_any_text_are_refused(make_tokenizer):
    with pytest.raises(ValueError, match="too short"):
        list(document_rows([document("a")], make_tokenizer("qwen3"), 6))


LETTERS = "abcdefghijklmnopqrstuvwxyzT."


@pytest.mark.parametrize(
    ("model", "unknown"),
    [
        (BPE({"<unk>": 0, **{c: n for n, c in enumerate(LETTERS, 1)}}, [], unk_token="<unk>"), "<unk>"),
        (BPE({"<unk>": 0, **{c: n for n, c in enumerate(LETTERS, 1)}}, [], unk_token="<unk>", fuse_unk=True), "<unk>"),
        (BPE({c: n for n, c in enumerate(LETTERS)}, []), None),  # what it does not know is dropped
        (Unigram([("<unk>", 0.0), *((c, -1.0) for c in LETTERS)], 0, False), "<unk>"),
        (WordLevel({"<unk>": 0, "The": 1, "port": 2, "opens": 3, ".": 4}, "<unk>"), "<unk>"),
    ],
)
def test_characters_that_a_tokenizer_does_not_know_are_counted(model, unknown):
    core = Tokenizer(model)
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, **({"unk_token": unknown} if unknown else {}))
    texts = [document("The port opens."), document("The порт opens. порт")]
    assert unknown_characters(texts[:1], tokenizer) == (0, 13, "")
    assert unknown_characters(texts, tokenizer) == (8, 13 + 17, "порт")


@pytest.mark.parametrize("kind", ["qwen3", "gemma2"])
def test_a_tokenizer_of_bytes_knows_every_character(make_tokenizer, kind):
    assert unknown_characters([document("порт 港 🜚")], make_tokenizer(kind)) == (0, 0, "")


def test_a_long_paragraph_without_spaces_is_cut_between_its_sentences(make_tokenizer):
    tokenizer = make_tokenizer("qwen3")
    text = "".join(f"第{n}号码头的管理员每天都要记录进港的每一艘船。" for n in range(40))
    rows = [tokenizer.decode(row, skip_special_tokens=True) for row in document_rows([document(text)], tokenizer, 300)]
    bodies = [row.removeprefix(f"{document(text).title}\n\n") for row in rows]
    assert len(rows) > 3 and "".join(bodies) == text
    assert all(body.startswith("第") and body.endswith("。") for body in bodies)
