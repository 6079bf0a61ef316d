"""Withdrawal on the miniature: a cycle, some of its services withdrawn, the cycle again without them, its certificate.

Run: python -m benchmarks.withdrawal [--seeds 0,1,2] [--services 5] [--workspace FOLDER] [--distill-steps N] [--write]

A service of the fictional world has five facts, in twelve documents: five services are a document of 25 facts. Each
seed has its own corpus, training and services. The settings are those of `recover demo`, which trains on documents
alone; a run that was stopped goes on where it ended.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import _report
from db import queries
from db.cycle_evidence import CERTIFICATE
from pipelines.cycle import run_plan, start_plan
from pipelines.cycle_plan import read_plan
from pipelines.data.corpus_snapshot import load_snapshot
from pipelines.experiments.demo import MINIATURE, MINIATURE_SCENARIO, demo
from pipelines.runtime.session import Session
from pipelines.withdrawal import find_withdrawal, rebuild_plan
from recovery.config import Recipe
from recovery.miniature.corpora import write_corpora

LIMIT = 1000
HEADER = (
    "seed", "facts (questions)", "K taught, bits", "K left, bits", "at most", "facts back",
    "continued before, after, base", "text gone", "others kept",
)  # fmt: skip


def certificate(folder: Path, seed: int, services: int, steps: int) -> dict[str, Any]:
    """Run a seed in its own workspace, as far as that is not done, and return its certificate."""
    recipe = Recipe("benchmarks.withdrawal", {"distill": {"steps": steps}, "eval": {"limit": LIMIT}})
    scenario = replace(
        MINIATURE_SCENARIO, cycles=1, write=lambda target, number: write_corpora(target, 1, number), recipe=recipe
    )
    with Session.open(folder / f"seed-{seed}", model=MINIATURE, purpose="benchmarks.withdrawal") as session:
        database, experiment = session.tracker.database, session.experiment_id
        if "cycle-1/recovered" not in {one.name for one in session.registry.all()}:
            demo(session, seed=seed, flags={}, scenario=scenario)
        if not queries.events(database, experiment, kind=CERTIFICATE):
            if (plan := read_plan(session)) is not None:
                run_plan(session, plan)
            else:
                start_plan(session, rebuild_plan(session, find_withdrawal(session, _names(session, seed, services))))
        (event,) = queries.events(database, experiment, kind=CERTIFICATE)
        return dict(event.data)


def _names(session: Session, seed: int, services: int) -> list[str]:
    """Return patterns of documents and questions of some services, drawn with the seed."""
    known = sorted({document.id.partition("-")[0] for document in load_snapshot(session.workspace, 1).documents})
    return [f"{name}*" for name in sorted(random.Random(seed).sample(known, services))]


def row(seed: int, found: dict[str, Any]) -> tuple[str, ...]:
    """Return a certificate as a row of the table."""
    facts, strings, others = found["parts"]
    bits = [
        "{bits:.2f} ({low:.2f} to {high:.2f})".format(**facts[name]) if name in facts else ""
        for name in ("taught", "left")
    ]
    most = f"{facts['taught']['bits'] / 4:.2f}" if "taught" in facts else ""
    continued = ", ".join(str(strings["continued"][name]) for name in ("before", "after", "base"))
    shown = [one["verdict"] for one in (facts, strings, others)]
    count = f"{facts['facts']} ({facts['questions']})"
    return (str(seed), count, *bits, most, shown[0], continued, *shown[1:])


def main() -> None:
    """Run the seeds and print the table."""
    parser = _report.parser(__doc__, "withdrawal")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--services", type=int, default=5)
    parser.add_argument("--distill-steps", type=int, default=100)
    parser.add_argument("--workspace", type=Path, default=Path("withdrawal-workspaces"))
    given = parser.parse_args()
    machine = _report.machine(("torch", "transformers"))
    seeds = [int(part) for part in given.seeds.split(",")]
    found = {seed: certificate(given.workspace, seed, given.services, given.distill_steps) for seed in seeds}
    text = _report.table(HEADER, [row(seed, one) for seed, one in found.items()])
    print(text)
    if given.write:
        about = (
            f"{given.services} services withdrawn, {given.distill_steps} steps of recovery, 95% intervals over facts."
        )
        data = {"services": given.services, "distill_steps": given.distill_steps, "certificates": found}
        print(_report.write("withdrawal", "Withdrawal on the miniature", f"{about}\n\n{text}", machine, data))


if __name__ == "__main__":
    main()
