"""`recover plan`: estimates of a cycle's memory and time on given GPUs, without loading weights."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.data.document_rows import text_rows
from pipelines.data.mixing import step_count, step_size
from pipelines.planning.activations import Setup
from pipelines.planning.architecture import Architecture
from pipelines.planning.gpus import Card, card_of
from pipelines.planning.memory import (
    CUDA_CONTEXT,
    MARGIN_GPU,
    USUAL_PROMPT,
    Memory,
    Plan,
    TeacherFootprint,
    distilling,
    memory_of,
    midtraining,
    network_of,
    parameters_of,
    usable,
)
from pipelines.planning.throughput import GIB, GPU_UTILISATION, Work, size
from pipelines.planning.work import distilling_work, midtraining_work
from pipelines.runtime.progress import duration
from recovery.config import DistillConfig, EvalConfig, MidtrainConfig, Recipe, build, build_cycle, model_recipe
from recovery.data.corpus import read_corpus
from recovery.errors import ModelError, RecoveryError, UsageError
from recovery.lazy_import import lazily
from recovery.miniature.package import RECOMMENDED, WEIGHTS
from recovery.models.base_folder import is_path, no_model_at, resolve_base
from recovery.models.folder_check import check_model, read_config
from recovery.models.gguf_files import is_gguf
from recovery.vllm_memory import WEIGHTS_ALLOWED, WORKSPACE
from recovery.workspace import MINIATURE

# Most of a plan's time would be imports: these are for tokenizers, GGUF files and hub ids.
transformers, chat_loading = lazily("transformers"), lazily("recovery.models.chat_loading")
conversion, local = lazily("recovery.models.gguf_files.conversion"), lazily("recovery.teachers.local")

_ONE_PROCESS = (
    "no vLLM: it samples for one training process; use one process, or a server on another GPU "
    "(--engine http://HOST:PORT)"
)
# Bytes of text per token, if there is no tokenizer to count with.
BYTES_A_TOKEN = 4.0
# Token budgets: the default, and the maximum that is reported.
_USUAL_BUDGET, _LARGEST_BUDGET = 16384, 1 << 17
_ROLLOUT_BUDGETS = (32768, 24576, 16384, 12288, 8192, 4096, 2048)


@dataclass(frozen=True)
class Way:
    """One configuration of a cycle, as flags."""

    title: str
    tuning: str
    gradient_checkpointing: bool = False
    vllm: bool = False
    sharded: bool = False


# In order of recommendation: full fine-tuning learns documents best; vLLM is listed but never recommended.
WAYS = (
    Way("full", "full"),
    Way("full, gradient checkpointing", "full", True),
    Way("full, gradient checkpointing, sharded", "full", True, sharded=True),
    Way("LoRA", "lora"),
    Way("LoRA, gradient checkpointing", "lora", True),
    Way("LoRA, gradient checkpointing, vLLM", "lora", True, vllm=True),
    Way("LoRA, gradient checkpointing, sharded", "lora", True, sharded=True),
)


@dataclass(frozen=True)
class Choice:
    """The estimate of a configuration on a card. ``largest`` is the largest token budget that fits, 0 if none does."""

    title: str
    fits: bool
    peak: int
    parts: dict[str, int]
    stage: str
    largest: int
    token_budget: int
    rollout_tokens: int
    seconds: dict[str, float]
    command: str

    @property
    def total(self) -> float:
        """Seconds of a whole cycle."""
        return sum(self.seconds.values())


@dataclass(frozen=True)
class CardPlan:
    """All configurations on one card, and the index of the recommended one. ``notes`` explain which are missing."""

    card: str
    memory: int
    choices: tuple[Choice, ...]
    recommended: int | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """The output of `recover plan`."""

    model: str
    parameters: int
    document_tokens: int
    trained_tokens: int
    assumptions: tuple[str, ...]
    cards: tuple[CardPlan, ...] = field(default_factory=tuple)

    def text(self) -> str:
        """Return the report as text."""
        lines = [
            f"{self.model}: {self.parameters:,} parameters; {self.document_tokens:,} tokens of documents, "
            f"{self.trained_tokens:,} trained on in mid-training",
            *(_card_text(card) for card in self.cards),
            "",
            *self.assumptions,
        ]
        return "\n".join(lines)


def make_plan(
    model: str,
    gpus: str,
    *,
    docs: Path | None = None,
    document_mb: float = 10.0,
    flags: dict[str, object] | None = None,
    tflops: float | None = None,
    utilisation: float | None = None,
) -> Report:
    """Estimate each configuration of a cycle on each card.

    ``flags`` are those of the stages (method, teacher, knowledge_teacher, epochs ...). Raises ModelError if the model
    cannot be found, UsageError if a card is not understood.
    """
    cards = [card_of(part.strip(), tflops, utilisation) for part in gpus.split(",")]
    text = model_text(model)
    given = {key: value for key, value in (flags or {}).items() if key != "knowledge_teacher"}
    if given.get("gather") is False:
        given["shard"] = "full"
    recipe = _recipe(model)
    distill = build(DistillConfig, given, recipe)
    if _in_cycles(distill):
        whole = build_cycle(given, recipe)
        midtrain, distill, asking = whole.midtrain, whole.distill, whole.eval
    else:
        midtrain, asking = build(MidtrainConfig, given, recipe), build(EvalConfig, given, recipe)
    # As in a cycle: a knowledge teacher scores the student's own completions, if any teacher does.
    knowledge = distill.scores_completions and (flags or {}).get("knowledge_teacher") != "none"
    tokens = round(document_mb * 1e6 / BYTES_A_TOKEN) if docs is None else _document_tokens(model, docs, midtrain)
    trained = _trained_tokens(midtrain, tokens)
    counts = parameters_of(Setup(text, "full", "float32", gpu=False))
    asked = _Asked(model, text, midtrain, distill, asking, trained, knowledge, docs, recipe.origin)
    found = tuple(_on(card, asked) for card in cards)
    return Report(model, counts.total, tokens, trained, tuple(_assumptions(asked, cards)), found)


def _trained_tokens(config: MidtrainConfig, documents: int) -> int:
    """Return the target tokens of a first cycle's mid-training on documents of that many tokens, in the stage's steps.

    At most, where it augments: other wordings and questions are taken to fill their whole share, which needs the facts
    of the documents (:meth:`pipelines.midtraining.material.Material.shares`).
    """
    share = (1 - config.replay) * (1 - config.augment_share * (config.augment > 0))
    per_step = step_size(config, documents, share)
    return per_step * step_count(config, documents, share, per_step)


@dataclass(frozen=True)
class _Asked:
    """The user's request."""

    model: str
    text: str
    midtrain: MidtrainConfig
    distill: DistillConfig
    eval: EvalConfig
    trained: int
    knowledge: bool
    docs: Path | None
    recipe: str

    @property
    def in_cycles(self) -> bool:
        """Whether `recover cycle` can run it; other methods and teachers need `recover train`."""
        return _in_cycles(self.distill)


def _in_cycles(distill: DistillConfig) -> bool:
    return distill.method == "opd" and distill.teacher == "base"


# --- the model, the documents ---------------------------------------------------------------------------------------


def model_text(name: str) -> str:
    """Return the config.json of a model folder, a file, "miniature" or a hub id.

    For a GGUF file it is the one of its conversion. Raises ModelError if there is none that can be planned with.
    """
    path = Path(WEIGHTS if name == MINIATURE and not Path(name).exists() else name).expanduser()
    try:
        if is_gguf(path):
            text: str = conversion.config_of(path).to_json_string(use_diff=False)
        elif path.exists():
            text = json.dumps(_config_of(path))
        elif is_path(name):
            raise no_model_at(name)
        else:
            text = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False).to_json_string(use_diff=False)
        Architecture.of(text)
    except RecoveryError as error:
        raise error if name in str(error) else ModelError(f"--model {name}: {error}") from error
    except KeyError:
        raise ModelError(
            f"{path} is not a model's config.json: it names no model_type that transformers knows"
        ) from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise ModelError(
            f"--model {name}: no configuration was found in a folder, a file or on the hub: {reason}"
        ) from error
    return text


def _recipe(name: str) -> Recipe:
    """Return what a model's folder recommends, which its stages follow; nothing for a file or a hub id."""
    if name == MINIATURE and not Path(name).exists():
        return Recipe(name, tomllib.loads(RECOMMENDED), recommended=True)
    return model_recipe(Path(name).expanduser())


def _config_of(path: Path) -> dict[str, Any]:
    """Return the config.json of a model folder, of the base of an adapter, or in a file."""
    if not path.is_dir():
        if not path.is_file():
            raise ModelError(
                f"{path} is not a regular file: --model takes a folder, a GGUF file, a config.json or a hub id"
            )
        return read_config(path)
    if (path / "config.json").is_file():
        check_model(path)
        return read_config(path / "config.json")
    return read_config(Path(resolve_base(path)[0]) / "config.json")


def _document_tokens(model: str, docs: Path, config: MidtrainConfig) -> int:
    """Count the tokens of a folder, with the model's own tokenizer if it has one."""
    corpus = read_corpus(docs, held_out=config.held_out, seed=config.seed, skip_near=config.skips_near)
    tokenizer = _tokenizer(model)
    if tokenizer is not None:
        return sum(len(row.ids) for row in text_rows(tokenizer, config.row_length, corpus.documents))
    return round(sum(len(document.text.encode()) for document in corpus.documents) / BYTES_A_TOKEN)


def _tokenizer(model: str) -> Any:
    """Return the tokenizer of a folder or a GGUF file; None if there is none."""
    folder = WEIGHTS if model == MINIATURE else Path(model)
    if is_gguf(folder):
        return conversion.tokenizer_of(folder)
    if folder.is_dir() and any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        return chat_loading.load_chat(str(folder)).tokenizer
    return None


# --- one card -------------------------------------------------------------------------------------------------------


def _on(card: Card, asked: _Asked) -> CardPlan:
    alone = card.count == 1
    in_process = card.gpu and alone
    possible = [way for way in WAYS if not (way.vllm and not in_process) and not (way.sharded and alone)]
    choices: list[Choice] = []
    fitting: list[int] = []
    notes = [] if alone else [_ONE_PROCESS, *_evaluated(card, asked)]
    for way in possible:
        try:
            choice = _choice(card, asked, way)
        except UsageError as error:  # what the model's folder recommends rules it out
            notes.append(f"no {way.title}: {error}")
            continue
        fitting += [len(choices)] if choice.fits and not way.vllm else []
        choices.append(choice)
    return CardPlan(card.title, card.memory, tuple(choices), next(iter(fitting), None), tuple(notes))


def _evaluated(card: Card, asked: _Asked) -> list[str]:
    """Say so if a card cannot hold the whole model, which evaluations need, even if they need nothing else."""
    setup = Setup(asked.text, "full", card.precision, gpu=card.gpu)
    size = parameters_of(setup).total * setup.itemsize
    if asked.distill.gather or size <= usable(card.memory, card.gpu):
        return []
    return [
        f"not counted: what one process does with the whole model ({size / 2**30:.0f} GiB of weights): evaluations, "
        "the test of --until, replay; hence the command without them; and the time to gather the layers for each token"
    ]


def _choice(card: Card, asked: _Asked, way: Way) -> Choice:
    room = usable(card.memory, card.gpu)
    settings: dict[str, Any] = {"tuning": way.tuning, "gradient_checkpointing": way.gradient_checkpointing}
    if asked.midtrain.precision == "auto":
        settings["precision"] = card.precision
    vllm: dict[str, Any] = {"engine": "vllm", "engine_sleep": True} if way.vllm else {}
    midtrain = dataclasses.replace(asked.midtrain, **settings, **vllm)
    distill = dataclasses.replace(asked.distill, **settings, **vllm)
    footprint = _footprint(asked)
    shards = card.count if way.sharded else 1

    def reading(budget: int) -> Plan:
        config = dataclasses.replace(midtrain, token_budget=budget)
        clean = TeacherFootprint(int(config.anchor > 0 or config.distils_replay))
        plan = midtraining(config, asked.text, way.tuning, card.gpu, beside=clean)
        return dataclasses.replace(plan, shards=shards, teachers_too=way.sharded)

    def teaching(budget: int, rollout_tokens: int) -> Plan:
        config = dataclasses.replace(distill, token_budget=budget, rollout_tokens=rollout_tokens)
        plan = distilling(config, asked.text, way.tuning, card.gpu, beside=footprint)
        plan = dataclasses.replace(plan, shards=shards, teachers_too=way.sharded, gather=distill.gather)
        return dataclasses.replace(plan, free=card.memory)

    row = midtrain.row_length
    rollout_tokens = next(
        (tokens for tokens in _ROLLOUT_BUDGETS if memory_of(teaching(row, tokens)).peak <= room), _ROLLOUT_BUDGETS[-1]
    )
    largest = min(
        _largest(lambda budget: memory_of(reading(budget)), row, room),
        _largest(lambda budget: memory_of(teaching(budget, rollout_tokens)), row, room),
    )
    budget = max(row, min(largest, _USUAL_BUDGET))
    stages = {
        "mid-training": memory_of(reading(budget)),
        "distillation": memory_of(teaching(budget, rollout_tokens)),
    }
    stage = max(stages, key=lambda name: stages[name].peak)
    distill = dataclasses.replace(distill, token_budget=budget, rollout_tokens=rollout_tokens)
    return Choice(
        way.title,
        largest > 0,
        stages[stage].peak,
        stages[stage].at_peak,
        stage,
        largest,
        budget,
        rollout_tokens,
        _seconds(card, asked, midtrain, distill, way, footprint),
        _command(asked, way, budget, rollout_tokens, card.count),
    )


def _footprint(asked: _Asked) -> TeacherFootprint:
    """Return the teachers loaded with the student, as in a cycle after the first, in which the checkpoint before the
    mid-training scores questions about earlier documents. A named teacher other than base is taken as a separate model.
    """
    config, knowledge = asked.distill, asked.knowledge
    named = config.lam > 0 and config.teaching.frozen
    teachers = [*(config.teaching.weights if named else ()), *config.routes.values()]
    bases = teachers.count("base")
    adapters = knowledge + (knowledge and asked.in_cycles)
    copies = int(config.teaching.is_copy)
    return TeacherFootprint(bases + (config.anchor > 0), adapters, len(teachers) - bases, copies)


def _largest(memory: Callable[[int], Memory], row: int, room: int) -> int:
    """Return the largest token budget, in whole rows, whose peak fits: memory grows linearly with the rows."""
    one, four = memory(row), memory(4 * row)
    if one.peak > room:
        return 0
    held = sum(one.held.values())
    first, last = sum(one.training.values()), sum(four.training.values())
    slope = (last - first) / 3
    rows = 1 + math.floor((room - held - first) / slope) if slope > 0 else _LARGEST_BUDGET // row
    return min(_LARGEST_BUDGET, max(1, rows) * row)


def _seconds(
    card: Card, asked: _Asked, midtrain: MidtrainConfig, distill: DistillConfig, way: Way, footprint: TeacherFootprint
) -> dict[str, float]:
    """Return the seconds of each part of a cycle; several GPUs share all but the evaluations."""
    network = network_of(distilling(distill, asked.text, way.tuning, card.gpu, beside=footprint).setup)
    share = dataclasses.replace(distill, prompts_per_step=max(1, round(distill.prompts_per_step / card.count)))
    asking = asked.eval
    items = (asking.limit or 0) * 2  # instruction following, and as many questions about the documents
    length = USUAL_PROMPT + asking.max_new_tokens
    at_once = max(1, asking.rollout_tokens // length)
    groups = math.ceil(items / at_once)
    evaluation = Work(read=items * USUAL_PROMPT, turns=groups * asking.max_new_tokens, rows=at_once, vllm=way.vllm)
    work = {
        "mid-training": midtraining_work(midtrain, way.tuning, asked.trained // card.count),
        "distillation": distilling_work(share, way.tuning, footprint),
    }
    seconds = {name: part.seconds(network, card.speed) for name, part in work.items()}
    return seconds | {"two evaluations": 2 * evaluation.seconds(network, card.speed)}


def _command(asked: _Asked, way: Way, budget: int, rollout_tokens: int, processes: int) -> str:
    """Return the command line of a cycle with that configuration."""
    shared = ["--tuning", way.tuning, *(["--gradient-checkpointing"] if way.gradient_checkpointing else [])]
    shared += ["--token-budget", str(budget), *_sharding(asked, way)]
    vllm = ["--engine", "vllm", "--engine-sleep"] if way.vllm else []
    sampling = ["--rollout-tokens", str(rollout_tokens)] if rollout_tokens != _ROLLOUT_BUDGETS[0] else []
    sampling += vllm
    docs = str(asked.docs) if asked.docs is not None else "DOCS"
    epochs = [] if asked.midtrain.epochs is None else ["--epochs", f"{asked.midtrain.epochs:g}"]
    begin = ["--model", asked.model, "--docs", docs, *epochs]
    if asked.in_cycles and asked.distill.gather:
        alone = [] if asked.knowledge else ["--knowledge-teacher", "none"]
        return _started(["cycle", *begin, *shared, *sampling, *alone], processes)
    settings = ["--method", asked.distill.method, *([] if asked.distill.gather else ["--until", "0"])]
    if asked.distill.teacher != build(DistillConfig, {"method": asked.distill.method}).teacher:
        settings += ["--teacher", asked.distill.teacher]
    if asked.knowledge:  # the default only inside a cycle
        settings += ["--knowledge-teacher", "midtrained"]
    first = _started(["midtrain", *begin, *shared], processes)
    return f"{first} && {_started(['train', *settings, *shared, *sampling], processes)}"


def _sharding(asked: _Asked, way: Way) -> list[str]:
    if not way.sharded:
        return []
    return ["--shard", "full", *([] if asked.distill.gather else ["--no-gather"])]


def _started(words: Sequence[str], processes: int) -> str:
    """Return a `recover` command line, launched on that many GPUs."""
    launcher = ["torchrun", "--standalone", "--nproc_per_node", str(processes), "-m", "recovery"]
    return shlex.join([*(launcher if processes > 1 else ["recover"]), *words])


def _assumptions(asked: _Asked, cards: Sequence[Card]) -> list[str]:
    """Return the assumptions behind the figures, one line each."""
    midtrain, distill = asked.midtrain, asked.distill
    documents = "" if asked.docs is not None else f" {BYTES_A_TOKEN:g} bytes of text are assumed per token."
    length = f"{midtrain.passes:g} passes over" if midtrain.steps is None else f"{midtrain.steps:,} steps on"
    beside = f" (with --augment's share, {midtrain.augment_share:.0%}, in full)" if midtrain.augment else ""
    lines = [
        f"time: {length} the documents{beside}; {distill.steps} steps of "
        f"{distill.prompts_per_step * distill.samples_per_prompt} completions (it stops earlier once behaviour is "
        f"recovered), half as long as --max-new-tokens {distill.max_new_tokens} allows; two evaluations of "
        f"{asked.eval.limit or 0:,} prompts and as many questions.{documents}"
    ]
    if asked.recipe:
        lines.append(f"settings: as {asked.recipe} recommends; the commands above follow it as well.")
    if asked.in_cycles:
        lines.append(
            "cycles: memory is that of the second and later ones"
            + (", where one more teacher scores questions about earlier documents" if asked.knowledge else "")
            + "; time is that of the first: later ones mid-train on as many tokens of earlier documents as well."
        )
    if any(card.gpu for card in cards):
        speeds = ", ".join(
            f"{card.title}: {card.speed.operations / 1e12:.0f} TFLOP/s used" for card in cards if card.gpu
        )
        lines += [
            f"speed: published peaks, of which {GPU_UTILISATION:.0%} is assumed unless --tflops or --utilisation is "
            f"given ({speeds}); not measured.",
            f"memory: {MARGIN_GPU:.0%} of a GPU is left free; {CUDA_CONTEXT / GIB:g} GiB for CUDA's context and "
            f"{WORKSPACE / GIB:g} GiB and {WEIGHTS_ALLOWED - 1:.0%} of the weights for vLLM itself are assumed. The "
            f"rest is counted; benchmarks/results/memory.md compares it with measured runs.",
        ]
    for teacher in distill.teaching.weights:
        sides = [] if teacher == "base" else [_tokenizer(asked.model), _tokenizer(teacher)]
        known = [tokenizer for tokenizer in sides if tokenizer is not None]
        if len(known) == 2 and not local.same_tokens(*known):
            lines.append(
                f"teacher: {teacher} has another tokenizer than the student: responses are aligned by the text that "
                f"tokens spell (docs/methods.md); its own size is not counted."
            )
    if not Architecture.of(asked.text).known:
        lines.append("layers: no formula for this architecture: its activations are taken to be Llama's.")
    return lines


# --- text output ----------------------------------------------------------------------------------------------------


def _card_text(plan: CardPlan) -> str:
    header = (
        "",
        "weights",
        "optimizer",
        "teachers",
        "gradients",
        "activations",
        "other",
        "peak",
        "",
        "budget",
        "cycle",
    )
    rows: list[tuple[str, ...]] = [header]
    for number, choice in enumerate(plan.choices):
        known = ("weights", "optimizer", "teachers", "gradients", "activations")
        other = sum(bytes_ for name, bytes_ in choice.parts.items() if name not in known)
        rows.append(
            (
                ("> " if number == plan.recommended else "  ") + choice.title,
                *(_gib(choice.parts.get(name, 0)) for name in known),
                _gib(other),
                _gib(choice.peak),
                "fits" if choice.fits else "no",
                f"{choice.largest:,}" if choice.fits else "-",
                duration(choice.total) if choice.fits else "-",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = ["", f"{plan.card}, {size(plan.memory)} (in GiB):"]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    lines += plan.notes
    if plan.recommended is None:
        lines.append("nothing fits: use more GPUs (--gpus 2x80GB), a larger one, or a smaller model")
        return "\n".join(lines)
    chosen = plan.choices[plan.recommended]
    parts = ", ".join(f"{name} {_gib(count)}" for name, count in chosen.parts.items() if count)
    times = ", ".join(f"{name} {duration(seconds)}" for name, seconds in chosen.seconds.items())
    lines += [f"the peak is in {chosen.stage}: {parts}", f"a cycle takes about {duration(chosen.total)}: {times}"]
    lines.append(chosen.command)
    return "\n".join(lines)


def _gib(count: float) -> str:
    return f"{count / GIB:.1f}" if count < 100 * GIB else f"{count / GIB:.0f}"
