"""Answers: rollouts turn by turn, and what the clean model itself answers, kept so that it is asked only once."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.asking import tokens_only
from evals.ifeval import evaluate_instructions
from pipelines.models import engine_of, load_frozen
from pipelines.stage import Stage
from recovery.chat import ChatFormat
from recovery.config import DistillConfig, InterpolateConfig, ModelConfig
from recovery.loading import Loaded
from recovery.prompts import prompts_hash
from recovery.rollouts import CachedEngine, Completion, Engine, Progress, Sampling
from recovery.training import derive_seed
from recovery.types import Item, Message, Prompt, Score, SuiteResult
from recovery.workspace import Checkpoint, write_atomically

CHUNK = 64
DEVELOPMENT = "development/instruction_following"


@dataclass(frozen=True)
class Spoken:
    """One turn that the model spoke: the ids it was given and what it said; ``messages`` is the whole so far."""

    prompt: Prompt
    context: list[int]
    completion: Completion
    messages: tuple[Message, ...]


def speak(
    chat: ChatFormat,
    engine: Engine,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    progress: Progress | None = None,
) -> list[Spoken]:
    """Sample an answer to every open turn of ``prompts``, in order of turn, then of prompt.

    A user turn directly followed by another is answered by the model before the next one is put. ``progress`` hears of
    prompts that got their last answer, and of all tokens.
    """
    pending = [open_turns(prompt.messages) for prompt in prompts]
    histories: list[list[Message]] = [[] for _ in prompts]
    spoken: list[Spoken] = []
    turn = 0
    while any(pending):
        now = [i for i, turns in enumerate(pending) if turns]
        for i in now:
            histories[i] += pending[i].pop(0)
        contexts = [chat.prompt_ids(histories[i]) for i in now]
        drawn = dataclasses.replace(sampling, seed=derive_seed(sampling.seed, turn, 5))
        last = sum(not pending[i] for i in now)
        heard = progress if last == len(now) else tokens_only(progress)
        said = engine.generate(contexts, drawn, heard)
        if progress is not None and heard is not progress and last:
            progress(last, 0)
        for i, context, completion in zip(now, contexts, said, strict=True):
            histories[i].append(Message(role="assistant", content=chat.text(completion.ids)))
            spoken.append(Spoken(prompts[i], context, completion, tuple(histories[i])))
        turn += 1
    return spoken


def open_turns(messages: Sequence[Message]) -> list[list[Message]]:
    """Cut a conversation after each user turn that the model has to answer itself."""
    turns: list[list[Message]] = []
    current: list[Message] = []
    for index, message in enumerate(messages):
        current.append(message)
        following = messages[index + 1]["role"] if index + 1 < len(messages) else None
        if message["role"] == "user" and following in (None, "user"):
            turns.append(current)
            current = []
    return turns


def fitting(chat: ChatFormat, prompts: Sequence[Prompt], room: int) -> list[Prompt]:
    """The prompts of at most ``room`` tokens; the others would leave no room to answer."""
    return [p for p in prompts if len(chat.prompt_ids(p.messages)) <= room]


@dataclass(frozen=True)
class Answered:
    """A whole conversation in which a model answered a prompt."""

    prompt: Prompt
    messages: tuple[Message, ...]

    @property
    def answer(self) -> str:
        """The last thing the model said."""
        return self.messages[-1]["content"]


def conversations(
    loaded: Loaded,
    engine: Engine,
    prompts: Sequence[Prompt],
    *,
    content_hash: str,
    sampling: Sampling,
    cache: Path,
    progress: Progress | None = None,
) -> list[Answered]:
    """Whole conversations in which a frozen model answers ``prompts``; cut-off ones are left out.

    ``content_hash`` is the model's. They are kept under ``cache`` chunk by chunk, so that an interruption loses one
    chunk at most and the same model is never asked twice.
    """
    engine = CachedEngine.of(loaded, engine, content_hash=content_hash, cache=cache)
    found: list[Answered] = []
    for number in range(-(-len(prompts) // CHUNK)):
        chunk = prompts[number * CHUNK : (number + 1) * CHUNK]
        drawn = dataclasses.replace(sampling, seed=derive_seed(sampling.seed, number, 7))
        numbered = [dataclasses.replace(p, id=str(i)) for i, p in enumerate(chunk)]
        spoken = speak(loaded.chat, engine, numbered, drawn, progress)
        last = {int(s.prompt.id): s for s in spoken}
        found += [Answered(chunk[i], s.messages) for i, s in sorted(last.items()) if s.completion.finished]
    return found


def asked_beforehand(
    stage: Stage,
    speaker: Checkpoint,
    loaded: Loaded,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    config: ModelConfig,
) -> list[Answered]:
    """What a checkpoint (``loaded``) answers before a stage's training begins: with a bar, and kept in the cache."""
    session = stage.session
    with session.display.bar(f"answers of {speaker.name}", len(prompts)) as bar:

        def heard(answers: int, tokens: int) -> None:
            bar.heard(answers, tokens)
            stage.interrupts.check()

        with engine_of(loaded, config) as engine:
            return conversations(
                loaded,
                engine,
                prompts,
                content_hash=speaker.hash,
                sampling=sampling,
                cache=session.workspace.folder / "cache",
                progress=heard,
            )


def count_spoken(stage: Stage, loaded: Loaded, answered: Sequence[Answered]) -> int:
    """The tokens of answers made for a stage, entered as sampled: once, however often the stage is resumed."""
    spoken = sum(len(loaded.chat.encode(a.answer)) + 1 for a in answered)
    counted = stage.folder / "spoken.json"
    if not counted.is_file():
        stage.recorder.usage(tokens_sampled=spoken)
        write_atomically(counted, json.dumps(spoken))
    return spoken


def development_result(
    loaded: Loaded,
    engine: Engine,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    seed: int,
    progress: Progress | None = None,
) -> SuiteResult:
    """Instruction following on the prompts that recovery is stopped by."""
    return evaluate_instructions(
        loaded.chat,
        engine,
        prompts,
        max_new_tokens=max_new_tokens,
        window=loaded.max_length,
        seed=seed,
        suite=DEVELOPMENT,
        progress=progress,
    )


def reference_result(
    stage: Stage, clean: Checkpoint, prompts: Sequence[Prompt], config: DistillConfig | InterpolateConfig
) -> SuiteResult | None:
    """The clean model's own result on the development prompts: measured once, then kept by its content hash.

    None where there are no prompts.
    """
    if not prompts:
        return None
    session = stage.session
    path = development_file(session.workspace.folder / "cache", clean.hash, prompts, config)
    known = read_result(path)
    if known is not None:
        return known
    loaded = load_frozen(session.verified(clean), config)
    title, tokens, seed = f"{clean.name} on development prompts", config.max_new_tokens, config.seed
    with session.display.bar(title, len(prompts)) as bar, engine_of(loaded, config) as engine:

        def heard(answers: int, sampled: int) -> None:
            bar.heard(answers, sampled)
            stage.interrupts.check()

        result = development_result(loaded, engine, prompts, max_new_tokens=tokens, seed=seed, progress=heard)
    stage.interrupts.check()
    write_result(path, result)
    return result


def development_file(cache: Path, base_hash: str, prompts: Sequence[Prompt], config: Any) -> Path:
    """Where the clean model's result on the development prompts is kept: named by all it depends on."""
    parts = (prompts_hash(prompts), config.max_new_tokens, config.seed, config.precision, config.device)
    return cache / f"development-{_key(base_hash, *parts, sorted(config.template_args.items()))}.json"


def read_result(path: Path) -> SuiteResult | None:
    """A result kept by :func:`write_result`; None where there is none that reads."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        items = tuple(Item(**item) for item in data["items"])
        return SuiteResult(data["suite"], Score(**data["score"]), items)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_result(path: Path, result: SuiteResult) -> None:
    """Keep a result's score and items."""
    data = {
        "suite": result.suite,
        "score": dataclasses.asdict(result.score),
        "items": [dataclasses.asdict(item) for item in result.items],
    }
    write_atomically(path, json.dumps(data, ensure_ascii=False))


def _key(*parts: object) -> str:
    return hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()[:24]
