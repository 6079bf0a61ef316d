"""The miniature's tasks: retention through lm-eval's own loader, sentences to mend."""

from __future__ import annotations

import random
from pathlib import Path

from lm_eval.tasks import TaskManager

from recovery.miniature.lm_eval_tasks import write_lm_eval_tasks
from recovery.miniature.tasks import editing
from recovery.miniature.world import WORLD_SEED, World


def test_task_files_load_wherever_the_folder_stands(tmp_path: Path) -> None:
    write_lm_eval_tasks(tmp_path / "first", World(), 0)
    folder = (tmp_path / "first").rename(tmp_path / "moved")
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    tasks = manager.load(["miniature_facts", "miniature_arithmetic"])["tasks"]
    facts, sums = tasks["miniature_facts"], tasks["miniature_arithmetic"]
    known = next(iter(facts.test_docs()))
    assert len(list(facts.test_docs())) == 192
    assert known["choices"][known["label"]] == facts.doc_to_choice(known)[facts.doc_to_target(known)]
    assert len(list(sums.test_docs())) == 1000
    assert sums.doc_to_text(next(iter(sums.test_docs())))


def test_any_seed_draws_damaged_sentences() -> None:
    """Slip after slip may leave no long word: whatever the seed, a draw is a damaged sentence and the sound one."""
    world = World(WORLD_SEED)
    for seed in range(4):
        rng = random.Random(seed)
        for _ in range(1500):
            example = editing.draw(rng, world, editing.MEASURED)
            asked, sound = example.messages[0][1], example.messages[-1][1]
            assert not asked.endswith(f": {sound}")
    assert editing.CORRUPTIONS["shout"](random.Random(0), "a be it.") == "a be it."
