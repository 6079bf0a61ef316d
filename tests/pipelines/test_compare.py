"""Comparisons of methods: the same start and cost for each; runs go on under their names and are not repeated."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from safetensors.torch import load_file, save_file

from db import StageRecorder, queries
from pipelines.experiments.compare import INSTRUCTIONS, ExperimentRunner, _group, _own, as_json, compare, text
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from recovery.errors import UsageError
from recovery.workspace import Workspace
from tests.pipelines.conftest import stages_of


@pytest.mark.slow
def test_methods_that_imitate_answers_keep_to_the_token_budget(tiny_qwen3: Path, tmp_path: Path) -> None:
    settings = {
        "prompts_per_step": 4,
        "samples_per_prompt": 1,
        "max_new_tokens": 48,
        "tuning": "full",
        "max_tokens": 4000,
    }
    with Session.open(tmp_path / "w", model=str(tiny_qwen3), display=Display(quiet=True)) as session:
        runner = ExperimentRunner(session, 0)
        runner.trained("sft", "base", "sft", steps=1000, **(_own("sft") | settings))
        spent = runner.cost_of("sft")
        assert 4000 <= spent.sampled + spent.trained < 1.2 * 4000
        assert runner.details("sft")["steps"] > 1


def test_a_method_that_is_named_twice_has_no_more_seeds_and_all_have_one_learning_rate(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warm-up of some steps would be most of the steps that the tokens of one method allow, and few of another's."""
    names: list[str] = []

    class Runner(MagicMock):
        def trained(self, name: str, *_: object, **settings: object) -> None:
            names.append(name)
            assert (settings["schedule"], settings["warmup"]) == ("constant", 0.0)

    monkeypatch.setattr("pipelines.experiments.compare.Session", MagicMock())
    monkeypatch.setattr("pipelines.experiments.compare.ExperimentRunner", lambda *_: Runner())
    monkeypatch.setattr("pipelines.experiments.compare._scores", lambda *_: {})
    arguments = {"max_tokens": 10, "settings": {}, "model": None, "display": Display()}
    rows = compare(Workspace(tmp_path / "w"), ["opd", "opd"], corpus, [0, 1], **arguments)  # type: ignore[arg-type]
    assert names == ["opd", "opd"] and len(rows[-1].spent) == 2, "one for each seed"


def test_answers_that_never_end_are_no_examples(tiny_qwen3: Path, prompt_file: Path, tmp_path: Path) -> None:
    settings = {"prompts": prompt_file, "prompts_per_step": 2, "max_new_tokens": 2, "tuning": "full", "steps": 1}
    reason = "no answer of base was kept, since none ended within 2 tokens: raise --max-new-tokens$"
    with (
        Session.open(tmp_path / "w", model=str(tiny_qwen3), display=Display(quiet=True)) as session,
        pytest.raises(UsageError, match=reason),
    ):
        ExperimentRunner(session, 0).trained("imitated", "base", "sequence-kd", **settings)


def ending(model: Path, folder: Path) -> Path:
    """Return a copy of a random Qwen3 whose answers end after a few tokens, as those of a trained model do.

    All embeddings share a direction, which the hidden states therefore have, and the end token has more of it.
    """
    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    table = weights["model.embed_tokens.weight"]  # also the head
    table[:, 0] = 0.3
    table[json.loads((folder / "generation_config.json").read_text())["eos_token_id"], 0] = 1.2
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.slow
def test_methods_are_compared_from_the_same_start_at_the_same_cost(
    tiny_qwen3: Path, corpus: Path, tmp_path: Path
) -> None:
    settings = {"steps": 400, "prompts_per_step": 2, "samples_per_prompt": 1, "max_new_tokens": 8, "tuning": "full"}
    model = ending(tiny_qwen3, tmp_path / "model")
    arguments = {"max_tokens": 150, "settings": settings, "model": str(model), "display": Display()}
    rows = compare(Workspace(tmp_path / "w"), ["opd", "off-policy-kd"], corpus, [0, 1], **arguments)  # type: ignore[arg-type]
    assert [row.method for row in rows] == ["base", "midtrained", "opd", "off-policy-kd"]
    for row in rows[2:]:
        assert set(row.stopped) == {"token budget spent"}
        assert all(150 <= s.sampled + s.scored + s.trained < 1.4 * 150 for s in row.spent)
    assert compare(Workspace(tmp_path / "w"), ["opd", "off-policy-kd"], corpus, [0, 1], **arguments) == rows  # type: ignore[arg-type]
    assert "off-policy-kd" in text(rows, [0, 1])
    assert as_json(rows, [0, 1])["rows"][2]["scores"]["asked"].keys() == {"mean", "spread", "by_seed"}


def test_results_of_other_documents_are_not_reused(corpus: Path) -> None:
    def group() -> str:
        return _group(corpus, 100, {"steps": 4})

    before = group()
    assert group() == before
    page = next(corpus.glob("*.md"))
    text = page.read_text()
    page.write_text(text + "\n\nThe Pine tower was built by Zed Zorn and has nineteen floors for its guests.\n")
    assert group() != before
    page.write_text(text)
    questions = [{"id": "q", "messages": [{"role": "user", "content": "Who built the Pine tower?"}]}]
    (corpus / "questions.jsonl").write_text("\n".join(map(json.dumps, questions)))
    assert group() != before, "what comes with the documents counts as well"
    probe = {"id": "p", "form": "question", "question": "How many floors has the Pine tower?", "answers": ["nineteen"]}
    (corpus / "probes.jsonl").write_text(json.dumps(probe))
    before = group()
    page.write_text(text + "\n\nThe Pine tower was built by Zed Zorn and has nineteen floors for its guests.\n")
    assert group() != before, "the text alone differs: probes and questions are given"


def test_an_unknown_method_is_refused_before_any_work(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no method 'opdd'"):
        compare(
            Workspace(tmp_path / "w"), ["opdd"], corpus, [0], max_tokens=1, settings={}, model=None, display=Display()
        )  # fmt: skip
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(("method", "lacks"), [("opcd", "no prompt has the text that --context"), ("sft", "")])
def test_a_method_that_lacks_something_is_refused_before_any_training(
    tiny_qwen3: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, lacks: str
) -> None:
    def began(*_: object, **__: object) -> None:
        raise InterruptedError

    monkeypatch.setattr("pipelines.experiments.compare.midtrain", began)
    arguments = {"max_tokens": 10, "settings": {}, "model": str(tiny_qwen3), "display": Display(quiet=True)}
    with pytest.raises(UsageError if lacks else InterruptedError, match=lacks or None):
        compare(Workspace(tmp_path / "w"), ["opd", method], corpus, [0], **arguments)  # type: ignore[arg-type]


def test_the_newest_score_of_a_checkpoint_is_used(tmp_path: Path) -> None:
    with Session.open(tmp_path / "study", model="miniature", display=Display(quiet=True)) as session:
        base = session.registered(session.base)
        for value in (0.2, 0.7):
            session.tracker.add_evaluation(base.id, INSTRUCTIONS, value=value, stderr=0.0, n=10)
        assert ExperimentRunner(session, 0).value("base", INSTRUCTIONS) == 0.7


def test_a_run_that_was_stopped_goes_on_under_its_name(
    session: Session, corpus: Path, prompt_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = ExperimentRunner(session, 0)
    small: dict[str, Any] = {"precision": "float32", "tuning": "full", "checkpoint_every": 1, "prompts": prompt_file}
    few: dict[str, Any] = {"prompts_per_step": 2, "samples_per_prompt": 1, "max_new_tokens": 8}

    def run(name: str) -> None:
        if name == "start":
            runner.midtrained(name, corpus, steps=3, batch_tokens=128, row_length=64, **small)
        else:
            runner.trained(name, "start", "opd", steps=2, **few, **small)

    def ended(recorder: StageRecorder, *_: object) -> None:
        recorder.interrupt("process ended")
        raise KeyboardInterrupt

    for name in ("start", "opd"):
        with monkeypatch.context() as patch:
            patch.setattr(StageRecorder, "finish", ended)  # after its checkpoint
            with pytest.raises(KeyboardInterrupt):
                run(name)
        assert runner.known(name) is None
        run(name)
    assert {made.name for made in session.registry.all()} == {"base", "start", "opd"}
    assert runner.details("opd")["stopped"] == "finished"
    rows = stages_of(session)
    assert [(row.kind, row.status, row.attempts) for row in rows] == [
        ("distill", "finished", 2),
        ("midtrain", "finished", 2),
    ]
    made_by = next(row.id for row in rows if row.kind == "distill")
    points = queries.series(session.tracker.database, made_by, ["loss"], max_points=None)["loss"]
    assert [point.step for point in points] == [1, 2], "no step was repeated"
