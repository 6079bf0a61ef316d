"""The options of every method's stage: those `recover distill` shows, and the dials that `recover train` adds."""

from __future__ import annotations

from pathlib import Path

import click

from recovery.cli import options, stages

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

common = stages.several(
    click.option(
        "--teacher",
        default=None,
        metavar="NAME",
        help="Who scores behaviour: base, a folder, a hub id or the address of a vLLM server; for a method also label, "
        "none, self, start or ema.  [default: base, or the method's]",
    ),
    click.option(
        "--student", default=None, metavar="NAME", help="Who is trained: a name, a folder, a hub id.  [default: latest]"
    ),
    click.option(
        "--knowledge-teacher",
        default=None,
        metavar="NAME",
        help="Who scores questions about the documents, e.g. midtrained.  [default: nobody; inside a cycle midtrained]",
    ),
    click.option(
        "--knowledge-share",
        type=click.FloatRange(0, 0.95),
        default=None,
        help="Share of prompts that are such questions.",
    ),
    click.option(
        "--earlier-teacher",
        default=None,
        metavar="NAME",
        help="Who scores those about earlier cycles' documents.  [default: the knowledge teacher; inside a cycle the "
        "checkpoint before its mid-training]",
    ),
    click.option(
        "--document-loss",
        type=click.FloatRange(0, 0.95),
        default=None,
        help="Share of trained tokens that are documents themselves.",
    ),
    options.model,
    options.workspace,
    options.recipe,
    stages.prompts,
    click.option("--prompts-per-step", type=click.IntRange(min=1), default=None, help="Different prompts in one step."),
    click.option(
        "--samples-per-prompt", type=click.IntRange(min=1), default=None, help="Answers sampled to each prompt."
    ),
    click.option(
        "--focus",
        type=click.FloatRange(0, 0.95),
        default=None,
        help="Share of prompts drawn by the kinds of instruction that the newest answers missed; the rest evenly.",
    ),
    stages.max_new_tokens,
    click.option(
        "--overlap/--no-overlap",
        default=None,
        help="Sample the next answers while this batch trains, on the --engine of a server.",
    ),
    click.option(
        "--ratio-cap",
        type=click.FloatRange(min=0),
        default=None,
        help="Most that importance ratios weigh a token of another engine's answer, or of older weights; 0: off.  "
        "[default: 2]",
    ),
    options.steps,
    options.lr,
    click.option(
        "--until",
        type=click.FloatRange(0, 1),
        default=None,
        help="Stop when this share of the teacher's score is proven on 1,000 prompts; 0: never.  [default: 0.99]",
    ),
    click.option("--margin", type=click.FloatRange(0, 0.95), default=None, help="Margin of that test, in score."),
    click.option("--check-every", type=click.IntRange(min=1), default=None, help="Steps between such tests."),
    click.option("--development", type=click.IntRange(min=1), default=None, help="Development prompts in such a test."),
    click.option(
        "--plateau",
        type=click.IntRange(min=0),
        default=None,
        help="Stop where the divergence no longer falls over so many steps; 0: never.",
    ),
    click.option(
        "--token-views",
        type=click.IntRange(min=0),
        default=None,
        help="Answers kept token by token for the review, at the first step and five times on; 0: none.  [default: 6]",
    ),
    stages.tuning_options,
    stages.model_options,
    options.seed,
    options.dry_run,
    options.as_json,
)

divergence = click.option(
    "--divergence",
    type=click.Choice(["reverse_kl", "forward_kl", "jsd", "sampled", "top_k"]),
    default=None,
    help="How far student and teacher are apart, over the whole vocabulary; sampled: by the sampled tokens' "
    "log-probabilities alone; top_k: over the teacher's likeliest tokens and one bucket for the rest.",
)
top_k = click.option(
    "--top-k", type=click.IntRange(min=0), default=None, help="Tokens the teacher gives, for --divergence top_k."
)
dials = stages.several(
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
        help="Share of a step's prompts that the student answers itself; the others bring answers (--answers).",
    ),
    click.option(
        "--lambda", "lam", type=click.FloatRange(0, 1), default=None, help="Weight of the teacher; the rest: --reward."
    ),
    divergence,
    top_k,
    click.option("--beta", type=click.FloatRange(0, 1), default=None, help="Mixture of jsd: 0 forward, 1 reverse KL."),
    click.option("--anchor", type=click.FloatRange(min=0), default=None, help="Weight of the KL to base."),
    click.option(
        "--clip",
        type=click.FloatRange(min=0, min_open=True),
        default=None,
        help="Importance ratios are cut at 1 ± this.",
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
        help="Cap of each vocabulary entry's part in the divergence (OPSD's per-token clip); 0: off.",
    ),
    click.option(
        "--floor", type=click.FloatRange(max=0), default=None, help="Least log-probability that counts; 0: off."
    ),
    click.option("--batch-epochs", type=click.IntRange(min=1), default=None, help="Updates on one batch of answers."),
    click.option(
        "--positions", type=click.Choice(["all", "one"]), default=None, help="Positions of an answer that are scored."
    ),
    click.option(
        "--skip-first",
        type=click.IntRange(min=0),
        default=None,
        help="Tokens at an answer's start that are not scored.",
    ),
    click.option(
        "--continuation",
        type=click.IntRange(min=0),
        default=None,
        help="Tokens the teacher says from a prefix of the student's answer, to be imitated; 0: none.",
    ),
    click.option(
        "--answers",
        type=click.Choice(["given", "teacher", "self", "rejection"]),
        default=None,
        help="Whose answers the data states are; rejection: the student's own that the reward accepts.",
    ),
    click.option("--data", type=_FILE, default=None, help="Conversations to imitate: JSON Lines of messages."),
    click.option(
        "--reward",
        default=None,
        metavar="NAME",
        help="verifiable, all-checks, exact, normalised, or a callable as package.module:function.  "
        "[default: verifiable]",
    ),
    click.option("--keep-above", type=float, default=None, help="Least reward of an answer that rejection keeps."),
    click.option(
        "--context",
        type=click.Choice(["none", "demonstrations", "rules", "system", "document", "answer", "trace"]),
        default=None,
        help="What the teacher is told and the student is not.",
    ),
    click.option("--context-file", type=_FILE, default=None, help="That text, where prompts do not bring their own."),
    click.option(
        "--context-template", default=None, metavar="TEXT", help="How it is put: with {context}, {prompt}, {answer}."
    ),
    click.option("--ema-decay", type=click.FloatRange(0, 1), default=None, help="Decay of the teacher ema, a step."),
    click.option(
        "--temperature",
        type=click.FloatRange(min=0, min_open=True),
        default=None,
        help="Temperature at which answers are sampled.",
    ),
    click.option(
        "--max-tokens",
        type=click.IntRange(min=1),
        default=None,
        help="Stop when so many tokens were sampled, scored and trained, all together.",
    ),
    click.option("--alarm/--no-alarm", default=None, help="Stop a run that collapses, and keep the last state before."),
    click.option(
        "--geometry-every",
        type=click.IntRange(min=0),
        default=None,
        help="Steps between measurements of the gradient's geometry; 0: never.",
    ),
)
