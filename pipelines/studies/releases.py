"""Documents that come again in a newer version: what is answered about facts that changed, and about the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evals import knowledge
from pipelines.data.corpus_snapshot import load_snapshots
from pipelines.data.revisions import up_to_date
from pipelines.studies.measures import INSTRUCTIONS
from pipelines.studies.study import Part, Study, figure, minus, over
from recovery.miniature import write_releases
from recovery.types import Probe

if TYPE_CHECKING:
    from pipelines.studies.experiment import ExperimentRunner

STEPS = 50
# The two arms are cycles of their own, so that each has its own snapshot of the second release.
ARMS = {"replace": 2, "keep": 3}


def run(runner: ExperimentRunner) -> Mapping[str, float]:
    """Run one seed: a cycle on the first release, then one on the second, which replaces it or stands beside it."""
    first, second = write_releases(runner.folder / "releases", runner.seed)
    steps = runner.scale(STEPS, 5)
    runner.midtrained("first", first)
    runner.trained("first-recovered", "first", "opd", knowledge_teacher="first", steps=steps)
    given: dict[str, Any] = {"student": "first-recovered", "replay_documents": 0.5}
    for arm, cycle in ARMS.items():
        runner.midtrained(arm, second, cycle=cycle, older_versions=arm, **given)
        runner.trained(f"{arm}-recovered", arm, "opd", knowledge_teacher=arm, cycle=cycle, steps=steps)
    asked, base = _questions(runner), runner.value("base", INSTRUCTIONS)
    figures = {}
    for name in ("first-recovered", *ARMS, *(f"{arm}-recovered" for arm in ARMS)):
        loaded, engine = runner.loaded(name)
        for kind, probes in asked.items():
            result = knowledge.ask(loaded.chat, engine, probes, suite=kind, seed=runner.seed)
            figures[f"{kind}, {name}"] = result.details["contains"].value
        figures[f"relative to base, {name}"] = runner.value(name, INSTRUCTIONS) / base
    return figures


def _questions(runner: ExperimentRunner) -> dict[str, Sequence[Probe]]:
    """Return the questions about changed facts with their old and their new answers, and those about the others."""
    corpora = load_snapshots(runner.session.workspace, (1, ARMS["replace"]))
    left = up_to_date(corpora, corpora)[1]
    old = [probe for probe in left.outdated if probe.form == "question"]
    changed = {probe.question for probe in old}
    new = [p for p in corpora[ARMS["replace"]].probes if p.form == "question" and p.question in changed]
    return {"old": old, "new": new, "unchanged": [p for p in left.probes if p.form == "question"]}


RELEASES = Study(
    name="releases",
    claim="after a cycle on a newer version of the documents, questions about what changed are answered by the newer "
    "version, and what did not change is kept",
    source="what users of a model expect; no published figure",
    setting="16 services, a page of 12 texts each; in the second release every other one has another port and another "
    "database; two cycles of mid-training (in the second half of the tokens from earlier documents) and 50 steps of "
    "OPD with two teachers; the second replaces older versions, or keeps them beside the newer ones",
    parts=(
        Part("outdated questions are answered as before", figure("old, replace-recovered"), 0.05, above=False,
             given=Part("that the first cycle taught the old answers", figure("old, first-recovered"), 0.8)),
        Part("they are answered by the newer version: share of what the first cycle taught",
             over("new, replace-recovered", "old, first-recovered"), 0.95),
        Part("what did not change is kept: share of the answers after the first cycle",
             over("unchanged, replace-recovered", "unchanged, first-recovered"), 0.95),
        Part("instruction following, relative to base", figure("relative to base, replace-recovered"), 0.97),
        Part("if older versions are kept, more is answered as before: difference",
             minus("old, keep-recovered", "old, replace-recovered"), 0.0),
    ),
    run=run,
)  # fmt: skip
