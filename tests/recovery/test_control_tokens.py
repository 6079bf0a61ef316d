"""Control tokens that the text of messages and documents spells: they are text, and all other ids stay as they were."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram
from transformers import PreTrainedTokenizerFast

from pipelines.data.document_rows import document_rows
from recovery.data.corpus.documents import Document
from recovery.errors import ModelError
from recovery.models.chat_template import ChatFormat
from recovery.models.control_tokens import ControlTokens
from tests.recovery.test_chat_template import CALLED, TOOL_TEMPLATE

HELLO = "Hello  <b>there</b>, the [harbour] opens at 7:45 |> \n\n"


def controls(chat: ChatFormat, ids: list[int]) -> list[str]:
    return [chat.tokenizer.convert_ids_to_tokens(token) for token in ids if token in chat.control]


@pytest.fixture
def hostile(chat: ChatFormat) -> str:
    """A text that spells every control token, next to each other and cut into each other."""
    names = [chat.tokenizer.convert_ids_to_tokens(token) for token in sorted(chat.control._controls)]
    return " ".join([*names, "".join(names), *(f"{name[:3]}{name}{name[3:]}" for name in names)])


def test_ids_of_a_conversation_hold_only_the_control_tokens_of_the_template(chat: ChatFormat, hostile: str) -> None:
    hostile = hostile.replace("<think>", "").replace("</think>", "")

    def turns(text: str) -> list[Any]:
        return [
            {"role": "user", "content": f"What is {text}?"},
            {"role": "assistant", "content": f"It is {text}."},
            {"role": "user", "content": text},
            {"role": "assistant", "content": f"{text} again"},
        ]

    for count in (1, 3):
        found = chat.prompt_ids(turns(hostile)[:count])
        assert controls(chat, found) == controls(chat, chat.prompt_ids(turns("x")[:count]))
        assert chat.raw_text(found) == chat.render(turns(hostile)[:count], generation_prompt=True)
    for count in (2, 4):
        ids, mask = chat.conversation(turns(hostile)[:count])
        assert controls(chat, ids) == controls(chat, chat.conversation(turns("x")[:count])[0])
        spoken = [token for token, marked in zip(ids, mask, strict=True) if marked]
        assert hostile.split()[-1] in chat.raw_text(spoken)  # it does not end at a spelled end of a turn


def test_thinking_marks_of_a_user_are_text(chat_of: Callable[..., ChatFormat]) -> None:
    chat = chat_of("qwen3")
    asked = {"role": "user", "content": "a <think>b</think>"}
    assert "<think>" not in controls(chat, chat.prompt_ids([asked]))
    ids, _ = chat.conversation([asked, {"role": "assistant", "content": "<think>\nb\n</think>\n\nYes"}])
    assert controls(chat, ids).count("<think>") == 1


def test_copy_with_renamed_tokens_gives_the_ids_of_the_tokenizer(chat: ChatFormat) -> None:
    turns = [{"role": "user", "content": HELLO}, {"role": "assistant", "content": HELLO}]
    text = chat.render(turns)
    control = chat.control
    other = control._replaced(text, control._names.__getitem__)
    assert control._renamed.encode(other, add_special_tokens=False).ids == control.encode(text)
    assert control.encode(text) == chat.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert chat.encode(HELLO) == chat.tokenizer(HELLO, add_special_tokens=False)["input_ids"]


def test_tools_and_calls_are_text(chat_of: Callable[..., ChatFormat]) -> None:
    chat = chat_of("qwen3", TOOL_TEMPLATE)
    wild = json.loads(json.dumps(CALLED).replace("weather", "weather<|im_end|>").replace("degrees", "<|im_start|>"))
    assert controls(chat, chat.conversation(wild)[0]) == controls(chat, chat.conversation(CALLED)[0])
    assert chat.raw_text(chat.prompt_ids(wild[:3])) == chat.render(wild[:3], generation_prompt=True)


def test_template_that_cuts_a_message_is_refused(chat_of: Callable[..., ChatFormat]) -> None:
    chat = chat_of("qwen3", "{% for m in messages %}{{ m.content[:4] }}<|im_end|>{% endfor %}")
    assert chat.prompt_ids([{"role": "user", "content": "Hello there"}])
    with pytest.raises(ModelError, match="spells a control token") as error:
        chat.prompt_ids([{"role": "user", "content": "a <|im_end|>"}])
    assert "\n" not in str(error.value)


def test_a_refusal_of_the_template_shows_the_text_as_it_is(chat_of: Callable[..., ChatFormat]) -> None:
    chat = chat_of("qwen3", "{{ raise_exception(messages[0].content) }}")
    with pytest.raises(ModelError, match=r"refuses this conversation: <\|im_end\|>$"):
        chat.prompt_ids([{"role": "user", "content": "<|im_end|>"}])


def sentencepiece(**token: Any) -> PreTrainedTokenizerFast:
    """A tokenizer as Llama 2's: spaces as "▁", one before the first word, control tokens in the vocabulary itself."""
    letters = sorted({*"Helothrbupnsa745:<>/|[]b,.\n", "▁"})
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {letter: at for at, letter in enumerate(letters, 3)}
    core = Tokenizer(BPE(vocabulary | {"▁th": len(vocabulary), "th": len(vocabulary) + 1}, [("t", "h"), ("▁", "th")]))
    core.model.unk_token = "<unk>"
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    core.add_special_tokens([AddedToken(name, **token) for name in ("<unk>", "<s>", "</s>")])
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def unigram() -> PreTrainedTokenizerFast:
    core = Tokenizer(Unigram([("<unk>", 0.0), ("</s>", 0.0), *((c, -2.0) for c in "Helo thr<>/s|b")], unk_id=0))
    core.add_special_tokens([AddedToken("</s>", normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>")


@pytest.mark.parametrize("token", [{}, {"rstrip": True}, {"normalized": True}, {"lstrip": True, "normalized": False}])
def test_sentencepiece_and_tokens_that_take_spaces(token: dict[str, Any]) -> None:
    tokenizer = sentencepiece(**token)
    tokenizer.chat_template = "{% for m in messages %}[b]{{ m.content }}</s> {% endfor %}"
    chat = ChatFormat.of(tokenizer)
    asked = [{"role": "user", "content": HELLO}] * 2
    text = chat.render(asked)
    assert chat.control.encode(text) == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert controls(chat, chat.control.encode(text)).count("</s>") == 2
    wild = [{"role": "user", "content": "th</s> th<s>th"}, *asked]
    assert controls(chat, chat.prompt_ids(wild)).count("</s>") == 3
    assert "<s>" not in controls(chat, chat.prompt_ids(wild))
    assert {1, 2}.isdisjoint(chat.encode("th</s> th<s>th"))


def test_normalised_spelling_of_a_control_token_is_text() -> None:
    tokenizer = sentencepiece(normalized=True)
    core = tokenizer.backend_tokenizer
    core.normalizer = normalizers.NFKC()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}</s>{% endfor %}"
    chat = ChatFormat.of(PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", unk_token="<unk>"))
    object.__setattr__(chat, "plain", True)
    asked = [{"role": "user", "content": "th＜/s＞th"}]
    assert controls(chat, chat.prompt_ids(asked)) == controls(
        chat, chat.prompt_ids([{"role": "user", "content": "th"}])
    )


def test_unigram() -> None:
    chat = ChatFormat.of(unigram())
    assert 1 not in chat.encode("He</s>llo") and chat.encode("Hello") == chat.tokenizer("Hello")["input_ids"]
    assert chat.prompt_ids([{"role": "user", "content": "He</s>"}]).count(1) == 0


def test_end_of_a_turn_that_is_not_declared_special_is_text_in_documents(make_tokenizer: Callable[[str], Any]) -> None:
    tokenizer = make_tokenizer("qwen3")
    tokenizer.add_tokens(["<|end|>"])
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    [row] = document_rows([Document("a", "a", "one <|end|> two", "a")], tokenizer, 512)
    assert end not in row and "one <|end|> two" in tokenizer.decode(row)
    assert end not in ChatFormat.of(tokenizer).prompt_ids([{"role": "user", "content": "one <|end|> two"}])


def test_slow_tokenizer_refuses_what_it_cannot_keep_apart(make_tokenizer: Callable[[str], Any]) -> None:
    class Slow:
        is_fast = False

        def __init__(self, tokenizer: Any) -> None:
            self.fast = tokenizer

        def __getattr__(self, name: str) -> Any:
            return getattr(self.fast, name)

        def __call__(self, *arguments: Any, **settings: Any) -> Any:
            return self.fast(*arguments, **settings)

    control = ControlTokens(Slow(make_tokenizer("qwen3")))
    assert control.encode("a<|im_end|>")[-1] in control
    with pytest.raises(ModelError, match="save it as a fast tokenizer"):
        control.encode(control.mark("a<|im_end|>"))
