"""Options of a training stage: those of `recover distill`, and the dials that `recover train` adds."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli import common, stage_options
from recovery.losses.config import TEACHER_DIVERGENCES

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

distill_options = stage_options.several(
    click.option(
        "--teacher",
        default=None,
        metavar="NAME",
        help="Teacher for behaviour: base, a folder, a hub id or the address of a vLLM server; for some methods label, "
        "none, self, start or ema.  [default: base, or the method's]",
    ),
    click.option(
        "--student",
        default=None,
        metavar="NAME",
        help="Checkpoint to train: a name, a folder, a hub id.  [default: latest]",
    ),
    click.option(
        "--knowledge-teacher",
        default=None,
        metavar="NAME",
        help="Teacher for questions about the documents, e.g. midtrained.  [default: none; inside a cycle midtrained]",
    ),
    click.option(
        "--knowledge-share",
        type=click.FloatRange(0, 0.95),
        default=None,
        help="Share of prompts that are questions about the documents.",
    ),
    click.option(
        "--earlier-teacher",
        default=None,
        metavar="NAME",
        help="Teacher for questions about earlier cycles' documents.  [default: the knowledge teacher; inside a cycle "
        "the checkpoint before its mid-training]",
    ),
    click.option(
        "--document-loss",
        type=click.FloatRange(0, 0.95),
        default=None,
        help="Share of trained tokens that are document text.",
    ),
    common.model,
    common.workspace,
    common.recipe,
    stage_options.prompts,
    click.option("--prompts-per-step", type=click.IntRange(min=1), default=None, help="Distinct prompts per step."),
    click.option(
        "--samples-per-prompt", type=click.IntRange(min=1), default=None, help="Completions sampled per prompt."
    ),
    click.option(
        "--focus",
        type=click.FloatRange(0, 0.95),
        default=None,
        help="Share of prompts drawn by the kinds of instruction that recent completions failed; the rest uniformly.",
    ),
    stage_options.max_new_tokens,
    click.option(
        "--overlap/--no-overlap",
        default=None,
        help="Sample the next completions while this batch trains; needs a server as --engine.",
    ),
    click.option(
        "--ratio-cap",
        type=click.FloatRange(min=0),
        default=None,
        help="Upper bound of the importance ratios that correct for another engine or older weights; 0: off.  "
        "[default: 2]",
    ),
    common.steps,
    common.lr,
    click.option(
        "--until",
        type=click.FloatRange(0, 1),
        default=None,
        help="Stop when this share of the teacher's score is confirmed on 1,000 prompts; 0: never.  [default: 0.99]",
    ),
    click.option("--margin", type=click.FloatRange(0, 0.95), default=None, help="Margin of that test, in score."),
    click.option("--check-every", type=click.IntRange(min=1), default=None, help="Steps between these tests."),
    click.option("--development", type=click.IntRange(min=1), default=None, help="Development prompts per test."),
    click.option(
        "--plateau",
        type=click.IntRange(min=0),
        default=None,
        help="Stop when the divergence has not fallen over this many steps; 0: never.",
    ),
    click.option(
        "--token-views",
        type=click.IntRange(min=0),
        default=None,
        help="Completions recorded token by token for review, at the first step and five later ones; 0: none.  "
        "[default: 6]",
    ),
    stage_options.tuning_options,
    stage_options.model_options,
    common.seed,
    common.dry_run,
    common.as_json,
)

divergence = click.option(
    "--divergence",
    type=click.Choice(TEACHER_DIVERGENCES),
    default=None,
    help="Divergence of student and teacher, over the whole vocabulary; sampled: from the sampled tokens' "
    "log-probabilities alone; top_k: over the teacher's most likely tokens and one bucket for the rest.",
)
top_k = click.option(
    "--top-k", type=click.IntRange(min=0), default=None, help="Number of the teacher's tokens, for --divergence top_k."
)
dials = stage_options.several(
    click.option(
        "--expert",
        "experts",
        multiple=True,
        metavar="TAG=NAME",
        help="A checkpoint that scores the prompts with this tag; may be repeated.",
    ),
    click.option(
        "--alpha",
        type=click.FloatRange(0, 1),
        default=None,
        help="Share of a step's prompts that the student completes; the others have given responses (--answers).",
    ),
    click.option(
        "--lambda",
        "lam",
        type=click.FloatRange(0, 1),
        default=None,
        help="Weight of the teacher; the rest is the weight of --reward.",
    ),
    divergence,
    top_k,
    click.option(
        "--beta",
        type=click.FloatRange(0, 1),
        default=None,
        help="Mixture of the divergences to a mixture, such as jsd.",
    ),
    click.option("--anchor", type=click.FloatRange(min=0), default=None, help="Weight of the KL to base."),
    click.option(
        "--clip",
        type=click.FloatRange(min=0, min_open=True),
        default=None,
        help="Importance ratios are clipped to 1 ± this.",
    ),
    click.option(
        "--drop",
        type=click.FloatRange(min=0),
        default=None,
        help="Tokens whose importance ratio is above this, or below its inverse, are left out; 0: off.",
    ),
    click.option(
        "--entry-clip",
        type=click.FloatRange(min=0),
        default=None,
        help="Upper bound of each vocabulary entry's term in the divergence (OPSD's per-token clip); 0: off.",
    ),
    click.option(
        "--floor", type=click.FloatRange(max=0), default=None, help="Lower bound of log-probabilities; 0: off."
    ),
    click.option("--batch-epochs", type=click.IntRange(min=1), default=None, help="Updates per batch of completions."),
    click.option(
        "--positions",
        type=click.Choice(["all", "one"]),
        default=None,
        help="Positions of a completion that are scored.",
    ),
    click.option(
        "--skip-first",
        type=click.IntRange(min=0),
        default=None,
        help="Tokens at the start of a completion that are not scored.",
    ),
    click.option(
        "--continuation",
        type=click.IntRange(min=0),
        default=None,
        help="Tokens the teacher samples after a prefix of the student's completion, to be imitated; 0: none.",
    ),
    click.option(
        "--answers",
        type=click.Choice(["given", "teacher", "self", "rejection"]),
        default=None,
        help="Source of the responses to imitate; rejection: the student's own that the reward accepts.",
    ),
    click.option("--data", type=_FILE, default=None, help="Conversations to imitate: JSON Lines of messages."),
    click.option(
        "--reward",
        default=None,
        metavar="NAME",
        help="verifiable, all-checks, exact, normalised, or a callable as package.module:function.  "
        "[default: verifiable]",
    ),
    click.option("--keep-above", type=float, default=None, help="Minimum reward of a completion that rejection keeps."),
    click.option(
        "--context",
        type=click.Choice(["none", "demonstrations", "rules", "system", "document", "answer", "trace"]),
        default=None,
        help="Context that the teacher sees and the student does not.",
    ),
    click.option(
        "--context-file", type=_FILE, default=None, help="Text of the context, for prompts without their own."
    ),
    click.option(
        "--context-template",
        default=None,
        metavar="TEXT",
        help="Template of the context: with {context}, {prompt}, {answer}.",
    ),
    click.option("--ema-decay", type=click.FloatRange(0, 1), default=None, help="Decay per step of the teacher ema."),
    click.option(
        "--temperature",
        type=click.FloatRange(min=0, min_open=True),
        default=None,
        help="Sampling temperature.",
    ),
    click.option(
        "--max-tokens",
        type=click.IntRange(min=1),
        default=None,
        help="Stop after this many tokens in total: sampled, scored and trained.",
    ),
    click.option(
        "--alarm/--no-alarm", default=None, help="Stop a run that collapses, and keep the last state before that."
    ),
    click.option(
        "--geometry-every",
        type=click.IntRange(min=0),
        default=None,
        help="Steps between measurements of the gradient's geometry; 0: never.",
    ),
)
