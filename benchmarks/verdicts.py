"""How often the verdicts that Recovery prints are wrong, and how often they decide, by simulation.

Run: python -m benchmarks.verdicts [--runs N] [--seed S] [--write] [--only WORD]

Each table is about one verdict, with the product's default settings. Items and seeds are drawn with known true values,
and the product's own functions judge them. Where a test must be repeated more often than the product could be called,
it is written here a second time for many samples at once, and in most tables some samples are also judged by the
product, which must agree.

An entry is the share of simulated samples, ± its standard error from the number of simulations; one without ± is
calculated over all samples. ≤ and ≥ are what the product promises. **Bold** entries break their promise by more than
three standard errors where the true rate would just meet it. A promise holds for a student exactly at a bound, the
worst case: one that is clearly worse passes far less often.
"""

from __future__ import annotations

from benchmarks import _report, _verdicts_gate, _verdicts_knowledge, _verdicts_runs, _verdicts_scores
from benchmarks._verdicts_model import Table

PARTS = {
    "gate": _verdicts_gate.tables,
    "knowledge": _verdicts_knowledge.tables,
    "scores": _verdicts_scores.tables,
    "runs": _verdicts_runs.tables,
}


def summary(tables: list[Table]) -> str:
    """Return the entries beyond their promise, table by table, as a Markdown list."""
    lines = []
    for table in tables:
        every = [(labels, rate) for labels, rates in table.rows for rate in rates if rate.promise]
        broken = [(labels, rate) for labels, rate in every if rate.broken]
        words = f"{len(broken)} of {len(every)} entries beyond their promise" if every else "nothing is promised"
        if broken:
            labels, rate = max(broken, key=lambda one: _distance(one[1].value, one[1].most, one[1].least))
            where = ", ".join(f"{name} {label}" for name, label in zip(table.labels, labels, strict=True) if label)
            words += f"; the furthest: {where}: {rate.event}: {rate.value:.3f} ({rate.promise})"
        lines.append(f"- {table.title}: {words}")
    return "\n".join(lines)


def _distance(value: float, most: float | None, least: float | None) -> float:
    """Return the factor by which an error rate exceeds its promise."""
    return value / most if most is not None else (1 - value) / (1 - (least or 0.0))


def main() -> None:
    """Simulate and print; write with --write."""
    parser = _report.parser(__doc__, "verdicts", "seed")
    parser.add_argument("--runs", type=int, default=20_000, help="simulations of the fastest entries")
    parser.add_argument("--only", choices=PARTS, help="one part of the tables")
    options = parser.parse_args()
    if options.write and options.only:
        parser.error("--write takes all parts: leave out --only")
    facts = _report.machine(("numpy", "scipy"), seed=options.seed, runs=f"{options.runs:,} and fewer")
    tables = []
    for name, part in PARTS.items():
        for table in part(options.runs, options.seed) if options.only in (None, name) else ():
            print(table.text(), end="\n\n", flush=True)
            tables.append(table)
    found = summary(tables)
    print(found)
    if options.write:
        body = "\n\n".join([_report.note(__doc__).strip(), found, *(table.text() for table in tables)])
        data = {"rows": [row for table in tables for row in table.data()]}
        _report.write("verdicts", "How often the verdicts are wrong", body, facts, data)


if __name__ == "__main__":
    main()
