"""Drift of a checkpoint from another: distances of their completions, and divergences on requests and documents."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from evals.drift import Rollout, drift, forward_kl, rollouts, text_kl, token_kl
from evals.knowledge import bits_per_byte
from evals.suites import sample
from pipelines.data.corpus_snapshot import saved_snapshots
from pipelines.runtime.generation import cached_engine, fitting, open_turns
from pipelines.runtime.model_loading import load_frozen
from pipelines.runtime.session import Session
from recovery.config import EvalConfig
from recovery.data.prompts import behaviour_prompts
from recovery.errors import UsageError
from recovery.models.loaded import Loaded
from recovery.rng import RandomStream, derive_seed
from recovery.teachers.teacher import check_same_tokens
from recovery.types import Prompt, Score
from recovery.workspace import Checkpoint

SUITE = "drift"
PROMPTS = 200
_PARTS = 4  # steps of the progress bar after sampling


@dataclass(frozen=True)
class DocumentDrift:
    """Drift on held-out texts of a corpus: KL divergences in bits per token, bits per byte of each model."""

    corpus: int
    texts: int
    forward_kl: Score
    reverse_kl: Score
    bits_per_byte: Score
    bits_per_byte_before: Score


@dataclass(frozen=True)
class DriftReport:
    """The drift of ``checkpoint`` from ``reference`` on ``prompts`` behaviour prompts.

    ``measures`` are distances between rollouts (:func:`evals.drift.drift`), ``null`` the same between two sets of
    rollouts of the reference. ``forward_kl`` is KL(reference ‖ checkpoint) on the reference's completions,
    ``reverse_kl`` KL(checkpoint ‖ reference) on the checkpoint's own, both in nats per token, the latter also by
    position in the completion (first, last, score).
    """

    checkpoint: str
    reference: str
    prompts: int
    measures: dict[str, float]
    null: dict[str, float]
    forward_kl: Score
    reverse_kl: Score
    reverse_kl_by_position: list[tuple[int, int, Score]]
    documents: DocumentDrift | None

    def text(self) -> str:
        """Return the report as text."""
        lines = [f"{self.checkpoint} from {self.reference}, on {self.prompts} prompts", ""]
        lines += [f"{'distance of completions':28} {'measured':>10} {'by chance':>10}"]
        lines += [f"{name:28} {value:10.4f} {self.null[name]:10.4f}" for name, value in self.measures.items()]
        lines += ["", f"forward KL {_shown(self.forward_kl)} nats per token of {self.reference}'s completions"]
        lines += [f"reverse KL {_shown(self.reverse_kl)} nats per token of its own completions"]
        places = (f"{first}-{last} {score.value:.3f}" for first, last, score in self.reverse_kl_by_position)
        lines += [f"by position in the completion: {', '.join(places)}"]
        if (documents := self.documents) is not None:
            bits = (documents.bits_per_byte_before.value, documents.bits_per_byte.value)
            lines += [
                "",
                f"on {documents.texts} held-out documents of corpus {documents.corpus}:",
                f"forward KL {_shown(documents.forward_kl)}, reverse KL {_shown(documents.reverse_kl)} bits per token",
                f"bits per byte {bits[0]:.3f} before, {bits[1]:.3f} now",
            ]
        return "\n".join(lines)


def measure_drift(session: Session, config: EvalConfig, reference: str = "base") -> DriftReport:
    """Measure the drift of the configured checkpoint from ``reference`` and record it as its suite "drift".

    Every checkpoint gets the same prompts at temperature 1; the reference's completions are cached. Raises UsageError
    if both have the same weights or their tokenizers differ.
    """
    checkpoint, before = session.resolve(config.checkpoint), session.resolve(reference)
    if checkpoint.hash == before.hash:
        raise UsageError(f"{checkpoint.name} and {before.name} are the same weights: name another with --from")
    model, clean = (load_frozen(session.verified(one), config) for one in (checkpoint, before))
    check_same_tokens(model.tokenizer, clean.tokenizer, student_name=checkpoint.name, teacher_name=before.name)
    prompts = _prompts(session, config, model, clean)
    with session.display.bar("drift: sampling", 3 * len(prompts)) as bar:

        def answers(one: Checkpoint, loaded: Loaded, draw: int) -> list[Rollout]:
            with cached_engine(session, one, loaded, config) as engine:
                return rollouts(
                    loaded.chat,
                    engine,
                    prompts,
                    max_new_tokens=config.max_new_tokens,
                    seed=derive_seed(config.seed, draw, RandomStream.DRIFT),
                    window=loaded.max_length,
                    progress=bar.add_completions,
                )

        then, again, now = answers(before, clean, 0), answers(before, clean, 1), answers(checkpoint, model, 2)
    with session.display.bar("drift: distances", _PARTS) as bar:
        measures = drift(then, now, clean, seed=config.seed, token_budget=config.token_budget)
        bar.advance()
        null = drift(then, again, clean, seed=config.seed, token_budget=config.token_budget)
        bar.advance()
        forward = forward_kl(clean, model, then, token_budget=config.token_budget)
        reverse = token_kl(model, clean, now, token_budget=config.token_budget)
        bar.advance()
        documents = _on_documents(session, config, checkpoint, model, clean)
        bar.advance()
    kls = (forward, reverse.score, reverse.by_position())
    report = DriftReport(checkpoint.name, before.name, len(prompts), measures, null, *kls, documents)
    _record(session, checkpoint, report)
    return report


def _prompts(session: Session, config: EvalConfig, *models: Loaded) -> list[Prompt]:
    """Return the behaviour prompts to sample on: single-turn ones that leave room for a completion in both models."""
    test = behaviour_prompts(session.base.path, config.prompts, config.seed).test
    prompts = [prompt for prompt in test if len(open_turns(prompt.messages)) == 1]
    for model in models:
        prompts = fitting(model.chat, prompts, model.max_length // 2, config.max_new_tokens)
    return sample(prompts, config.limit)


def _on_documents(
    session: Session, config: EvalConfig, checkpoint: Checkpoint, model: Loaded, clean: Loaded
) -> DocumentDrift | None:
    """Measure drift on held-out texts of the newest corpus the checkpoint was trained on; None if it has none."""
    corpora = saved_snapshots(session, session.learnt_cycles(checkpoint, checkpoint.cycle))
    number = max((k for k, corpus in corpora.items() if corpus.held_out), default=None)
    if number is None:
        return None
    texts = [document.text for document in corpora[number].held_out if document.text.strip()][: config.limit]
    return DocumentDrift(
        number,
        len(texts),
        _bits(text_kl(clean, model, texts, token_budget=config.token_budget)),
        _bits(text_kl(model, clean, texts, token_budget=config.token_budget)),
        bits_per_byte(model, texts, token_budget=config.token_budget).score,
        bits_per_byte(clean, texts, token_budget=config.token_budget).score,
    )


def _record(session: Session, checkpoint: Checkpoint, report: DriftReport) -> None:
    """Record the report as an evaluation of the checkpoint: the forward KL is its score, the rest its details."""
    number = session.registered(checkpoint).id
    assert number is not None
    session.tracker.add_evaluation(
        number,
        SUITE if report.reference == "base" else f"{SUITE} from {report.reference}",
        value=report.forward_kl.value,
        stderr=report.forward_kl.stderr,
        n=report.forward_kl.n,
        name="forward_kl",
        details=asdict(report),
    )


def _bits(score: Score) -> Score:
    return Score(score.value / math.log(2), score.stderr / math.log(2), score.n)


def _shown(score: Score) -> str:
    return f"{score.value:.4f} ± {score.stderr:.4f}"
