"""Knowledge suites of both forms, bits per byte and matching rules, on a tiny model and by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evals import knowledge
from evals.knowledge import (
    _choice_requests,
    ask,
    bits_per_byte,
    choose,
    document_prefix,
    general,
    start_token,
    text_windows,
)
from recovery.errors import UsageError
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.rollouts.engine import Completion, Sampling
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.types import Probe
from tests.support import Heard


class Scripted:
    """An engine with scripted responses, to test matching without a trained model."""

    def __init__(self, loaded: Loaded, answers: dict[str, str]) -> None:
        self.loaded, self.answers = loaded, answers

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Any = None) -> list[Completion]:
        assert sampling.temperature == 0.0
        completions = []
        for prompt in prompts:
            text = self.loaded.tokenizer.decode(prompt)
            answer = next(answer for question, answer in self.answers.items() if question in text)
            ids = [*self.loaded.chat.encode(answer), self.loaded.tokenizer.eos_token_id]
            completions.append(Completion(ids, [0.0] * len(ids), True))
        if progress is not None:
            progress(len(prompts), sum(len(one.ids) for one in completions))
        return completions


def question(id: str, text: str, *answers: str, **fields: Any) -> Probe:
    return Probe(id, "question", text, answers, **fields)


def test_all_candidates_are_scored_from_the_same_place() -> None:
    ids = {"a": [7], "Its path is /": [1, 2, 3], "Its path is /api": [1, 2, 9], "Its path is /zephyr": [1, 2, 3, 4]}
    tokenizer = lambda text: {"input_ids": [0, *ids[text]]}  # noqa: E731
    loaded: Any = SimpleNamespace(chat=SimpleNamespace(encode=ids.__getitem__), tokenizer=tokenizer)
    probe = Probe("p", "choice", "Its path is /", ("api",), choices=("api", "zephyr"))
    requests, places = _choice_requests(loaded, [probe])
    assert requests == [([0, 1, 2], [[9]]), ([0, 1, 2], [[3, 4]])] and places == [[0, 1]]


def test_questions_are_matched_and_controls_kept_apart(loaded: Loaded) -> None:
    probes = [
        question("1", "Who owns Kell?", "Mara", source="kell"),
        question("2", "Where is Kell?", "Ostra", "Ostra City", source="kell"),
        question("3", "Who owns Dune?", "Piet", source="dune"),
        question("4", "Who owns Never?", "Nobody", control=True),
    ]
    answers = {"owns Kell": "Mara.", "is Kell": "It is in Ostra.", "owns Dune": "Jon", "owns Never": "Nobody"}
    progress = Heard()
    result = ask(loaded.chat, Scripted(loaded, answers), probes, suite="s", progress=progress)
    assert result.suite == "s"
    assert (result.score.value, result.score.n) == (pytest.approx(1 / 3), 3)
    assert result.details["contains"].value == pytest.approx(2 / 3)
    assert result.details["f1"].value == pytest.approx((1 + 2 / 5 + 0) / 3)
    assert (result.details["control"].value, result.details["control"].n) == (1.0, 1)
    assert [item.response for item in result.items] == ["Mara.", "It is in Ostra.", "Jon", "Nobody"]
    assert [item.group for item in result.items] == ["kell", "kell", "dune", ""]
    assert [item.extra.get("headline", True) for item in result.items] == [True, True, True, False]
    # deviations 2/3, -1/3 | -1/3 in two clusters: sqrt(2 * (1/9 + 1/9)) / 3
    assert result.score.stderr == pytest.approx(math.sqrt(2 * 2 / 9) / 3)
    assert progress.answers == 4


def test_groups_of_questions_are_scored_apart(loaded: Loaded) -> None:
    probes = [
        question("1", "Who owns Kell?", "Mara", tags=("group:held-out fact", "which")),
        question("2", "Who owns Dune?", "Piet", tags=("group:held-out fact",)),
        question("3", "Who owns Pell?", "Jon", tags=("group:held-out form",)),
        question("4", "Who owns Hall?", "Jon", tags=("which",)),
        question("5", "Who owns Never?", "Nobody", control=True, tags=("group:held-out fact",)),
    ]
    answers = {"Kell": "Mara", "Dune": "It is Piet.", "Pell": "Ann", "Hall": "Jon", "Never": "It is nobody"}
    details = ask(loaded.chat, Scripted(loaded, answers), probes).details
    found = {name: (score.value, score.n) for name, score in details.items()}
    assert (found["held-out fact"], found["held-out fact/contains"]) == ((0.5, 2), (1.0, 2))
    assert (found["held-out form"], found["held-out form/contains"]) == ((0.0, 1), (0.0, 1))
    assert (found["control"], found["control/contains"]) == ((0.0, 1), (1.0, 1))
    assert set(found) == {
        *("contains", "f1", "control", "control/contains"),
        *("held-out fact", "held-out fact/contains", "held-out form", "held-out form/contains"),
    }


def test_only_controls_or_no_answers_are_refused(loaded: Loaded) -> None:
    engine = Scripted(loaded, {})
    with pytest.raises(UsageError, match="no probe of form 'question'"):
        ask(loaded.chat, engine, [question("1", "Who?", "x", control=True)])
    with pytest.raises(UsageError, match="no accepted answer"):
        ask(loaded.chat, engine, [question("1", "Who?")])


def choice(id: str, text: str, answer: str, choices: tuple[str, ...], **fields: Any) -> Probe:
    return Probe(id, "choice", text, (answer,), choices, **fields)


def plain_logprob(loaded: Loaded, text: str, start: int) -> float:
    """Return log p of the tokens of ``text`` from index ``start`` on, from the model's logits."""
    ids = document_prefix(loaded) + loaded.chat.encode(text)
    with torch.no_grad():
        logprobs = loaded.model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return sum(float(logprobs[i - 1, ids[i]]) for i in range(start, len(ids)))


def test_the_likeliest_candidate_per_byte_is_chosen(tiny_family: Path) -> None:
    loaded = load_model(tiny_family, precision="float32", device="cpu")
    stem, choices = "The ferry leaves from", (" pier two", " the old harbour office", " Ostra", " noon")
    start = len(document_prefix(loaded) + loaded.chat.encode(stem))
    values = [plain_logprob(loaded, stem + c, start) / len(c.encode()) for c in choices]
    best = choices[max(range(4), key=values.__getitem__)]
    right, wrong = choice("r", stem, best, choices), choice("w", stem, choices[values.index(min(values))], choices)
    progress = Heard()
    result = choose(loaded, [right, wrong, choice("c", stem, best, choices, control=True)], progress=progress)
    assert [item.score for item in result.items] == [1.0, 0.0, 1.0] and progress.answers == 3
    assert (result.score.value, result.score.n, result.details["control"].n) == (0.5, 2, 1)
    assert all(item.response == best for item in result.items)
    assert result.items[0].extra["logprob_per_byte"] == pytest.approx(max(values), abs=1e-5)
    assert result.items[0].extra["margin_per_byte"] > 0 > result.items[1].extra["margin_per_byte"]
    assert result.details["chance"].value == pytest.approx(0.25)


def test_a_space_before_the_gap_reads_like_one_after_it(loaded: Loaded) -> None:
    before = choose(loaded, [choice("1", "The ferry leaves from ", "pier", ("pier", "Ostra"))])
    after = choose(loaded, [choice("1", "The ferry leaves from", " pier", (" pier", " Ostra"))])
    total = before.items[0].extra["logprob_per_byte"] * len("pier")
    assert total == pytest.approx(after.items[0].extra["logprob_per_byte"] * len(" pier"), abs=1e-5)


def test_bad_choices_are_refused(loaded: Loaded) -> None:
    for bad in [choice("x", "The", " pier", (" pier",)), choice("x", "The", " pier", (" boat", " lamp"))]:
        with pytest.raises(UsageError, match="'x'"):
            choose(loaded, [bad])


def test_bits_per_byte_by_the_models_own_logits(loaded: Loaded) -> None:
    texts = ["The harbour office opens at seven.", "Grüße, and a ticket for one crossing.", "   "]
    wanted = []
    for text in texts[:2]:
        ids = [loaded.tokenizer.eos_token_id, *loaded.chat.encode(text)]
        with torch.no_grad():
            logprobs = loaded.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        wanted.append(-sum(float(logprobs[i, ids[i + 1]]) for i in range(len(ids) - 1)) / math.log(2))
    sizes = [len(text.encode()) for text in texts[:2]]
    progress = Heard()
    result = bits_per_byte(loaded, texts, progress=progress)
    assert result.score.value == pytest.approx(sum(wanted) / sum(sizes), rel=1e-4)
    assert [item.score for item in result.items] == pytest.approx(
        [w / s for w, s in zip(wanted, sizes, strict=True)], rel=1e-4
    )
    assert result.score.n == 2
    assert progress.answers == 2
    with pytest.raises(UsageError, match="no held-out text"):
        bits_per_byte(loaded, [" "])


def test_a_question_that_leaves_no_room_is_marked(loaded: Loaded) -> None:
    probes = [question("short", "Who?", "x"), question("long", "Who? " * 400, "x")]
    room = len(loaded.chat.prompt_ids([{"role": "user", "content": "Who?"}])) + 4
    items = ask(loaded.chat, TransformersEngine(loaded), probes, window=room, max_new_tokens=2).items
    assert [bool(item.extra.get("too_long")) for item in items] == [False, True]


@pytest.mark.parametrize("prefix", [(), (7,)])
@pytest.mark.parametrize(("length", "size"), [(1, 8), (7, 8), (8, 8), (9, 8), (40, 8), (41, 9), (5, 2)])
def test_windows_score_every_token_once(
    length: int, size: int, prefix: tuple[int, ...], loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each begins as the tokenizer begins a text: Gemma predicts badly without its first token."""
    tokens = list(range(100, 100 + length))
    monkeypatch.setattr(knowledge, "document_prefix", lambda _loaded: list(prefix))
    monkeypatch.setattr(type(loaded.chat), "encode", lambda _chat, text: tokens if text else [])
    pieces = text_windows(loaded, "a text", size)
    assert [token for _, scored in pieces for token in scored] == tokens
    assert all(len(context) + len(scored) <= size for context, scored in pieces)
    assert pieces[0][0] == (list(prefix) or [start_token(loaded)])
    for context, scored in pieces[1:]:
        start, own = tokens.index(scored[0]), context[len(prefix) :]
        assert context == [*prefix, *tokens[start - len(own) : start]]
        assert len(context) >= size // 2
    assert text_windows(loaded, "", size) == []


def test_small_windows_cost_bits_but_stay_close(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "The harbour office opens at seven, and the first ferry leaves a quarter of an hour later. " * 8
    whole = bits_per_byte(loaded, [text])
    monkeypatch.setattr(knowledge, "LONGEST_WINDOW", 64)
    cut = bits_per_byte(loaded, [text])
    assert cut.score.value == pytest.approx(whole.score.value, rel=0.2)
    assert cut.score != whole.score


def test_general_puts_both_forms_together(loaded: Loaded) -> None:
    probes = [question("1", "Who owns Kell?", "Mara"), choice("2", "The", " pier", (" pier", " boat"))]
    progress = Heard()
    result = general(loaded, Scripted(loaded, {"Kell": "Mara"}), probes, progress=progress)
    assert result.score.n == 2
    assert result.details["question"].value == 1.0
    assert result.score.value == pytest.approx((1.0 + result.details["choice"].value) / 2)
    assert {item.id for item in result.items} == {"1", "2"}
    assert progress.answers == 2
    with pytest.raises(UsageError, match="no probe"):
        general(loaded, TransformersEngine(loaded), [Probe("3", "essay", "Why?", ("because",))])
