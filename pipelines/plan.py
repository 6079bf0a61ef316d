"""`recover plan`: estimates of a cycle's memory and time on given GPUs, without loading weights.

The model is given by its configuration, recipe and tokenizer. The configurations that are compared are in
:mod:`pipelines.planning.configurations`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.data.document_rows import text_rows
from pipelines.data.mixing import step_count, step_size
from pipelines.planning.activations import GPU_UTILISATION, Setup
from pipelines.planning.architecture import Architecture
from pipelines.planning.configurations import Card, CardPlan, Request, card_of, in_cycles, plan_card
from pipelines.planning.memory import CUDA_CONTEXT, MARGIN_GPU, parameters_of
from pipelines.table import GIB, aligned, duration, size
from recovery.config import DistillConfig, EvalConfig, MidtrainConfig, Recipe, build, build_cycle, model_recipe
from recovery.data.corpus.folder import read_corpus
from recovery.engines import WEIGHTS_ALLOWED, WORKSPACE
from recovery.errors import ModelError, RecoveryError
from recovery.lazy_import import lazily
from recovery.miniature.package import RECOMMENDED, WEIGHTS
from recovery.models.base_folder import is_path, no_model_at, resolve_base
from recovery.models.folder_check import check_model, read_config
from recovery.models.gguf_files import is_gguf
from recovery.workspace import MINIATURE

# Most of a plan's time would be imports: these are for tokenizers, GGUF files, hub ids and named teachers.
transformers, chat_loading = lazily("transformers"), lazily("recovery.models.chat_loading")
conversion, teacher_module = lazily("recovery.models.gguf_files.conversion"), lazily("recovery.teachers.teacher")


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


def _config_of(path: Path) -> dict[str, Any]:
    """Return the config.json of a model folder, of the base of an adapter, or in a file."""
    if not path.is_dir():
        takes = "--model takes a folder, a GGUF file, a config.json or a hub id"
        if not path.is_file():
            raise ModelError(f"{path} is not a regular file: {takes}")
        try:
            return read_config(path)
        except ModelError as error:
            if path.suffix == ".json":
                raise
            raise ModelError(f"{path} is neither a GGUF file nor a config.json: {takes}") from error
    if (path / "config.json").is_file():
        check_model(path)
        return read_config(path / "config.json")
    return read_config(Path(resolve_base(path)[0]) / "config.json")


def tokenizer_of(model: str) -> Any:
    """Return the tokenizer of a folder or a GGUF file; None if there is none."""
    folder = WEIGHTS if model == MINIATURE and not Path(model).exists() else Path(model)
    if is_gguf(folder):
        return conversion.tokenizer_of(folder)
    if folder.is_dir() and any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        return chat_loading.load_chat(str(folder)).tokenizer
    return None


# Bytes of text per token, if there is no tokenizer to count with.
BYTES_A_TOKEN = 4.0


@dataclass(frozen=True)
class Report:
    """The output of `recover plan`."""

    model: str
    parameters: int
    document_tokens: int
    trained_tokens: int
    assumptions: tuple[str, ...]
    cards: tuple[CardPlan, ...]

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
    settings = {key: value for key, value in (flags or {}).items() if key != "knowledge_teacher"}
    if settings.get("gather") is False:
        settings["shard"] = "full"
    if model == MINIATURE and not Path(model).exists():
        recipe = Recipe(model, tomllib.loads(RECOMMENDED), recommended=True)
    else:  # of a file or a hub id it is empty
        recipe = model_recipe(Path(model).expanduser())
    distill = build(DistillConfig, settings, recipe)
    if in_cycles(distill):
        cycle = build_cycle(settings, recipe)
        midtrain, distill, asking = cycle.midtrain, cycle.distill, cycle.eval
    else:
        midtrain, asking = build(MidtrainConfig, settings, recipe), build(EvalConfig, settings, recipe)
    # As in a cycle: a knowledge teacher scores the student's own completions, if any teacher does.
    knowledge = distill.scores_completions and (flags or {}).get("knowledge_teacher") != "none"
    tokens = round(document_mb * 1e6 / BYTES_A_TOKEN) if docs is None else _document_tokens(model, docs, midtrain)
    trained = _trained_tokens(midtrain, tokens)
    counts = parameters_of(Setup(text, "full", "float32", gpu=False))
    asked = Request(model, text, midtrain, distill, asking, trained, knowledge, docs, recipe.origin)
    plans = tuple(plan_card(card, asked) for card in cards)
    return Report(model, counts.total, tokens, trained, tuple(_assumptions(asked, cards)), plans)


def _trained_tokens(config: MidtrainConfig, documents: int) -> int:
    """Return the target tokens of a first cycle's mid-training on documents of that many tokens, in the stage's steps.

    At most, where it augments: other wordings and questions are taken to fill their whole share, which needs the facts
    of the documents (:meth:`pipelines.midtraining.material.Material.shares`).
    """
    share = (1 - config.replay) * (1 - config.augment_share * (config.augment > 0))
    per_step = step_size(config, documents, share)
    return per_step * step_count(config, documents, share, per_step)


def _document_tokens(model: str, docs: Path, config: MidtrainConfig) -> int:
    """Count the tokens of a folder, with the model's own tokenizer if it has one."""
    corpus = read_corpus(docs, held_out=config.held_out, seed=config.seed, skip_near=config.skips_near)
    tokenizer = tokenizer_of(model)
    if tokenizer is not None:
        return sum(len(row.ids) for row in text_rows(tokenizer, config.row_length, corpus.documents))
    return round(sum(len(document.text.encode()) for document in corpus.documents) / BYTES_A_TOKEN)


def _assumptions(asked: Request, cards: Sequence[Card]) -> list[str]:
    """Return the assumptions behind the figures, one line each."""
    midtrain, distill = asked.midtrain, asked.distill
    documents = "" if asked.docs is not None else f" {BYTES_A_TOKEN:g} bytes of text are assumed per token."
    length = f"{midtrain.passes:g} passes over" if midtrain.steps is None else f"{midtrain.steps:,} steps on"
    beside = f" (with --augment's share, {midtrain.augment_share:.0%}, in full)" if midtrain.augment else ""
    stops = " (it stops earlier once behaviour is recovered)" if distill.until else ""
    lines = [
        f"time: {length} the documents{beside}; {distill.steps} steps of "
        f"{distill.prompts_per_step * distill.samples_per_prompt} completions{stops}, half as long as "
        f"--max-new-tokens {distill.max_new_tokens} allows; two evaluations of {asked.eval.limit or 0:,} prompts and "
        f"as many questions.{documents}"
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
        sides = [] if teacher == "base" else [tokenizer_of(asked.model), tokenizer_of(teacher)]
        known = [tokenizer for tokenizer in sides if tokenizer is not None]
        if len(known) == 2 and not teacher_module.same_tokens(*known):
            lines.append(
                f"teacher: {teacher} has another tokenizer than the student: responses are aligned by the text that "
                f"tokens spell (docs/methods.md); its own size is not counted."
            )
    if not Architecture.of(asked.text).known:
        lines.append("layers: no formula for this architecture: its activations are taken to be Llama's.")
    return lines


# --- text output ----------------------------------------------------------------------------------------------------


def _card_text(plan: CardPlan) -> str:
    known = ("weights", "optimizer", "teachers", "gradients", "activations")
    rows: list[tuple[str, ...]] = [("", *known, "other", "peak", "", "budget", "cycle")]
    for number, choice in enumerate(plan.choices):
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
    lines = ["", f"{plan.card}, {size(plan.memory)} (in GiB):", *aligned(rows), *plan.notes]
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
