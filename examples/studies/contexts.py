"""Demonstrations, rules, a system prompt and a document are internalised by one method: context distillation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from examples.miniature.tasks import facts
from examples.studies.study import INSTRUCTIONS, Figures, Part, Runner, Study, minus, over
from recovery.methods import METHODS
from recovery.miniature import corpora, words
from recovery.miniature.corpora import WORLD_SEED, World, random_name, stable_hash
from recovery.rollouts.engine import CHUNK, Sampling
from recovery.teacher_spec import Context
from recovery.types import Message, Prompt

STEPS, TRAINED_TOPICS = 60, 0.7
ENTITIES = 24  # services of the passages
VARIANTS: dict[str, dict[str, Any]] = {
    "": {},
    ", no clip": {"entry_clip": 0.0},
    ", forward KL": {"divergence": "forward_kl", "entry_clip": 0.0},
}


@dataclass(frozen=True)
class Kind:
    """A type of context: the method that internalises it, and prompts that train and test this."""

    method: str
    context: str
    train: list[Prompt]
    test: list[Prompt]

    @property
    def clipped(self) -> bool:
        """Whether its method limits the terms of a token's divergence."""
        return "entry_clip" in METHODS[self.method].settings

    def splits(self) -> dict[str, list[Prompt]]:
        """Return the prompts by split."""
        return {"train": self.train, "development": self.test, "test": self.test}


def privileged(asked: str, answer: str, context: str) -> Prompt:
    """Return a question with its answer and the context that only a teacher sees."""
    key = f"{stable_hash(asked, context):x}"
    return Prompt(key, (Message(role="user", content=asked),), answer=answer, context=context)


def passages(world: World, seed: int) -> tuple[list[Prompt], list[Prompt]]:
    """Return training and test questions about new services, in different wordings, each with a passage as context."""
    rng = random.Random(stable_hash(seed, "passages"))
    train: list[Prompt] = []
    test: list[Prompt] = []
    for entity in world.entities(f"passages-{seed}", ENTITIES, set()):
        for attribute, value in entity.values.items():
            for number, wording in enumerate(corpora.QUESTIONS[attribute]):
                text = " ".join(corpora.statement(rng, entity, name) for name in entity.values)
                made = privileged(wording.format(e=entity.name), value, text)
                (test if number < 2 else train).append(made)
    return train, test


def run(runner: Runner) -> Figures:
    """Run one seed: each type internalised by its method and, for comparison, by SFT on the teacher's completions."""
    figures: dict[str, float] = {}
    steps = runner.scale(STEPS, 10)
    for name, kind in _kinds(runner.seed).items():
        prompts = runner.prompts(name, kind.splits)
        own: dict[str, Any] = {"prompts": prompts, "steps": steps, "max_new_tokens": 24, "context": kind.context}
        variants = [variant for variant in VARIANTS if kind.clipped or variant != ", no clip"]
        for variant in variants:
            runner.trained(f"{name}{variant}", "base", kind.method, **own, **VARIANTS[variant])
        runner.trained(f"{name}, sft", "base", "sft", data=_completions(runner, name, kind), steps=steps)
        for which in (*(f"{name}{variant}" for variant in variants), f"{name}, sft"):
            figures[f"taken in, {which}"] = runner.exact_share(kind.test, *runner.loaded(which))
            figures[f"retention, {which}"] = runner.value(which, INSTRUCTIONS) / runner.value("base", INSTRUCTIONS)
        base, engine = runner.loaded("base")
        figures[f"taken in, {name}, base"] = runner.exact_share(kind.test, base, engine)
        shown = [replace(p, messages=tuple(Context.of(kind.context).messages(p, p.messages))) for p in kind.test]
        figures[f"taken in, {name}, base with the context"] = runner.exact_share(shown, base, engine)
    return figures


def _completions(runner: Runner, name: str, kind: Kind) -> Any:
    """Return plain prompts with base's completions given the context, as a file of conversations."""

    def make() -> list[tuple[Message, ...]]:
        base, engine = runner.loaded("base")
        context, made = Context.of(kind.context), []
        for start in range(0, len(kind.train), CHUNK):
            chunk = kind.train[start : start + CHUNK]
            asked = [base.chat.prompt_ids(context.messages(p, p.messages)) for p in chunk]
            completions = engine.generate(asked, Sampling(24, seed=runner.seed + start))
            made += [
                (*p.messages, Message(role="assistant", content=base.chat.text(c.ids)))
                for p, c in zip(chunk, completions, strict=True)
                if c.finished
            ]
        return made

    return runner.data(f"told-{name}", make)


def _kinds(seed: int) -> dict[str, Kind]:
    """Return the four types over the world's topics, 30% of which are only tested on."""
    rng, world = random.Random(stable_hash(seed, "contexts")), World(WORLD_SEED)
    topics = list(words.TOPICS)
    rng.shuffle(topics)
    cut = round(len(topics) * TRAINED_TOPICS)
    return {
        "demonstrations": _demonstrations(rng, world, topics, cut),
        "rules": _rules(rng, world, topics, cut),
        "system prompt": _system(rng, world, topics, cut),
        "document": Kind("document-in-context", "document", *passages(world, seed)),
    }


def _demonstrations(rng: random.Random, world: World, topics: Sequence[str], cut: int) -> Kind:
    """Prompts of a topic alone; the examples in the context show that its colour is asked for."""

    def prompt(topic: str, others: Sequence[str]) -> Prompt:
        shown = rng.sample([t for t in others if t != topic], 3)
        context = "\n".join(f"{t}: {world.facts[t]['colour']}" for t in shown)
        return privileged(f"{topic}:", world.facts[topic]["colour"], context)

    train = [prompt(topic, topics[:cut]) for topic in topics[:cut] for _ in range(4)]
    return Kind("sdft", "demonstrations", train, [prompt(topic, topics[:cut]) for topic in topics[cut:]])


def _rules(rng: random.Random, world: World, topics: Sequence[str], cut: int) -> Kind:
    """Prompts under two rules: with which word to begin an answer about which attribute."""
    tokens = {"colour": random_name(rng, 2), "home": random_name(rng, 2)}
    context = " ".join(f"If I ask about the {name} begin with {token}." for name, token in tokens.items())

    def prompts(chosen: Sequence[str], wordings: slice) -> list[Prompt]:
        return [
            privileged(wording.format(t=topic), f"{token} {world.facts[topic][name]}", context)
            for topic in chosen
            for name, token in tokens.items()
            for wording in facts.QUESTIONS[name][wordings]
        ]

    return Kind("deliberative", "rules", prompts(topics[:cut], slice(0, 4)), prompts(topics[cut:], slice(4, 6)))


def _system(rng: random.Random, world: World, topics: Sequence[str], cut: int) -> Kind:
    """Prompts under a system prompt that puts a name before every answer."""
    name = random_name(rng)

    def prompts(chosen: Sequence[str], wordings: slice) -> list[Prompt]:
        return [
            privileged(wording.format(t=topic), f"{name}: {world.facts[topic][a]}", f"Begin every answer with {name}:")
            for topic in chosen
            for a in facts.QUESTIONS
            for wording in facts.QUESTIONS[a][wordings]
        ]

    return Kind("opcd", "system", prompts(topics[:cut], slice(0, 2)), prompts(topics[cut:], slice(4, 5)))


NAMES = ("demonstrations", "rules", "system prompt", "document")


CONTEXTS = Study(
    name="contexts",
    claim="demonstrations, rules, system prompts and privileged text are one method: each type internalises its "
    "context with less forgetting than SFT",
    source="SDFT, arXiv 2601.19897; OPCD; deliberative alignment, arXiv 2412.16339",
    setting="each type by its preset, 60 steps, beside it with the forward KL, and for the document, whose preset "
    "limits the terms of a token's divergence (entry_clip), with the reverse KL without that limit; the forward KL has "
    "none; the teacher is the clean model that reads the context, of demonstrations a moving average of the student "
    "(decay 0.99); SFT on answers of the clean model that reads the context; exact answers without the context on "
    "topics or wordings never trained on",
    parts=(
        *(Part(f"{name}: taken in without the context, gain over base",
               minus(f"taken in, {name}", f"taken in, {name}, base"), 0.3) for name in NAMES),
        *(Part(f"{name}: retention above that of SFT on the same answers by",
               minus(f"retention, {name}", f"retention, {name}, sft"), 0.0,
               given=Part("that as much is taken in as by SFT: share",
                          over(f"taken in, {name}", f"taken in, {name}, sft"), 0.9)) for name in NAMES),
    ),
    run=run,
)  # fmt: skip
