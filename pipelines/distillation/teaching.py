"""Teachers of a distillation: their models, checks on resume, and what they sample themselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from pipelines.data.mixing import choose
from pipelines.distillation.batch_builder import completion_metrics, expert
from pipelines.distillation.resolve import ResolvedDistillation
from pipelines.runtime.generation import open_turns
from pipelines.runtime.model_group import ModelSpecs
from pipelines.runtime.stage import Stage
from recovery import distributed
from recovery.config import DistillConfig
from recovery.errors import UsageError
from recovery.losses.objective import DOCUMENTS, EARLIER_DOCUMENTS, KNOWLEDGE, MAIN_TEACHER
from recovery.models.loaded import Loaded
from recovery.rng import RandomStream
from recovery.rollouts.engine import Completion, Engine, Sampling
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.rollouts.vllm_server_engine import sample_served
from recovery.teacher_context import Context
from recovery.teachers import Identity, Teacher, same_tokens
from recovery.training.interfaces import TrainSettings
from recovery.types import Prompt
from recovery.workspace import Checkpoint, write_atomically


def model_specs(resolved: ResolvedDistillation, settings: TrainSettings) -> ModelSpecs:
    """Return the student and the teachers, by the names used in rows."""
    config = resolved.config
    teachers: dict[str, dict[Checkpoint, float]] = {}
    if resolved.teachers or config.teaching.is_student or config.teaching.remote:
        teachers[MAIN_TEACHER] = resolved.teachers
    if resolved.knowledge is not None:
        teachers[KNOWLEDGE] = {resolved.knowledge: 1.0}
    teachers |= {expert(tag): {checkpoint: 1.0} for tag, checkpoint in resolved.experts.items()}
    of_text = zip((DOCUMENTS, EARLIER_DOCUMENTS), resolved.document_teachers, strict=True)
    teachers |= {name: {checkpoint: 1.0} for name, checkpoint in of_text if checkpoint is not None}
    anchor = resolved.clean if config.anchor else None
    return ModelSpecs(
        config, resolved.student, settings, teachers, anchor, config.loss_config(), origin=resolved.origin
    )


def longest_scored(teachers: Mapping[str, Teacher], student: Loaded) -> int:
    """Return the tokens of the longest row that the main teacher can score: by its window, if it has one of its own."""
    main = teachers.get(MAIN_TEACHER)
    windows = [part.window for part, _ in main.parts if part.window] if main is not None else []
    return min(windows, default=student.max_length)


def shortest_window(teachers: Mapping[str, Teacher], student: Loaded) -> int:
    """Return the tokens of the longest row that the student and all teachers in its tokens read."""
    parts = [part for teacher in teachers.values() for part, _ in teacher.parts]
    alike = (part for part in parts if part.loaded is None or same_tokens(part.loaded.tokenizer, student.tokenizer))
    return min([student.max_length, *(part.window for part in alike if part.window)])


def check_same_teacher(stage: Stage, teachers: Mapping[str, Teacher]) -> None:
    """Raise ServerError if the server's model is not the one that a resumed stage began with."""
    teacher, file = teachers.get(MAIN_TEACHER), stage.folder / "teacher.json"
    if teacher is None or teacher.identity is None:
        return
    if stage.resumed and file.is_file():
        teacher.check_same(Identity(**json.loads(file.read_text(encoding="utf-8"))))
    write_atomically(file, json.dumps(asdict(teacher.identity)) + "\n")


def teacher_label(teachers: Mapping[str, Teacher], name: str) -> str:
    """Return the teacher's name for the tracker; for a server, its address and the model it serves."""
    main = teachers.get(MAIN_TEACHER)
    return name if main is None or main.identity is None else f"{name} ({main.identity.model})"


def teacher_engine(teachers: Sequence[Teacher], config: DistillConfig) -> Engine | None:
    """Return an engine of the teacher if it continues the student's completions, else None."""
    if not config.continuation:
        return None
    teacher = teachers[0]
    if teacher.loaded is None or not teacher.own_weights:
        raise UsageError("--continuation needs a teacher with weights of its own in memory: use --tuning full")
    # The stage's engine samples from the student's weights, this one from the teacher's.
    return TransformersEngine(teacher.loaded, token_budget=config.rollout_tokens)


def teacher_metrics(
    teachers: Sequence[Teacher],
    config: DistillConfig,
    prompts: Sequence[Prompt],
    loaded: Loaded,
    context: Context | None,
    say: Callable[[str], None],
) -> Callable[[], dict[str, float]] | None:
    """Return a function that samples the first teacher, with what it has in its ``context``, and returns the metrics of
    its completions.

    With several processes it is called in the main one. None without a teacher of its own, and for one that is sharded.
    """
    teacher = teachers[0] if teachers else None
    if teacher is None or teacher.is_student or not prompts:
        return None
    sharded = config.shard == "full" or (config.shard == "student" and not teacher.own_weights)
    if distributed.size() > 1 and sharded and teacher.loaded is not None:
        return None

    def measure() -> dict[str, float]:
        chosen = choose(prompts, config.prompts_per_step, 1, config.seed, stream=RandomStream.TEACHER_CHECK)
        say(f"the completions change as in a collapse: sampling {len(chosen)} of the teacher for comparison")
        model = teacher.loaded or loaded  # what a server samples is in the student's tokens
        opened = [(prompt, open_turns(prompt.messages)[0]) for prompt in chosen]
        read = [turn if context is None else context.messages(prompt, turn) for prompt, turn in opened]
        ids = [model.chat.prompt_ids(messages) for messages in read]
        completions = _sampled(teacher, loaded, ids, config)
        logprobs = [value for one in completions for value in one.logprobs]
        if not same_tokens(model.tokenizer, loaded.tokenizer):
            completions = [_in_tokens_of(loaded, model, one) for one in completions]
        # Minus the mean log-probability of sampled tokens is an unbiased estimate of the entropy.
        tokens = sum(len(one.ids) for one in completions)
        return completion_metrics(completions) | {"entropy": -sum(logprobs) / max(1, tokens)}

    return measure


def _sampled(
    teacher: Teacher,
    student: Loaded,
    ids: Sequence[Sequence[int]],
    config: DistillConfig,
) -> list[Completion]:
    """Return the teacher's completions of prompts; a server's are in the student's tokens, as its scores are."""
    sampling = Sampling(config.max_new_tokens, config.temperature, seed=config.seed)
    if teacher.server is not None:
        window = teacher.window + 1 if teacher.window else student.max_length
        short = [prompt for prompt in ids if len(prompt) < window]
        return sample_served(teacher.server, teacher.model, window, short, sampling, student)
    with teacher.reading() as model:
        return TransformersEngine(model, token_budget=config.rollout_tokens).generate(ids, sampling)


def _in_tokens_of(student: Loaded, teacher: Loaded, completion: Completion) -> Completion:
    """Return a teacher's completion in the student's tokens, so that figures per token can be compared."""
    ids = completion.ids[: len(completion.ids) - completion.finished]
    spelled = student.chat.encode(teacher.chat.raw_text(ids))
    return Completion([*spelled, *completion.ids[len(ids) :]], [], completion.finished)
