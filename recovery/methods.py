"""Presets of the distillation methods as settings of one objective. Does not import torch.

A preset only sets values of :class:`recovery.config.DistillConfig`; the same stage, loop and loss run all of them.
Flags override a recipe, a recipe overrides a preset. To add a method, add an entry. Three settings tell them apart:
whose responses are trained on (alpha, the student's share), the weight of the teacher (lambda), and the teacher:

    grad J = E[ sum_t A_t grad log pi(y_t | s_t) ],    s_t from alpha pi + (1 - alpha) data
    A_t    = lambda [log pi_T(y_t | c_T, s_t) - log pi(y_t | s_t)] + (1 - lambda) [R(y) - b(x)]
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recovery.errors import UsageError


@dataclass(frozen=True)
class Method:
    """A preset: settings that override the defaults (those of OPD), and its description.

    ``expects`` describes the input it needs from the user beyond prompts; ``measured`` says what the studies found
    (docs/studies.md) where that is not what ``use`` promises.
    """

    name: str
    title: str
    formula: str
    use: str
    avoid: str
    source: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    expects: str = ""
    measured: str = ""


# A context can give a self-teacher extreme log-probabilities, so its divergence is clipped.
_ENTRY_CLIP = 0.05

_ALL = (
    Method(
        "sft",
        "supervised fine-tuning",
        "-log pi(y_t | s_t), y and s_t from the data",
        "good answers exist and the model lacks the skill altogether",
        "the model must keep its existing skills: states come from the data, and the shift causes forgetting",
        "the maximum-likelihood baseline",
        {"alpha": 0.0, "teacher": "label", "answers": "given"},
        expects="answers: --data FILE of conversations, or prompts with a reference answer",
    ),
    Method(
        "asft",
        "anchored SFT",
        "-log pi(y_t | s_t) + anchor KL(pi || pi_0), on the data's states",
        "SFT is the right method, and a KL penalty to the clean model should limit forgetting",
        "the behaviour to keep depends on states outside the data: the anchor has no effect there",
        "the supervised loss with a KL penalty to the starting model",
        {"alpha": 0.0, "teacher": "label", "answers": "given", "anchor": 0.1},
        expects="answers, as for sft",
    ),
    Method(
        "rejection-sft",
        "rejection-sampling fine-tuning",
        "-log pi(y_t | s_t) on the student's own completions whose reward reaches --keep-above",
        "a check exists, and the student sometimes passes it",
        "the student never passes: no completion is kept",
        "RFT, arXiv 2308.01825; STaR, arXiv 2203.14465",
        {"alpha": 0.0, "teacher": "label", "answers": "rejection", "samples_per_prompt": 4},
        expects="prompts that a reward can judge",
    ),
    Method(
        "off-policy-kd",
        "off-policy distillation",
        "KL(pi_T || pi) at every token of the teacher's own completions that end within --max-new-tokens",
        "the student is so far from the teacher that its own completions give no useful signal yet",
        "completions are long: states after the student's own mistakes are never visited (exposure bias)",
        "Hinton et al., arXiv 1503.02531; sequence level: arXiv 1606.07947",
        {"alpha": 0.0, "answers": "teacher", "divergence": "forward_kl"},
    ),
    Method(
        "sequence-kd",
        "sequence-level distillation",
        "-log pi(y_t | s_t) on the teacher's own completions that end within --max-new-tokens",
        "only the responses of base are wanted, not its probabilities, and the student is too far from it to learn "
        "from its own completions",
        "its probabilities are wanted: off-policy-kd learns more from the same completions; or the teacher is a black "
        "box that returns only text: sft --data FILE with its responses",
        "Kim and Rush, arXiv 1606.07947",
        {"alpha": 0.0, "teacher": "label", "answers": "teacher"},
    ),
    Method(
        "opd",
        "on-policy distillation",
        "KL(pi || pi_T) at every token of the student's own completions, over the whole vocabulary",
        "to restore behaviour that a clean checkpoint still has: the default of recover distill",
        "no teacher is better than the student",
        "Thinking Machines, On-Policy Distillation (2025); arXiv 2306.13649",
    ),
    Method(
        "gkd",
        "generalised knowledge distillation",
        "JSD_beta(pi_T, pi) on a mixture of completions of the student and, if they end within --max-new-tokens, of "
        "the teacher",
        "the student is too weak to learn from its own completions alone",
        "opd or off-policy-kd alone does as well",
        "arXiv 2306.13649",
        {"alpha": 0.5, "answers": "teacher", "divergence": "jsd", "beta": 0.5},
    ),
    Method(
        "distillm",
        "skewed distillation on the student's own completions",
        "KL(pi || beta pi + (1 - beta) pi_T) at every token of the student's own completions, beta = 0.1",
        "student and teacher disagree strongly: no log-ratio exceeds -log beta, so that single tokens cannot dominate",
        "they agree on most tokens: the skew then only weakens opd's gradient",
        "DistiLLM, Ko et al., arXiv 2402.03898; all completions are the student's, as in opd (no replay buffer)",
        {"divergence": "skew_reverse_kl", "beta": 0.1},
    ),
    Method(
        "grpo",
        "group-relative policy optimisation",
        "-min(r A, clip(r, 1 +- eps) A), A = (R - mean R) / std R within a prompt's group; the mean over all tokens of "
        "a step, not first over each completion; no KL to the start unless --anchor",
        "no teacher is better, but a completion can be checked",
        "a better teacher exists: it gives a signal for every token, a reward only one per completion",
        "arXiv 2402.03300",
        {
            "lam": 0.0,
            "teacher": "none",
            "prompts_per_step": 16,
            "samples_per_prompt": 8,
            "clip": 0.2,
        },
        expects="prompts that a reward can judge",
    ),
    Method(
        "opd-sampled",
        "on-policy distillation, sampled form",
        "the clipped policy gradient with A_t = log pi_T(y_t) - log pi_old(y_t), four passes over a batch",
        "the teacher returns only log-probabilities of given tokens (a server)",
        "the teacher's logits are available: opd has the same expectation and far less variance",
        "Thinking Machines, On-Policy Distillation (2025)",
        {"divergence": "sampled", "clip": 0.2, "batch_epochs": 4, "prompts_per_step": 64, "samples_per_prompt": 8},
    ),
    Method(
        "one-step-opd",
        "one-step on-policy distillation",
        "KL(pi || pi_T) at a single sampled position of each completion",
        "to study its published collapse: the rest of the completion gets no signal",
        "the model is to be used",
        "arXiv 2605.22731, where it collapsed",
        {"positions": "one"},
        measured="in the study states no collapse was seen; the statement is undecided",
    ),
    Method(
        "opsd",
        "on-policy self-distillation with the answer key",
        "JSD(pi_T, pi) capped per vocabulary entry; pi_T is the student's start with the answer in its context",
        "reference answers exist, but no better model",
        "a better model exists: opd from it needs no answer key",
        "on-policy self-distillation (OPSD), as retold in 'PhD for Dummies: On SFT, RL, and on-policy distillation'",
        {"teacher": "start", "context": "answer", "divergence": "jsd", "beta": 0.5, "entry_clip": _ENTRY_CLIP},
        expects="prompts with a reference answer",
        measured="published runs collapse without the clip; in the study pivot nothing collapsed without it, and with "
        "it hardly anything was learnt: try --entry-clip 0 as well",
    ),
    Method(
        "self-distillation",
        "simple self-distillation",
        "-log pi(y_t | s_t) on one completion of the student per prompt, right or wrong, if it ends within "
        "--max-new-tokens",
        "sharpening is wanted at low cost, from prompts alone",
        "the student is degraded: it learns its own errors",
        "simple self-distillation: the model's own unfiltered samples as labels",
        {"alpha": 0.0, "teacher": "label", "answers": "self", "samples_per_prompt": 1},
    ),
    Method(
        "sdft",
        "self-distillation fine-tuning (type A)",
        "KL(pi || pi_T), pi_T a moving average of the student that reads a demonstration first",
        "to learn new skills from demonstrations",
        "the model cannot yet learn from examples in its context",
        "SDFT, arXiv 2601.19897",
        {"teacher": "ema", "context": "demonstrations"},
        expects="demonstrations: a context with each prompt, or --context-file",
        measured="published with less forgetting than SFT on the demonstrations; in the study contexts SFT on the "
        "teacher's answers forgot less",
    ),
    Method(
        "deliberative",
        "rules into the weights (type B)",
        "KL(pi || pi_T), pi_T the student's start with the rules in its context",
        "a policy or a safety specification must hold without being in the prompt",
        "the model does not follow the rules even with them in its context",
        "deliberative alignment, arXiv 2412.16339, on-policy form",
        {"teacher": "start", "context": "rules"},
        expects="the rules: --context-file, or a context with each prompt",
    ),
    Method(
        "opcd",
        "system prompt into the weights (type C)",
        "KL(pi || pi_T), pi_T the student's start under the system prompt or with the solution's trace",
        "a long system prompt costs tokens on every call, or the skill of solved problems must be kept",
        "the prompt changes often: keep it in the context",
        "OPCD (on-policy context distillation)",
        {"teacher": "start", "context": "system"},
        expects="the system prompt: --context-file, or a context with each prompt (--context trace for solutions)",
    ),
    Method(
        "document-in-context",
        "a document into the weights (type D)",
        "KL(pi || pi_T) capped per entry, pi_T the student's start that reads the passage first",
        "questions about documents exist, and must be answered without the documents in the context",
        "there are many documents and no questions: mid-train on them",
        "context distillation with privileged text, on-policy form",
        {"teacher": "start", "context": "document", "entry_clip": _ENTRY_CLIP},
        expects="prompts with the passage as their context",
        measured="with the preset's clip hardly anything of a document was learnt in the study contexts; in as many "
        "steps a third with --entry-clip 0, nearly all with --divergence forward_kl --entry-clip 0",
    ),
    Method(
        "pi-distill",
        "privileged-information distillation (type D for agents)",
        "KL(pi || pi_T) capped per entry, pi_T the live student that sees hidden actions or the future",
        "trajectories are known whose steps the student may not see at inference",
        "the privileged text contains answers that the student could not infer",
        "pi-Distill; privileged-information distillation (PID)",
        {"teacher": "self", "context": "trace", "entry_clip": _ENTRY_CLIP},
        expects="prompts with the hidden text as their context",
    ),
    Method(
        "continuation-opd",
        "continuation distillation",
        "-log pi(y_t | s_t) on a short continuation by the teacher from a prefix of the student's completion",
        "the teacher is degraded, or a checkpoint whose probabilities are not wanted",
        "the teacher is not degraded and its probabilities are wanted: opd uses every token; or it is a black box that "
        "returns only text: sft --data FILE with its responses",
        "arXiv 2605.22731; DAgger, arXiv 1011.0686",
        {"continuation": 32},
    ),
    Method(
        "mixed",
        "teacher and reward combined, on mixed states",
        "lambda KL(pi || pi_T) + (1 - lambda) policy gradient of the reward, on the student's responses to half of the "
        "prompts and the teacher's to the others",
        "behaviour has a teacher and the task has a check, and both must be trained at once",
        "one of them is enough",
        "the same objective at intermediate values of alpha and lambda",
        {"alpha": 0.5, "lam": 0.5, "answers": "teacher", "samples_per_prompt": 4, "clip": 0.2},
        expects="prompts that a reward can judge",
    ),
)
METHODS: dict[str, Method] = {method.name: method for method in _ALL}


def method_named(name: str) -> Method:
    """Return the preset called ``name``. Raise UsageError, suggesting the nearest name, if there is none."""
    if name in METHODS:
        return METHODS[name]
    near = difflib.get_close_matches(name, METHODS, 1)
    hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(METHODS)}"
    raise UsageError(f"there is no method {name!r}: {hint} (`recover methods` lists them)")
