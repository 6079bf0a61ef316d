"""`recover study`: published claims as experiments on the built-in miniature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipelines.cli import common, stage_options
from recovery.workspace import Workspace

ALL, RESULTS = "all", "results"


@click.command()
@click.argument("name", required=False)
@common.workspace
@common.report_to()
@common.seeds
@click.option(
    "--budget",
    type=common.FiniteRange(min=0, min_open=True),
    default=None,
    show_default="1; for results the largest available",
    help="Scales every run's steps, and below 0.5 also the items per suite.",
)
@click.option(
    "--arms", default=None, metavar="A,B", help="Of a study with arms (horizon): run these; 'all': every one."
)
@click.option("--cycles", type=common.WholeRange(min=2), default=None, help="Of such a study: number of cycles.")
@common.write_docs
@common.as_json
def command(
    name: str | None,
    workspace: Workspace,
    seeds: tuple[int, ...],
    budget: float | None,
    arms: str | None,
    cycles: int | None,
    write_docs: Path | None,
    as_json: bool,
) -> None:
    """Run published claims as experiments on the miniature.

    `recover study NAME` runs one, `recover study all` all but the longest. Without a NAME it lists the studies;
    `recover study results` shows those that were run, stopped ones as far as they went. Each runs on the miniature with
    several seeds (default 0,1,2), and ends in a verdict by a criterion that is fixed in the code: holds, does not hold,
    or undecided at this scale. A stopped study resumes at the first missing run. `--write-docs` also writes every
    figure of every seed as CSV beside the page, and a picture of each study in images/; figures of earlier runs stay.
    """
    from pipelines.runtime.progress import Display
    from pipelines.studies import STUDIES, chosen
    from pipelines.studies.results import as_json as shown
    from pipelines.studies.results import text
    from pipelines.studies.runner import Choice, kept_outcome, run_study

    if name is None:
        rows = [{"study": s.name, "claim": s.claim, "minutes": s.minutes, "heavy": s.heavy} for s in STUDIES.values()]
        common.emit(rows, as_json, lambda: _listed(list(STUDIES.values())))
        return
    if name == RESULTS:
        kept = [kept_outcome(study, workspace.folder, seeds or None, budget) for study in STUDIES.values()]
        outcomes = [outcome for outcome in kept if outcome is not None]
    else:
        with stage_options.resumable():
            outcomes = [
                run_study(s, workspace, seeds or (0, 1, 2), budget or 1.0, Display(), Choice(_arms(s, arms), cycles))
                for s in chosen(name)
            ]
    if write_docs is not None:
        chose = f" --arms {arms}" * (arms is not None) + f" --cycles {cycles}" * (cycles is not None)
        outcomes = _write(outcomes, f"recover study {name}{chose}", write_docs)
    report = "\n\n".join(text(outcome) for outcome in outcomes) or "no study has been run here: recover study NAME"
    common.emit([shown(outcome) for outcome in outcomes], as_json, report)


def _arms(study: Any, given: str | None) -> tuple[str, ...]:
    """Return the names of --arms."""
    if given == ALL:
        return tuple(study.arms)
    return tuple(name.strip() for name in given.split(",") if name.strip()) if given else ()


def _write(made: list[Any], command: str, page: Path) -> list[Any]:
    """Write the page, its raw figures, and a picture of each study; a study of many cycles has a page of its own.

    Return the outcomes of the page: those made now, joined with the ones of its raw figures.
    """
    from pipelines.studies import STUDIES
    from pipelines.studies.raw_figures import from_csv, joined, to_csv
    from pipelines.studies.results import markdown

    earlier, now = from_csv(page.with_suffix(".csv")), {outcome.study.name: outcome for outcome in made}
    outcomes: list[Any] = [joined(earlier.get(name), now.get(name)) for name in STUDIES if name in {*earlier, *now}]
    pictures = f"images/{page.stem}"
    if len(outcomes) == 1 and outcomes[0].study.arms:
        from pipelines.studies.horizon_page import page as text_of

        text = text_of(outcomes[0], command, f"{pictures}/{outcomes[0].study.name}.svg")
    else:
        text = markdown(outcomes, command, pictures=pictures)
    stage_options.write_page(page, text)
    stage_options.write_page(page.with_suffix(".csv"), to_csv(outcomes))
    for outcome in outcomes:
        stage_options.write_page(page.parent / pictures / f"{outcome.study.name}.svg", _picture(outcome))
    return outcomes


def _picture(outcome: Any) -> str:
    """Return the curves of a study of many cycles, else the statements with their intervals."""
    from dashboard import interval_plot, line_plot
    from pipelines.studies.horizon_page import BOUNDS, DRAWN, curves
    from pipelines.studies.results import as_json

    if outcome.study.arms:
        return line_plot.picture({title: curves(outcome, measure) for measure, title in DRAWN.items()}, BOUNDS)
    return interval_plot.picture(as_json(outcome)["parts"])


def _listed(studies: list[Any]) -> str:
    lines = [f"{s.name:<12} {s.minutes:>3.0f} min a seed  {s.claim}" for s in studies]
    return "\n".join([*lines, "\n`recover study NAME` runs one, `recover study all` all but the longest."])
