"""Suite files of a miniature folder: instruction prompts by split, general-knowledge probes, and other skills.

Prompts are written in IFEval's own format. The split is determined by the combination of topic and instructions, so
train, development and test share no such combination. Questions about known facts use some wordings in the training
prompts and the others in probes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from recovery.data.corpus.json_lines import write_json_lines
from recovery.data.corpus.text import normalise
from recovery.miniature import words
from recovery.miniature.lm_eval_tasks import write_lm_eval_tasks
from recovery.miniature.tasks import arithmetic, conversation, editing, facts, reading, refusal, requests
from recovery.miniature.world import Example, World, stable_hash

FACT_PROMPT_WORDINGS = 3
"""The first wordings of every question about topics are for recovery prompts, the others for probes."""
CHOICES = 24

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


def choices(rng: random.Random, value: str, options: Iterable[str]) -> list[str]:
    """Return ``CHOICES`` candidates in random order, including the correct one."""
    others = rng.sample(sorted(set(options) - {value}), CHOICES - 1)
    found = [value, *others]
    rng.shuffle(found)
    return found


def write_suites(folder: Path, world: World, seed: int = 0) -> None:
    """Write the suites of a miniature folder: train, development, test, general and one file per skill."""
    write_json_lines(folder / "train.jsonl", train_records(world, seed))
    for split in ("development", "test"):
        write_json_lines(folder / f"{split}.jsonl", instruction_records(world, split, seed))
    write_json_lines(folder / "general.jsonl", general_probes(world, seed))
    for name in SKILLS:
        write_json_lines(folder / "skills" / f"{name}.jsonl", skill_records(world, name, SKILL_ITEMS, "test", seed))
    write_lm_eval_tasks(folder / "lm_eval", world, seed)
