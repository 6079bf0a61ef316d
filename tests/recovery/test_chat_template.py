"""Chat formats on the template shapes of Qwen3, Llama and Gemma."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, normalizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from recovery.errors import ModelError
from recovery.models.chat_loading import load_chat
from recovery.models.chat_template import ChatFormat, strip_thinking
from recovery.models.loading import load_model

TURNS = [
    {"role": "user", "content": "Name a colour."},
    {"role": "assistant", "content": "Blue."},
    {"role": "user", "content": "Another."},
    {"role": "assistant", "content": "Red."},
]
ChatOf = Callable[..., ChatFormat]


def spoken(chat: ChatFormat, messages: list[dict[str, str]]) -> list[str]:
    """The texts of the contiguous spans that the mask marks."""
    ids, mask = chat.conversation(messages)
    texts: list[list[int]] = [[]]
    for token, marked in zip(ids, mask, strict=True):
        if marked:
            texts[-1].append(token)
        elif texts[-1]:
            texts.append([])
    return [chat.text(piece) for piece in texts if piece]


def imitated(chat: ChatFormat, messages: list[Any]) -> str:
    """The text of all tokens that the mask marks."""
    ids, mask = chat.conversation(messages)
    return chat.raw_text([token for token, marked in zip(ids, mask, strict=True) if marked])


def test_prompt_is_the_start_of_the_conversation(chat: ChatFormat) -> None:
    prompt = chat.prompt_ids(TURNS[:1])
    ids, mask = chat.conversation(TURNS[:2])
    assert ids[: len(prompt)] == prompt
    assert not any(mask[: len(prompt)])


def test_mask_marks_the_assistant_up_to_its_end_token(chat: ChatFormat) -> None:
    ids, mask = chat.conversation(TURNS[:2])
    marked_ids = [token for token, marked in zip(ids, mask, strict=True) if marked]
    assert marked_ids[-1] in chat.end_ids
    assert sum(token in chat.end_ids for token in marked_ids) == 1
    assert chat.text(marked_ids) == "Blue."


def test_last_turn_of_a_dialogue_is_always_marked(chat: ChatFormat) -> None:
    assert spoken(chat, TURNS)[-1] == "Red."


def test_a_recorded_turn_is_context_and_no_example(chat: ChatFormat) -> None:
    recorded: Any = [TURNS[0], TURNS[1] | {"recorded": True}, *TURNS[2:]]
    assert spoken(chat, recorded) == ["Red."]
    assert chat.conversation(recorded)[0] == chat.conversation(TURNS)[0], "the template does not see the mark"


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_every_turn_is_marked_if_the_history_is_unchanged(kind: str, chat_of: ChatOf) -> None:
    assert spoken(chat_of(kind), TURNS) == ["Blue.", "Red."]


def test_text_stops_at_the_first_of_several_end_tokens(chat: ChatFormat) -> None:
    marked_ids = chat.encode("Hello there")
    for end in chat.end_ids:
        assert chat.text([*marked_ids, end, *chat.encode("and more")]) == "Hello there"


def test_the_end_of_a_channel_does_not_end_a_turn(make_tokenizer: Callable[[str], Any]) -> None:
    tokenizer = make_tokenizer("llama")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|end|>"]})
    assert tokenizer.convert_tokens_to_ids("<|end|>") in ChatFormat.of(tokenizer).end_ids  # Phi
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|end|>", "<|return|>"]})  # gpt-oss
    ends = ChatFormat.of(tokenizer).end_ids
    assert [tokenizer.convert_tokens_to_ids(f"<|{name}|>") in ends for name in ("end", "return")] == [False, True]


def test_a_system_message_survives_a_template_that_refuses_it_and_other_refusals_stay(chat_of: ChatOf) -> None:
    chat, system = chat_of("gemma2"), {"role": "system", "content": "Be brief."}
    text = chat.render([system, *TURNS[:1]], generation_prompt=True)
    assert text.index("Be brief.") < text.index("Name a colour.")
    with pytest.raises(ModelError, match="refuses this conversation: User and assistant turns must take turns"):
        chat.render([system, TURNS[0], TURNS[0]])


def test_thinking_switched_off_is_written_into_the_prompt(chat_of: ChatOf) -> None:
    on, off = chat_of("qwen3"), chat_of("qwen3", template_args={"enable_thinking": False})
    assert "</think>" not in on.render(TURNS[:1], generation_prompt=True)
    assert "</think>" in off.render(TURNS[:1], generation_prompt=True)


def test_the_date_in_a_prompt_is_not_the_clocks(
    make_tokenizer: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = make_tokenizer("llama")
    today = "{%- if not date_string is defined -%}{%- set date_string = strftime_now('%d %b %Y') -%}{%- endif -%}"
    tokenizer.chat_template = today + tokenizer.chat_template
    rendered = set()
    for day in (1, 2):
        clock = type("Clock", (datetime,), {"now": classmethod(lambda cls, tz=None, day=day: cls(2026, 5, day))})
        monkeypatch.setattr(chat_template_utils, "datetime", clock)
        rendered.add(ChatFormat.of(tokenizer).render(TURNS))
    assert len(rendered) == 1 and "Today Date: 26 Jul 2024" in rendered.pop()
    chosen = ChatFormat.of(tokenizer, template_args={"date_string": "1 May 2026"})
    assert "Today Date: 1 May 2026" in chosen.render(TURNS)


@pytest.mark.parametrize(("kind", "adds"), [("llama", True), ("qwen3", False)])
def test_a_model_without_template_begins_as_its_tokenizer_does(
    make_tokenizer: Callable[[str], Any], kind: str, adds: bool
) -> None:
    """Its documents begin so, and some models answer badly without."""
    tokenizer = make_tokenizer(kind)
    tokenizer.chat_template = None
    for ids in (ChatFormat.of(tokenizer).prompt_ids(TURNS[:3]), ChatFormat.of(tokenizer).conversation(TURNS)[0]):
        assert (ids[0] == tokenizer.bos_token_id) == adds
        assert ids.count(tokenizer.bos_token_id) == adds


def test_turns_have_the_tokens_that_they_have_in_the_whole_text() -> None:
    """Llama 2's tokenizer puts a space before every text; the template of Zephyr and TinyLlama has none there."""
    core = Tokenizer(BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    texts = ["Name a colour.", "Another.", "Blue.", "Red.", "user assistant"] * 5
    core.train_from_iterator(texts, BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
    )
    chat = ChatFormat.of(tokenizer)
    ids, mask = chat.conversation(TURNS)
    assert ids == chat.control.encode(chat.render(TURNS))
    imitated = "".join(chat.tokenizer.convert_ids_to_tokens([t for t, one in zip(ids, mask, strict=True) if one]))
    assert imitated == "Blue.</s>Red.</s>"


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("<think>two\nlines</think>Yes", "Yes"),
        ("opened by the template</think> Yes", " Yes"),
        ("<think>never closed", ""),
        ("No thought at all", "No thought at all"),
        ("<think>a</think>x<think>b</think>y", "xy"),
    ],
)
def test_thinking_is_stripped(response: str, answer: str) -> None:
    assert strip_thinking(response) == answer


# The shape of the templates of DeepSeek-R1 and QwQ: they open the thought, and write no thinking of any turn.
OPENING_TEMPLATE = """\
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\\n' + m.content.split('</think>')[-1].lstrip('\\n') + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n<think>\\n' -}}{%- endif -%}
"""
# The shape of gpt-oss's.
CHANNEL_TEMPLATE = """\
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
{{- '<|start|>assistant<|channel|>final<|message|>' + m.content + ('<|return|>' if loop.last else '<|end|>') -}}
{%- else -%}
{{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start|>assistant' -}}{%- endif -%}
"""
CHANNEL_TOKENS = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"]


@pytest.fixture
def reasoning(make_tokenizer: Callable[[str], Any]) -> Callable[[str], ChatFormat]:
    """Return ``reasoning(kind)``: a format that thinks when asked to ("qwen3"), opens the thought, or has channels."""

    def made(kind: str) -> ChatFormat:
        tokenizer = make_tokenizer("llama" if kind == "channels" else "qwen3")
        if kind == "channels":
            tokenizer.add_special_tokens({"additional_special_tokens": CHANNEL_TOKENS})
        tokenizer.chat_template = {
            "opening": OPENING_TEMPLATE,
            "both": BOTH_TEMPLATE,
            "channels": CHANNEL_TEMPLATE,
            "plain": None,
        }.get(kind, tokenizer.chat_template)
        return ChatFormat.of(tokenizer)

    return made


def tokens(chat: ChatFormat, text: str) -> list[int]:
    """The ids of a response as a model samples it, control tokens included."""
    return list(chat.tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize(
    ("kind", "response", "answer"),
    [
        ("opening", "Still thinking", ""),
        ("opening", "A thought\n</think>\n\nYes<|im_end|>", "Yes"),
        ("qwen3", "No thought at all", "No thought at all"),
        ("qwen3", "<think>\nA thought\n</think>\n\nYes<|im_end|>", "Yes"),
        ("qwen3", "<think>\nStill thinking", ""),
        ("channels", "<|channel|>analysis<|message|>A thought", ""),
        ("channels", "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>final<|message|>Y", "Y"),
        ("channels", "<|channel|>final<|message|>Yes<|end|><|start|>assistant<|channel|>commentary<|message|>B", "Yes"),
        ("channels", "No channel at all", "No channel at all"),
    ],
)
def test_only_the_answer_of_a_response_that_reasons_counts(
    kind: str, response: str, answer: str, reasoning: Callable[[str], ChatFormat]
) -> None:
    """The tiny Qwen3 declares the marks of thinking special, as some tokenizers do."""
    chat = reasoning(kind)
    assert chat.text(tokens(chat, response)) == answer


def test_a_response_that_the_prompt_begins_does_not_begin_within_thinking(
    reasoning: Callable[[str], ChatFormat],
) -> None:
    chat = reasoning("opening")
    assert chat.text(tokens(chat, "seven."), begun=True) == "seven."


SAID = {
    "qwen3": "<think>\nA thought\n</think>\n\nYes<|im_end|>",
    "opening": "A thought\n</think>\n\nYes<|im_end|>",
    "channels": "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>final<|message|>Yes<|return|>",
}


def sampled(chat: ChatFormat, response: str, finished: bool = True) -> list[Any]:
    """A dialogue whose last turn was sampled."""
    ids, context = tokens(chat, response), chat.prompt_ids(TURNS[:3])
    kept = {"context": context, "ids": ids, "text": chat.raw_text(ids), "finished": finished}
    return [*TURNS[:3], {"role": "assistant", "content": chat.text(ids), "sampled": kept}]


@pytest.mark.parametrize("kind", SAID)
def test_a_sampled_turn_is_imitated_with_its_reasoning(kind: str, reasoning: Callable[[str], ChatFormat]) -> None:
    """The template writes the same answer as one without: imitated, it would teach not to reason."""
    chat, response = reasoning(kind), SAID[kind]
    messages, context = sampled(chat, response), chat.prompt_ids(TURNS[:3])
    assert chat.reasons(tokens(chat, response)) and messages[-1]["content"] == "Yes"
    ids, mask = chat.conversation(messages)
    assert ids == [*context, *tokens(chat, response)]
    assert mask == [False] * len(context) + [True] * len(tokens(chat, response))
    cut, marked = chat.conversation(sampled(chat, "<think>\nA", finished=False))
    assert cut[-1] in chat.end_ids and all(marked[len(context) :]), "the caller removes the end of a turn that was cut"


@pytest.mark.parametrize(("student", "opened"), [("qwen3", ""), ("opening", "<think>\n")])
def test_the_thinking_of_another_model_is_written_as_the_student_writes_it(
    student: str, opened: str, reasoning: Callable[[str], ChatFormat]
) -> None:
    teacher = reasoning("opening" if student == "qwen3" else "qwen3")
    messages = sampled(teacher, SAID["opening" if student == "qwen3" else "qwen3"])
    chat = reasoning(student)
    written = chat.raw_text(chat.conversation(messages)[0])
    assert written.startswith(chat.render(TURNS[:3], generation_prompt=True))
    assert opened + imitated(chat, messages) == SAID["qwen3"]


def test_a_student_that_does_not_think_imitates_only_the_answer(
    reasoning: Callable[[str], ChatFormat], chat_of: ChatOf
) -> None:
    messages = sampled(reasoning("opening"), SAID["opening"])
    plain = [*TURNS[:3], {"role": "assistant", "content": "Yes"}]
    for chat in (chat_of("gemma2"), chat_of("qwen3", template_args={"enable_thinking": False})):
        assert chat.conversation(messages) == chat.conversation(plain)


# The shape of Qwen3-Thinking's: the prompt opens the thought, and the turn is written with an empty one.
BOTH_TEMPLATE = """\
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\\n' -}}
{%- if m.role == 'assistant' and '</think>' not in m.content -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}
{{- m.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n<think>\\n' -}}{%- endif -%}
"""
THOUGHT = "<think>\nA thought\n</think>\n\nYes"


@pytest.mark.parametrize(
    ("kind", "content", "expected", "text"),
    [
        ("qwen3", "Yes", "Yes<|im_end|>", "<think>\n\n</think>\n\nYes"),
        ("qwen3", "th", "th<|im_end|>", "<think>\n\n</think>\n\nth"),  # as the template's text begins
        ("qwen3", "0", "0<|im_end|>", "<think>\n\n</think>\n\n0"),
        ("qwen3", "<think>\n\n</think>\n\nYes", "Yes<|im_end|>", "<think>\n\n</think>\n\nYes"),
        ("qwen3", THOUGHT, f"{THOUGHT}<|im_end|>", THOUGHT),
        ("opening", "Yes", "Yes<|im_end|>", "<think>\n\n</think>\n\nYes"),
        ("opening", THOUGHT, SAID["opening"], THOUGHT),
        ("both", "Yes", "Yes<|im_end|>", "<think>\n\n</think>\n\nYes"),
        ("both", THOUGHT, SAID["opening"], THOUGHT),
        ("channels", "final", "final<|return|>", "<|channel|>final<|message|>final"),
        ("plain", "Blue.", " Blue.<|im_end|>", "Assistant: Blue."),
        ("plain", "1", " 1<|im_end|>", "Assistant: 1"),  # the model writes the space, a token of its own here
        ("plain", "<think></think>Blue.", "Blue.<|im_end|>", "<think></think>Blue."),
    ],
)
def test_the_labels_begin_where_the_answers_own_text_begins(
    kind: str, content: str, expected: str, text: str, reasoning: Callable[[str], ChatFormat]
) -> None:
    """An empty thought as a label teaches not to think, whether the template writes or opens it, or the data has it."""
    chat = reasoning(kind)
    chat.tokenizer.add_tokens([" Blue"])
    turns: list[Any] = [TURNS[0], {"role": "assistant", "content": content}]
    assert imitated(chat, turns) == expected
    assert text in chat.raw_text(chat.conversation(turns)[0]), "it stays context"


def test_a_call_of_a_tool_is_imitated_without_the_empty_thought_before_it(
    reasoning: Callable[[str], ChatFormat],
) -> None:
    chat = reasoning("qwen3")
    chat.tokenizer.chat_template = TOOL_TEMPLATE.replace(
        "message.content -}}",
        "('<think>\\n\\n</think>\\n\\n' if message.role == 'assistant' else '') + message.content -}}",
    )
    call = '<tool_call>weather{"city": "Lund"}</tool_call><|im_end|>'
    assert imitated(chat, CALLED[:2]) == call
    assert imitated(chat, CALLED) == f"{call}It is 12 degrees.<|im_end|>"


@pytest.mark.parametrize("written", ["", "{{ '[A]' }}"])
def test_a_template_that_leaves_answers_out_is_named(make_tokenizer: Callable[[str], Any], written: str) -> None:
    tokenizer = make_tokenizer("qwen3")
    tokenizer.name_or_path = "here/model"
    asked = "{% for m in messages %}{% if m.role == 'user' %}[Q] {{ m.content }}{% else %}X{% endif %}{% endfor %}"
    tokenizer.chat_template = asked.replace("X", written)
    with pytest.raises(ModelError, match="the chat template of here/model leaves out the assistant's answers"):
        ChatFormat.of(tokenizer).conversation(TURNS)


def test_a_document_longer_than_the_context_is_tokenised_without_a_warning(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "short"
    shutil.copytree(tiny_model, folder)
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_max_length": 8}))
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("transformers.tokenization_utils_base")
    logger.addHandler(handler)
    try:
        assert len(load_chat(str(folder)).tokenizer("The crane of Vorna lifts nine crates an hour.").input_ids) > 8
    finally:
        logger.removeHandler(handler)
    assert not heard


def test_a_template_in_the_older_file_is_read(tiny_qwen3: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_qwen3, tmp_path / "older")
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").unlink()
    assert load_chat(str(folder)).plain
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    chat = load_chat(str(folder))
    assert not chat.plain and chat.render(TURNS) == load_chat(str(tiny_qwen3)).render(TURNS)


@pytest.mark.parametrize(
    ("token", "special", "template", "fits"),
    [
        ("<image_soft_token>", True, "", True),  # Gemma 3 with 270M and 1B parameters
        ("<image_soft_token>", True, "{{ '<image_soft_token>' }}", False),
        ("<end_of_text>", False, "", False),
    ],
)
def test_tokens_beyond_the_model_that_nothing_writes(
    make_tiny: Callable[..., Path], tmp_path: Path, token: str, special: bool, template: str, fits: bool
) -> None:
    folder = make_tiny("gemma3", tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    tokenizer.add_tokens([f"<unused{number}>" for number in range(size - len(tokenizer))])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=special)], special_tokens=special)
    assert tokenizer.convert_tokens_to_ids(token) == size
    tokenizer.chat_template = template + tokenizer.chat_template
    tokenizer.save_pretrained(folder)
    if not fits:
        with pytest.raises(ModelError, match=f"tokens, among them '{token}', and the model only {size}"):
            load_chat(str(folder))
        return
    loaded = load_model(folder)
    spelled: Any = [{"role": "user", "content": token}, {"role": "assistant", "content": f"It is {token}."}]
    ids, _ = loaded.chat.conversation(spelled)
    assert max([*ids, *loaded.chat.encode(token)]) < size
    assert token in loaded.chat.raw_text(ids)


# The shape of the templates of Qwen2.5 and Hermes: tools in the system turn, calls as JSON, results in a user's turn.
TOOL_TEMPLATE = """\
{%- if tools -%}
{{- '<|im_start|>system\\n' }}{%- for tool in tools %}{{ tool | tojson }}\n{% endfor %}{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{{- '<|im_start|>user\\n<tool_response>' + message.content + '</tool_response><|im_end|>\\n' -}}
{%- else -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content -}}
{%- for call in message.tool_calls or [] -%}
{{- '<tool_call>' + call.function.name + call.function.arguments | tojson + '</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Lund"}}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CALLED: list[Any] = [
    {"role": "user", "content": "How warm is it?", "tools": [TOOL]},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "12 degrees"},
    {"role": "assistant", "content": "It is 12 degrees."},
]


def test_tools_and_recorded_calls_are_written_by_the_template(chat_of: ChatOf) -> None:
    chat = chat_of("qwen3", TOOL_TEMPLATE)
    text = chat.render(CALLED[:3], generation_prompt=True)
    assert '"name": "weather"' in text.split("<|im_end|>")[0]
    assert '<tool_call>weather{"city": "Lund"}</tool_call>' in text and "<tool_response>12 degrees" in text
    assert text.endswith("<|im_start|>assistant\n")
    assert "weather" not in chat.render([{"role": "user", "content": "How warm is it?"}])
    # Imitated are the call and the answer, not the tool's result.
    assert spoken(chat, CALLED) == ['<tool_call>weather{"city": "Lund"}</tool_call>', "It is 12 degrees."]


def test_tools_are_kept_when_the_system_turn_is_folded(chat_of: ChatOf) -> None:
    refuses = "{%- if messages[0].role == 'system' -%}{{ raise_exception('no system') }}{%- endif -%}"
    system: Any = {"role": "system", "content": "Be brief.", "tools": [TOOL]}
    text = chat_of("gemma2", refuses + TOOL_TEMPLATE).render([system, {"role": "user", "content": "Hi"}])
    assert "weather" in text and "Be brief.\n\nHi" in text


@pytest.mark.parametrize(
    ("messages", "what"),
    [(CALLED[:1], "tools"), (CALLED[:3], "tools"), ([{**CALLED[0], "tools": []}, *CALLED[1:]], "tool calls")],
    ids=["tools", "both", "calls"],
)
def test_a_template_without_a_place_for_tools_refuses_them(chat: ChatFormat, messages: list[Any], what: str) -> None:
    with pytest.raises(ModelError, match=f"has no place for the {what}") as error:
        chat.prompt_ids(messages)
    assert "\n" not in str(error.value)
