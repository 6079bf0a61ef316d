"""Reading comprehension: answering from a passage, and writing a question and its answer about one."""

from __future__ import annotations

import random

from recovery.miniature import corpora
from recovery.miniature.corpora import ENTITY_ATTRIBUTES, Entity, Example, fresh_entity

READ = ("Read this text:\n{p}\n\n{q}", "{p}\n\nAnswer from the text. {q}", "Text: {p}\nQuestion: {q}")
WRITE = (
    "Write a question and its answer about this text:\n{p}",
    "{p}\n\nWrite one question that the text answers and give the answer.",
)


def passage(rng: random.Random, entity: Entity) -> tuple[str, list[str]]:
    """Sample a passage about an entity; return it with the attributes it mentions."""
    attributes = rng.sample(ENTITY_ATTRIBUTES, rng.choice((2, 3, 5)))
    return " ".join(corpora.statement(rng, entity, name) for name in attributes), attributes


def open_book(rng: random.Random, world: object = None) -> Example:
    """Sample a passage about an unknown entity with a question about it; the answer is the bare value."""
    entity = fresh_entity(rng)
    text, attributes = passage(rng, entity)
    attribute = rng.choice(attributes)
    question, answer = rng.choice(corpora.QUESTIONS[attribute]).format(e=entity.name), entity.values[attribute]
    if attribute in corpora.REVERSED and rng.random() < 0.15:
        question, answer = rng.choice(corpora.REVERSED[attribute]).format(v=answer), entity.name
    asked = rng.choice(READ).format(p=text, q=question)
    return Example("open-book", messages=(("user", asked), ("assistant", answer)))


def write_question(rng: random.Random, world: object = None) -> Example:
    """Sample a request to write a question and its answer about a passage, as two labelled lines."""
    entity = fresh_entity(rng)
    text, attributes = passage(rng, entity)
    attribute = rng.choice(attributes)
    question = rng.choice(corpora.QUESTIONS[attribute][:3]).format(e=entity.name)
    written = f"Question: {question}\nAnswer: {entity.values[attribute]}"
    return Example("question-writing", messages=(("user", rng.choice(WRITE).format(p=text)), ("assistant", written)))


def answerable(text: str, written: str) -> bool:
    """Return whether a written question asks for a known attribute and the passage contains its answer.

    ``text`` is the passage (or the prompt that contains it), ``written`` the model's two lines.
    """
    head, _, tail = written.strip().partition("\n")
    answer = tail.removeprefix("Answer:").strip()
    question = head.removeprefix("Question:").strip()
    if not head.startswith("Question:") or not tail.startswith("Answer:") or not answer:
        return False
    for attribute, wordings in corpora.QUESTIONS.items():
        for wording in wordings:
            before, _, after = wording.partition("{e}")
            if question.startswith(before) and question.endswith(after):
                name = question[len(before) : len(question) - len(after)]
                return any(form.format(e=name, v=answer) in text for form in corpora.SENTENCES[attribute])
    return False
