"""Plan of a distillation: what is known before weights are loaded, with memory and time."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pipelines.distillation.resolve import ResolvedDistillation, resolve
from pipelines.planning.memory import Needs, TeacherFootprint, distilling
from pipelines.planning.tuning import Tuning, choose_tuning, teacher_footprint
from pipelines.planning.work import Answering, answer_tokens, distilling_work
from pipelines.runtime.generation import last_request, open_turns
from pipelines.runtime.session import Session
from pipelines.table import DISTILL, PlanRow, of_process, table, total_of
from recovery.config import DistillConfig
from recovery.errors import UsageError
from recovery.losses.config import WHOLE_VOCABULARY
from recovery.methods import method_named
from recovery.models.chat_loading import load_chat
from recovery.models.chat_template import ChatFormat
from recovery.teachers.cross_tokenizer import CrossTokenizer
from recovery.teachers.teacher import check_same_tokens, same_tokens
from recovery.types import Message, Prompt
from recovery.workspace import Checkpoint

# Checks of teachers with another tokenizer, before weights are loaded: settings, templates, shared tokens.


def other_tokenizers(resolved: ResolvedDistillation, student: ChatFormat) -> list[str]:
    """Return a note for each teacher with another tokenizer than the student's.

    Raise UsageError for settings that need the student's tokens, ModelError if such a teacher's tokens cannot be
    compared, or if its chat template cannot render the prompts.
    """
    config, notes = resolved.config, []
    for teacher, prompts in _teachers(resolved):
        if teacher.weights == resolved.student.weights:
            continue
        chat = load_chat(str(teacher.weights), config.template_args, adapter=teacher.adapter)
        if same_tokens(student.tokenizer, chat.tokenizer):
            continue
        _check_settings(config, resolved, teacher)
        cross = CrossTokenizer(student, chat, teacher.name, sys.maxsize)
        for messages in _forms(prompts):
            cross.prompt_ids(messages)
        notes.append(
            f"the teacher {teacher.name} has another tokenizer, with {len(cross.shared):,} of the student's "
            f"{cross.tokens:,} tokens: responses are aligned by the text that tokens spell"
        )
    if config.anchor and resolved.clean.weights != resolved.student.weights:
        clean = load_chat(str(resolved.clean.weights), config.template_args, adapter=resolved.clean.adapter)
        names = {"student_name": resolved.student.name, "teacher_name": f"{resolved.clean.name}, the anchor"}
        check_same_tokens(student.tokenizer, clean.tokenizer, **names)
    return notes


def _teachers(resolved: ResolvedDistillation) -> Iterator[tuple[Checkpoint, Sequence[Prompt]]]:
    """Yield each frozen teacher with the prompts that it may score."""
    yield from ((teacher, resolved.train) for teacher in resolved.teachers)
    if resolved.knowledge is not None:
        yield resolved.knowledge, resolved.asked
    asked = (*resolved.train, *resolved.asked)
    for tag, teacher in resolved.experts.items():
        yield teacher, [prompt for prompt in asked if tag in prompt.tags]


def _check_settings(config: DistillConfig, resolved: ResolvedDistillation, teacher: Checkpoint) -> None:
    """Raise UsageError if a setting needs the student's tokens of a teacher that has others."""
    problem = ""
    if config.divergence not in WHOLE_VOCABULARY:
        problem = f"--divergence {config.divergence} cannot compare: use {' or '.join(WHOLE_VOCABULARY)}"
    elif config.continuation:
        problem = "--continuation cannot use: omit it"
    elif config.alpha < 1.0:
        problem = f"--alpha {config.alpha:g} excludes: only the student's own completions are aligned; set --alpha 1"
    elif config.temperature != 1.0:
        problem = f"--temperature {config.temperature:g} excludes: merged spans are estimated at 1; set --temperature 1"
    elif teacher in resolved.document_teachers:
        problem = "--document-teacher excludes: only the student's own completions are aligned; omit it"
    elif teacher in resolved.teachers and len(resolved.teachers) > 1:
        problem = "several weighted teachers cannot have: name one --teacher"
    if problem:
        raise UsageError(f"the teacher {teacher.name} has another tokenizer than the student, which {problem}")


def _forms(prompts: Sequence[Prompt]) -> Iterator[list[Message]]:
    """Yield the conversations to be completed, with placeholders for earlier responses: one of each form."""
    seen: set[tuple[object, ...]] = set()
    for prompt in prompts:
        history: list[Message] = []
        for turn in open_turns(prompt.messages):
            history += turn
            form = tuple((m["role"], "tool_calls" in m, bool(m.get("tools"))) for m in history)
            if form not in seen:
                seen.add(form)
                yield list(history)
            history.append(Message(role="assistant", content="..."))


# For estimates: how many prompts are tokenised.
_COUNTED_PROMPTS = 200
# As many of the longest, by characters.
_LONGEST_PROMPTS = 20


@dataclass(frozen=True)
class DistillPlan:
    """The plan of a distillation stage, computed without loading weights."""

    cycle: int
    method: str
    student: str
    teacher: str
    knowledge_teacher: str | None
    document_teacher: bool
    prompts: str
    behaviour_prompts: int
    knowledge_prompts: int
    development_prompts: int
    rollouts_per_step: int
    steps: int
    tokens_sampled: int
    tuning: str
    tuning_reason: str
    lr: float
    parameters: int
    memory: Needs
    seconds: float
    rows: tuple[PlanRow, ...]
    blend: float = 1.0
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the plan as text for the user."""
        parts = [f"a share of {self.knowledge_prompts} questions about the documents"] if self.knowledge_prompts else []
        parts += ["document text"] if self.document_teacher else []
        knowledge = f"; {self.knowledge_teacher} scores {' and '.join(parts)}" if self.knowledge_teacher else ""
        sampled = f", about {self.tokens_sampled:,} tokens sampled in all" if self.tokens_sampled else ""
        return "\n".join(
            [
                f"{method_named(self.method).title} of {self.student} ({self.parameters / 1e6:,.1f}M parameters): "
                f"teacher {self.teacher}, {self.behaviour_prompts} prompts ({self.prompts}){knowledge}",
                f"at most {self.steps} steps of {self.rollouts_per_step} completions{sampled}, peak rate {self.lr:g}",
                self.tuning_reason,
                *self.notes,
                table(self.rows, self.memory.free),
            ]
        )


def plan_distill(session: Session, config: DistillConfig) -> DistillPlan:
    """Return the resolved plan; writes nothing and loads no weights."""
    return make_plan(resolve(session, config, None))


def make_plan(resolved: ResolvedDistillation, to_make: int = 0) -> DistillPlan:
    """Return the plan of a resolved distillation, with so many further teachers as are still ``to_make``."""
    config = resolved.config
    chat, prompt, notes = check_student(resolved)
    largest = _largest_step(resolved, chat)
    footprint = teacher_footprint(
        resolved.student, resolved.frozen, copied=config.teaching.is_copy, unshared=config.clean_teacher
    )
    footprint = replace(footprint, adapters=footprint.adapters + to_make)  # beside a full student, models
    tuning = choose_tuning(
        config,
        resolved.student,
        lambda *arguments: distilling(config, *arguments, beside=footprint, prompt=prompt, step=largest),
        recommended=resolved.tuning_recommended,
    )
    blend, start = _start(resolved, tuning)
    rows = _rows(resolved, tuning, footprint, prompt)
    return DistillPlan(
        cycle=resolved.cycle,
        method=config.method,
        student=resolved.student.name,
        teacher=" and ".join(teacher.name for teacher in resolved.teachers) or config.teacher,
        knowledge_teacher=resolved.knowledge.name if resolved.knowledge is not None else None,
        document_teacher=config.document_teacher,
        prompts=resolved.prompts.source,
        behaviour_prompts=len(resolved.train),
        knowledge_prompts=len(resolved.asked),
        development_prompts=len(resolved.development),
        rollouts_per_step=config.rows_per_step,
        steps=config.steps,
        tokens_sampled=round(
            answer_tokens(config) * config.on_policy_prompts_per_step * config.samples_per_prompt / config.rows_per_step
        ),
        tuning=tuning.name,
        tuning_reason=tuning.reason,
        lr=config.rate(tuning.name, tuning.parameters),
        parameters=tuning.parameters,
        memory=tuning.needs,
        seconds=total_of(rows)[0],
        rows=rows,
        blend=blend,
        notes=(*resolved.notes, *start, *notes),
    )


def _rows(
    resolved: ResolvedDistillation, tuning: Tuning, footprint: TeacherFootprint, prompt: int
) -> tuple[PlanRow, ...]:
    """Return what the parts of the stage take: development prompts, which the clean model is asked once and the student
    at each test of --until, sampling, teachers and training.
    """
    config, cycle = resolved.config, resolved.cycle
    work, memory = distilling_work(config, tuning.name, footprint, prompt=prompt), tuning.needs.memory
    held, most = sum(memory.held.values()), len(resolved.development)
    sampled, trained = held + sum(memory.sampling.values()), held + sum(memory.training.values())
    parts = {
        "sampling": (replace(work, trained=0, read=0), sampled),
        "teacher's scores": (replace(work, trained=0, turns=0), trained),
        "training": (replace(work, read=0, turns=0), trained),
    }
    needed = {name: (part.seconds(tuning.network, tuning.speed), peak) for name, (part, peak) in parts.items()}
    if most:
        answering = Answering.of(config, resolved.clean)
        asked = answering.answers(most, config.max_new_tokens)
        tests = config.planned_tests
        needed = {
            f"{(resolved.teacher or resolved.clean).name}'s development prompts": (
                asked,
                answering.memory(most, config.max_new_tokens),
            ),
            f"development prompts, {tests} times": (tests * asked, sampled),
            **needed,
        }
    gpu = tuning.needs.gpu
    parts_needed = ((name, seconds, of_process(peak, gpu)) for name, (seconds, peak) in needed.items() if seconds)
    return tuple(PlanRow(name, DISTILL, seconds, peak, cycle) for name, seconds, peak in parts_needed)


def check_student(resolved: ResolvedDistillation) -> tuple[ChatFormat, int, list[str]]:
    """Return the student's chat format, the 90th percentile of the prompts' lengths, and notes on other tokenizers.

    Raises UsageError or ModelError if prompts or teachers do not fit the student's template and tokenizer.
    """
    student = resolved.student
    chat = load_chat(str(student.weights), resolved.config.template_args, adapter=student.adapter)
    if resolved.given:
        chat.check_answers()
    return chat, _prompt_tokens(resolved, chat), other_tokenizers(resolved, chat)


def _start(resolved: ResolvedDistillation, tuning: Tuning) -> tuple[float, list[str]]:
    """Return the share of the student's weights that training starts from, and a note on it if it may be below 1.

    Raises UsageError if a new adapter is wanted on a student that is to be blended; if the memory decided for an
    adapter, it starts from the student itself.
    """
    student, origin, config = resolved.student, resolved.origin, resolved.config
    if origin is None:
        return 1.0, []
    if tuning.name != "lora" or student.tuning == "lora":
        text = f"starts from weights between {origin.name} and {student.name}, {config.blend:g} of the latter"
        return config.blend, [text]
    text = f"--blend {config.blend:g} moves all weights of {student.name}, which are frozen below a new LoRA adapter"
    if config.tuning == "lora":
        raise UsageError(f"{text}: use --tuning full, or omit it")
    return 1.0, [f"starts from {student.name} itself: {text}"]


def _prompt_tokens(resolved: ResolvedDistillation, chat: ChatFormat) -> int:
    """Return the 90th percentile of the prompts' lengths, in tokens. Raise ModelError if one cannot be rendered."""
    for messages in (*(prompt.messages for prompt in resolved.train), *resolved.given):
        chat.check_tools(messages)
    step = max(1, len(resolved.train) // _COUNTED_PROMPTS)
    lengths = sorted(len(chat.prompt_ids(last_request(prompt.messages)[0])) for prompt in resolved.train[::step])
    return lengths[int(0.9 * (len(lengths) - 1))]


def _largest_step(resolved: ResolvedDistillation, chat: ChatFormat) -> int | None:
    """Return the tokens of a step whose rows are all as wide as the longest can be.

    None if they are not known: given answers, continuations of another length, several turns to complete, or contexts
    of the teacher alone.
    """
    config, prompts = resolved.config, (*resolved.train, *resolved.asked)
    several = any(len(open_turns(prompt.messages)) > 1 for prompt in prompts)
    if config.alpha < 1 or config.continuation or config.context != "none" or several:
        return None
    by_characters = sorted(prompts, key=lambda prompt: sum(len(m["content"]) for m in prompt.messages), reverse=True)
    longest = max(len(chat.prompt_ids(prompt.messages)) for prompt in by_characters[:_LONGEST_PROMPTS])
    return config.rows_per_step * (longest + config.max_new_tokens)
