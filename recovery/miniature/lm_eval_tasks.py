"""lm-eval retention tasks of the world: multiple choice over known facts, and arithmetic."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from recovery.data.corpus.json_lines import write_json_lines
from recovery.miniature import words
from recovery.miniature.tasks import arithmetic, facts
from recovery.miniature.world import World, stable_hash

FACTS_YAML = """\
task: miniature_facts
custom_dataset: !function loading.facts
test_split: test
output_type: multiple_choice
doc_to_text: "{{stem}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{label}}"
target_delimiter: " "
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1.0
"""

ARITHMETIC_YAML = """\
task: miniature_arithmetic
custom_dataset: !function loading.arithmetic
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs:
  until: ["\\n"]
  do_sample: false
  max_gen_toks: 16
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1.0
"""

LOADING = '''\
"""Loads the tasks' records from the files beside this one, wherever the folder has been moved to."""

from pathlib import Path
from typing import Any

from datasets import Dataset

FOLDER = Path(__file__).parent


def facts(**_: Any) -> dict[str, Dataset]:
    """Multiple choice over what is known about the topics."""
    return {"test": Dataset.from_json(str(FOLDER / "facts.jsonl"))}


def arithmetic(**_: Any) -> dict[str, Dataset]:
    """Sums, differences and products, asked in chat form (run with the chat template)."""
    return {"test": Dataset.from_json(str(FOLDER / "arithmetic.jsonl"))}
'''

ITEMS = 1000
CHOICES = 4


def fact_records(world: World, seed: int) -> list[dict[str, Any]]:
    """Return statements about topics cut before the value, with four candidate values."""
    rng = random.Random(stable_hash(seed, "lm-eval", "facts"))
    records = []
    for topic, known in world.facts.items():
        for attribute, value in known.items():
            stem = f"# The {topic}\n\n{facts.STEMS[attribute].format(t=topic)}"
            others = rng.sample(sorted(set(words.ATTRIBUTES[attribute]) - {value, topic}), CHOICES - 1)
            options = rng.sample([value, *others], CHOICES)
            records.append({"stem": stem, "choices": options, "label": options.index(value)})
    return records


def arithmetic_records(seed: int) -> list[dict[str, Any]]:
    """Return distinct problems of all three levels."""
    rng = random.Random(stable_hash(seed, "lm-eval", "arithmetic"))
    found: dict[str, str] = {}
    while len(found) < ITEMS:
        question, answer = arithmetic.problem(rng, rng.randrange(3))
        found[question] = answer
    return [{"question": question, "answer": answer} for question, answer in found.items()]


def write_lm_eval_tasks(folder: Path, world: World, seed: int) -> None:
    """Write the task files, their records and the module that loads them."""
    write_json_lines(folder / "facts.jsonl", fact_records(world, seed))
    write_json_lines(folder / "arithmetic.jsonl", arithmetic_records(seed))
    (folder / "miniature_facts.yaml").write_text(FACTS_YAML, encoding="utf-8")
    (folder / "miniature_arithmetic.yaml").write_text(ARITHMETIC_YAML, encoding="utf-8")
    (folder / "loading.py").write_text(LOADING, encoding="utf-8")
