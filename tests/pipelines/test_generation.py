"""Completions turn by turn, and the cache of the clean model's completions."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.data.document_rows import chat_rows
from pipelines.distillation.batch_builder import BatchBuilder, Pools
from pipelines.distillation.development import development_file, read_result, write_result
from pipelines.runtime.engines import weights_hash
from pipelines.runtime.generation import CompletedConversation, conversations, fitting, open_turns, sample_turns
from recovery.config import DistillConfig
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.rollouts.engine import Progress, Sampling
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.types import Item, Message, Prompt, Score, SuiteResult
from recovery.workspace import Checkpoint
from tests.support import Heard, Noting, Saying


def user(text: str) -> Message:
    return Message(role="user", content=text)


def prompts(count: int) -> list[Prompt]:
    return [Prompt(f"p{i}", (user(f"Name boat {i}."),)) for i in range(count)]


def load(path: Path) -> tuple[Loaded, TransformersEngine]:
    loaded = load_model(path, precision="float32", device="cpu")
    return loaded, TransformersEngine(loaded)


def test_open_turns_are_those_the_model_has_to_answer() -> None:
    reply = Message(role="assistant", content="yes")
    assert open_turns([user("a")]) == [[user("a")]]
    assert open_turns([user("a"), user("b")]) == [[user("a")], [user("b")]]
    assert open_turns([user("a"), reply, user("b")]) == [[user("a"), reply, user("b")]]
    assert open_turns([user("a"), reply]) == []
    result = Message(role="tool", content="12")
    assert open_turns([user("a"), reply, result]) == [[user("a"), reply, result]]
    assert open_turns([user("a"), reply, result, user("b")]) == [[user("a"), reply, result], [user("b")]]


def test_every_turn_is_answered_in_the_context_of_the_answer_before(tiny_model: Path) -> None:
    loaded, engine = load(tiny_model)
    two = Prompt("two", (user("Say a word."), user("Say it again.")))
    spoken = sample_turns(loaded.chat, engine, [two, *prompts(1)], Sampling(6, seed=4))
    assert [turn.prompt.id for turn in spoken] == ["two", "p0", "two"]
    last = spoken[-1]
    assert [m["role"] for m in last.messages] == ["user", "assistant", "user", "assistant"]
    assert last.context == loaded.chat.prompt_ids(last.messages[:-1])
    assert spoken == sample_turns(loaded.chat, engine, [two, *prompts(1)], Sampling(6, seed=4))


def test_prompts_that_leave_no_room_are_left_out(tiny_model: Path) -> None:
    loaded, _ = load(tiny_model)
    long = Prompt("long", (user("boat " * 400),))
    assert fitting(loaded.chat, [long, *prompts(1)], 100, 10) == prompts(1)


def test_a_conversation_has_room_for_every_answer(tiny_model: Path) -> None:
    loaded, engine = load(tiny_model)
    long = Prompt("long", tuple(user("Say a word.") for _ in range(4)))
    turns = sample_turns(loaded.chat, engine, [long], Sampling(10, seed=4))
    answers = sum(len(turn.completion.ids) for turn in turns[:-1])
    last = len(turns[-1].context)
    assert fitting(loaded.chat, [long], last - answers + 3 * 10, 10) == [long]
    assert fitting(loaded.chat, [long], last - answers, 10) == []


def test_answers_are_kept_chunk_by_chunk_and_asked_for_once(tiny_model: Path, tmp_path: Path) -> None:
    loaded, engine = load(tiny_model)
    noting = Noting(engine)

    def ask(progress: Progress | None = None, content_hash: str = "x") -> tuple[list[CompletedConversation], int]:
        return conversations(
            loaded,
            noting,
            prompts(70),
            content_hash=content_hash,
            sampling=Sampling(48, seed=0),
            cache=tmp_path,
            progress=progress,
        )

    heard = Heard()

    def stop(answers: int, tokens: int) -> None:
        heard(answers, tokens)
        if heard.answers > 64:
            raise KeyboardInterrupt

    def asked() -> list[int]:
        return [len(call) for call in noting.calls]

    with pytest.raises(KeyboardInterrupt):
        ask(stop)
    assert asked() == [64, 6]
    first, tokens = ask()
    assert asked() == [64, 6, 6], "an interruption loses no whole chunk"
    assert first, "the tiny model ends some of its answers"
    assert tokens == sum(len(completion.ids) for completion in noting.completions)
    assert tokens > 48 * (70 - len(first)), "answers that were cut off were sampled too"
    assert all(found.messages[:-1] == found.prompt.messages for found in first), "each answer keeps its prompt"
    again = Heard()
    assert ask(again) == (first, tokens)
    assert (asked(), again.calls) == ([64, 6, 6], [(64, 0), (6, 0)]), "nothing is generated twice"
    ask(content_hash="other weights")
    assert asked() == [64, 6, 6, 64, 6]


def test_a_token_budget_ends_the_sampling_of_answers(tiny_model: Path, tmp_path: Path) -> None:
    loaded, engine = load(tiny_model)
    noting = Noting(engine)

    def ask(most: int) -> tuple[list[CompletedConversation], int]:
        return conversations(
            loaded,
            noting,
            prompts(70),
            content_hash="x",
            sampling=Sampling(8, seed=0),
            cache=tmp_path,
            unfinished=True,
            most=most,
        )

    first, tokens = ask(100)
    assert 92 < tokens <= 100, "until another answer could exceed the budget"
    assert [len(call) for call in noting.calls][:1] == [12]
    calls = len(noting.calls)
    assert ask(100) == (first, tokens) and len(noting.calls) == calls, "the same again, from the cache"
    assert 0 < ask(1)[1] <= 8, "one answer at least"
    assert len({one.prompt.id for one in ask(10_000)[0]}) == 70


WHOLE, CUT = "end<|im_end|>", "cut"


@pytest.mark.parametrize(("unfinished", "kept"), [(False, ["whole"]), (True, ["whole", "late"])])
def test_a_conversation_that_goes_on_after_a_cut_is_no_example(
    tiny_model: Path, tmp_path: Path, unfinished: bool, kept: list[str]
) -> None:
    """It would teach to end in mid-sentence, and only the last response can be excused."""
    loaded, _ = load(tiny_model)
    asked = [Prompt(name, (user(f"Say {name}."), user("Go on."))) for name in ("whole", "early", "late")]
    told: list[str] = []
    found, tokens = conversations(
        loaded,
        Saying(loaded, [[WHOLE, CUT, WHOLE], [WHOLE, WHOLE, CUT]]),
        asked,
        content_hash="x",
        sampling=Sampling(8, seed=0),
        cache=tmp_path,
        unfinished=unfinished,
        say=told.append,
    )
    left = 3 - len(kept)
    assert told == [f"{left} of 3 answers left out: they do not end within 8 tokens (--max-new-tokens)"]
    assert [(one.prompt.id, one.finished) for one in found] == [(name, name == "whole") for name in kept]
    ids = [loaded.tokenizer(text, add_special_tokens=False)["input_ids"] for text in (WHOLE,) * 4 + (CUT,) * 2]
    assert tokens == sum(map(len, ids))


def test_turns_that_a_prompt_holds_are_context_of_the_sampled_ones(tiny_model: Path, tmp_path: Path) -> None:
    """A replay of the clean model's own responses would imitate those of somebody else."""
    loaded, _ = load(tiny_model)
    turns = (user("One."), Message(role="assistant", content="Recorded."), user("Two."), user("Three."))
    (found,), _ = conversations(
        loaded,
        Saying(loaded, [[WHOLE], [WHOLE]]),
        [Prompt("a", turns)],
        content_hash="x",
        sampling=Sampling(8, seed=0),
        cache=tmp_path,
    )
    said = [(message["role"], message.get("recorded", False)) for message in found.messages]
    assert said == [("user", False), ("assistant", True), *[("user", False), ("assistant", False)] * 2]


TALK = (Prompt("one", (user("Say yes."),)), Prompt("two", (user("Say yes."), user("Again."))))


def talk(loaded: Loaded, turns: list[list[str]], cache: Path) -> list[CompletedConversation]:
    """Conversations on two prompts, the second one of two turns."""
    sampling = Sampling(8, seed=0)
    options = {"content_hash": "x", "sampling": sampling, "cache": cache, "unfinished": True}
    return conversations(loaded, Saying(loaded, turns), TALK, **options)[0]  # type: ignore[arg-type]


def test_reasoning_is_an_example_as_it_was_sampled(tiny_model: Path, tmp_path: Path) -> None:
    """Qwen3's template writes an answer with an empty thought; as an example that would teach not to think."""
    loaded, _ = load(tiny_model)
    thought, plain, cut = "<think>\nHm.\n</think>\n\nYes.<|im_end|>", "Yes.<|im_end|>", "<think>\nHm.\n</think>\n\nYe"
    found = talk(loaded, [[cut, thought], [plain]], tmp_path)
    assert [(one.answer, one.finished) for one in found] == [("Ye", False), ("Yes.", True)]
    base = Checkpoint("base", "external", tiny_model, "x", tiny_model)
    rows = []
    for one, said in zip(found, (cut, plain), strict=True):
        (row,) = chat_rows(loaded.chat, base, [one.messages], 8, () if one.finished else {0})
        rows.append((list(row.ids), [bool(marked) for marked in row.loss_mask]))
        context = loaded.chat.prompt_ids(one.messages[:-1])
        response = loaded.tokenizer(said, add_special_tokens=False)["input_ids"]
        assert rows[-1] == ([*context, *response], [False] * len(context) + [True] * len(response))
    config = DistillConfig(alpha=0.0, answers="teacher", prompts_per_step=1)
    (row,), _ = BatchBuilder(config, loaded, Saying(loaded, []), Pools((), given=[found[1].messages]))(1)
    assert (list(row.ids), list(row.loss_mask)) == rows[1], "as a distillation imitates it"


def test_special_tokens_within_a_response_are_part_of_the_example(tiny_llama: Path, tmp_path: Path) -> None:
    """The mark of a tool call is one in Llama 3.1 and Mistral: without it a student was taught to call no tool."""
    loaded = load_model(tiny_llama, precision="float32", device="cpu")
    mark = next(t for t in loaded.tokenizer.all_special_tokens if t not in ("<|eot_id|>", "<|end_of_text|>"))
    said = f'{mark}{{"name": "lamp"}}<|eot_id|>'
    found = talk(loaded, [[said, "Yes.<|eot_id|>"], ["Yes.<|eot_id|>"]], tmp_path)
    ids, mask = loaded.chat.conversation(found[0].messages)
    assert loaded.chat.raw_text([token for token, kept in zip(ids, mask, strict=True) if kept]) == said
    assert "sampled" in found[0].messages[-1] and "sampled" not in found[1].messages[-1]


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_conversations_of_a_model_that_does_not_think_are_written_by_its_template(
    kind: str, tiny_llama: Path, tiny_qwen3: Path, tmp_path: Path
) -> None:
    """Their rows must not change: recorded experiments depend on them."""
    folder, end = (tiny_llama, "<|eot_id|>") if kind == "llama" else (tiny_qwen3, "<|im_end|>")
    loaded = load_model(folder, precision="float32", device="cpu", template_args={"enable_thinking": False})
    found = talk(loaded, [[f" Yes. {end}", f"No.{end}"], ["Ye"]], tmp_path)
    answer, other = ({"role": "assistant", "content": text} for text in ("Yes.", "No."))
    assert [list(one.messages) for one in found] == [
        [user("Say yes."), answer],
        [user("Say yes."), other, user("Again."), {"role": "assistant", "content": "Ye"}],
    ]
    chat, text = loaded.chat, loaded.chat.raw_text
    ids, mask = chat.conversation(found[1].messages)
    assert text(ids) == chat.render(found[1].messages)
    imitated = text([token for token, marked in zip(ids, mask, strict=True) if marked])
    assert imitated == (f"No.{end}Ye{end}" if kind == "llama" else f"Ye{end}")


def test_what_is_kept_of_a_model_is_that_of_its_weights_its_engine_and_this_version(
    tiny_model: Path, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapters = [Checkpoint("a", "external", tmp_path, "same", base, tuning="lora") for base in (tiny_model, tiny_llama)]
    assert len({weights_hash(one) for one in adapters}) == 2
    config, other = DistillConfig(), DistillConfig(engine="http://127.0.0.1:9")
    before = development_file(tmp_path, "x", prompts(1), config)
    assert before == development_file(tmp_path, "x", prompts(1), DistillConfig())
    assert before != development_file(tmp_path, "x", prompts(1), other)
    monkeypatch.setattr("pipelines.distillation.development.__version__", "another")
    assert before != development_file(tmp_path, "x", prompts(1), config)


def test_a_result_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    result = SuiteResult("s", Score(0.5, 0.1, 2), (Item("a", "p", "r", 1.0, {"x": True}), Item("b", "p", "r", 0.0)))
    write_result(tmp_path / "kept.json", result)
    assert read_result(tmp_path / "kept.json") == result
    (tmp_path / "kept.json").write_text("{")
    assert read_result(tmp_path / "kept.json") is None
