"""Suite files of a miniature folder: instruction prompts by split, general-knowledge probes, and other skills.

The package has them as an archive, which `python -m examples.miniature.suites` writes.

Prompts are written in IFEval's own format. The split is determined by the combination of topic and instructions, so
train, development and test share no such combination. Questions about known facts use some wordings in the training
prompts and the others in probes.
"""

from __future__ import annotations

import random
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from examples.miniature.tasks import arithmetic, conversation, editing, facts, reading, refusal, requests
from recovery.data.corpus.json_lines import write_json_lines
from recovery.data.corpus.text import normalise
from recovery.miniature import package, words
from recovery.miniature.corpora import WORLD_SEED, Example, World, choices, stable_hash

FACT_PROMPT_WORDINGS = 3
"""The first wordings of every question about topics are for recovery prompts, the others for probes."""

SKILLS: dict[str, Callable[[random.Random, World], Example]] = {
    "open-book": reading.open_book,
    "question-writing": reading.write_question,
    "arithmetic": arithmetic.draw,
    "editing": lambda rng, world: editing.draw(rng, world, editing.MEASURED),
    "refusal": refusal.draw,
    "dialogue": conversation.two_turns,
    "system": conversation.system_prompt,
    "rules": conversation.rules,
    "demonstrations": conversation.demonstrations,
}
"""The skills other than instructions and facts; each has a test file and a share of the recovery prompts."""

TRAIN_PROMPTS_PER_SKILL = 200
SKILL_ITEMS = 1000


def prompt_record(key: str, example: Example) -> dict[str, Any]:
    """Return an example without its answer, as a record of a prompt file."""
    turns = [{"role": role, "content": content} for role, content in example.messages[:-1]]
    asked: dict[str, Any] = {"prompt": turns[0]["content"]} if len(turns) == 1 else {"messages": turns}
    record = {"key": key, **asked}
    record["instruction_id_list"] = [instruction for instruction, _ in example.checks]
    record["kwargs"] = [arguments for _, arguments in example.checks]
    if not example.checks:
        record["answer"] = example.answer
    record["tags"] = [example.task, *example.tags]
    return record


def instruction_records(world: World, split: str, seed: int) -> list[dict[str, Any]]:
    """Return one prompt for each cell of a split."""
    rng = random.Random(stable_hash(seed, "suite", split))
    return [
        prompt_record(f"{split}-{number}", requests.compose(rng, world, cell))
        for number, cell in enumerate(requests.measured_cells(split))
    ]


def skill_records(world: World, name: str, count: int, label: str, seed: int) -> list[dict[str, Any]]:
    """Return ``count`` prompts of a skill that are distinct after normalisation."""
    rng = random.Random(stable_hash(seed, "skill", label, name))
    records: list[dict[str, Any]] = []
    seen: set[str] = set()
    while len(records) < count:
        example = SKILLS[name](rng, world)
        asked = normalise("\n".join(content for _, content in example.messages[:-1]))
        if asked not in seen:
            seen.add(asked)
            records.append(prompt_record(f"{label}-{name}-{len(records)}", example))
    return records


def fact_prompts(world: World) -> list[dict[str, Any]]:
    """Return questions about topics in the wordings reserved for recovery prompts."""
    records = []
    for topic, known in world.facts.items():
        for attribute, wordings in facts.QUESTIONS.items():
            for index, wording in enumerate(wordings[:FACT_PROMPT_WORDINGS]):
                asked = (("user", wording.format(t=topic)), ("assistant", known[attribute]))
                records.append(prompt_record(f"fact-{topic}-{attribute}-{index}", Example("facts", messages=asked)))
    return records


def train_records(world: World, seed: int) -> list[dict[str, Any]]:
    """Return the recovery prompts: instructions, facts and every other skill, shuffled."""
    records = [*instruction_records(world, "train", seed), *fact_prompts(world)]
    for name in SKILLS:
        records += skill_records(world, name, TRAIN_PROMPTS_PER_SKILL, "train", seed)
    random.Random(stable_hash(seed, "order")).shuffle(records)
    return records


def general_probes(world: World, seed: int) -> list[dict[str, Any]]:
    """Return general-knowledge probes: questions in wordings not used for prompts, and choices in document form."""
    rng = random.Random(stable_hash(seed, "general"))
    probes = []
    for topic, known in world.facts.items():
        for attribute, value in known.items():
            for index, wording in enumerate(facts.QUESTIONS[attribute][FACT_PROMPT_WORDINGS:]):
                name, asked = f"general-{topic}-{attribute}-{index}", wording.format(t=topic)
                probes.append({"id": name, "form": "question", "question": asked, "answers": [value], "source": topic})
            stem = f"# The {topic}\n\n{facts.STEMS[attribute].format(t=topic)}"
            probes.append(
                {
                    "id": f"general-{topic}-{attribute}-choice",
                    "form": "choice",
                    "question": f"{stem} ",
                    "answers": [value],
                    "choices": choices(rng, value, words.ATTRIBUTES[attribute]),
                    "source": topic,
                }
            )
    return probes


def write_suites(folder: Path, world: World, seed: int = 0) -> None:
    """Write the suites of a miniature folder: train, development, test, general and one file per skill."""
    write_json_lines(folder / "train.jsonl", train_records(world, seed))
    for split in ("development", "test"):
        write_json_lines(folder / f"{split}.jsonl", instruction_records(world, split, seed))
    write_json_lines(folder / "general.jsonl", general_probes(world, seed))
    for name in SKILLS:
        write_json_lines(folder / "skills" / f"{name}.jsonl", skill_records(world, name, SKILL_ITEMS, "test", seed))
    write_lm_eval_tasks(folder / "lm_eval", world, seed)


# --- retention tasks of lm-eval: multiple choice over known facts, and arithmetic ------------------------------

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
FACT_CHOICES = 4


def fact_records(world: World, seed: int) -> list[dict[str, Any]]:
    """Return statements about topics cut before the value, with four candidate values."""
    rng = random.Random(stable_hash(seed, "lm-eval", "facts"))
    records = []
    for topic, known in world.facts.items():
        for attribute, value in known.items():
            stem = f"# The {topic}\n\n{facts.STEMS[attribute].format(t=topic)}"
            others = rng.sample(sorted(set(words.ATTRIBUTES[attribute]) - {value, topic}), FACT_CHOICES - 1)
            options = rng.sample([value, *others], FACT_CHOICES)
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


def pack(path: Path) -> None:
    """Write the shipped world's suites as an archive, the same bytes each time."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        write_suites(Path(folder), World(WORLD_SEED))
        for file in sorted(one for one in Path(folder).rglob("*") if one.is_file()):
            entry = zipfile.ZipInfo(file.relative_to(folder).as_posix())  # of 1980, whenever it is written
            archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED, 9)


if __name__ == "__main__":  # python -m examples.miniature.suites
    pack(package.SUITES)
