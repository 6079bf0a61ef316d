"""Reading of a large corpus: seconds, rate and memory. Run: python -m benchmarks.corpus --megabytes 1000 --write

Writes documents of words drawn by frequency (seeded), a hundredth of them copies and a hundredth copies with few words
changed, and reads them in a process of its own: reading with both kinds of duplicates, probes and questions, packing
into rows. Packing is measured on the first --packed megabytes. Memory is the peak above the imports'.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import _report

WORDS, SENTENCE = 30_000, (6, 20)
COPIES = 100  # one of this many documents is a copy, and one is a copy with few words changed
READ, ASKED, PACKED = PARTS = ("read", "probes and questions", "packed")


def write_documents(folder: Path, megabytes: float, files: int, seed: int) -> None:
    """Write ``files`` Markdown documents of ``megabytes`` in all."""
    rng = random.Random(seed)
    letters = "etaoinshrdlucmfwypvbgk"
    words = ["".join(rng.choices(letters, k=rng.randint(2, 10))) for _ in range(WORDS)]
    weights = list(itertools.accumulate(1 / (rank + 3) for rank in range(WORDS)))
    size, kept = round(megabytes * 1e6 / files), ""
    for number in range(files):
        if number % COPIES == 1:
            text = kept + "\n"
        elif number % COPIES == 2:
            text = _changed(kept, rng)
        else:
            text = kept = _document(number, size, words, weights, rng)
        place = folder / f"{number // 1000:03}"
        place.mkdir(exist_ok=True)
        (place / f"{number:06}.md").write_text(text, encoding="utf-8")


def _document(number: int, size: int, words: list[str], weights: list[float], rng: random.Random) -> str:
    parts, length = [f"# Page {number}\n\n"], 0
    while length < size:
        drawn = rng.choices(words, cum_weights=weights, k=rng.randint(*SENTENCE))
        name = f" {drawn[-1].title()} {rng.randint(10, 9999)}" if rng.random() < 0.2 else ""
        sentence = f"{' '.join(drawn).capitalize()}{name}.{chr(10) * 2 if rng.random() < 0.2 else ' '}"
        parts.append(sentence)
        length += len(sentence)
    return "".join(parts)


def _changed(text: str, rng: random.Random) -> str:
    """Return a text with about one word in 200 changed: a similarity of about 0.95."""
    return " ".join("changed" if rng.random() < 0.005 else word for word in text.split(" "))


def measure(folder: Path, packed: float, seed: int) -> dict[str, Any]:
    """Return seconds of processor time, megabytes and counts of each part, and the peaks of memory (MiB)."""
    from pipelines.data.corpus_reading import gather
    from pipelines.data.document_rows import text_rows
    from recovery.data.corpus.folder import read_corpus
    from recovery.miniature.package import WEIGHTS
    from recovery.models.chat_loading import load_chat

    tokenizer = load_chat(str(WEIGHTS)).tokenizer
    start = _peak()
    found: dict[str, dict[str, Any]] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        before = time.process_time()
        made = work()
        found[name] = {"seconds": time.process_time() - before, "peak": _peak() - start}
        return made

    corpus = timed(READ, lambda: read_corpus(folder, seed=seed))
    found[READ] |= {
        "megabytes": sum(len(d.text.encode()) for d in (*corpus.documents, *corpus.held_out)) / 1e6,
        "documents": len(corpus.documents) + len(corpus.held_out),
        "copies": len(corpus.report.skipped),
        "remark": next((note for note in corpus.report.notes if "nearly" in note), ""),
    }
    snapshot = timed(ASKED, lambda: gather(folder, 1, held_out=0.05, seed=seed))
    # gather reads the documents again.
    found[ASKED]["seconds"] -= found[READ]["seconds"]
    found[ASKED] |= {"probes": len(snapshot.probes), "questions": len(snapshot.questions)}
    ends = itertools.accumulate(len(document.text) for document in corpus.documents)
    part = corpus.documents[: sum(end <= packed * 1e6 for end in ends)]
    rows = timed(PACKED, lambda: text_rows(tokenizer, 2048, part))
    found[PACKED] |= {
        "megabytes": sum(len(d.text.encode()) for d in part) / 1e6,
        "rows": len(rows),
        "tokens": sum(row.targets for row in rows),
    }
    return found


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def body(figures: dict[str, Any], arguments: argparse.Namespace) -> str:
    """Return the figures as a page's text."""
    read, asked, packed = (figures[name] for name in PARTS)
    rows = [
        (
            "read, compared with all others",
            f"{read['seconds']:.0f} s",
            f"{read['megabytes'] / read['seconds']:.1f} MB/s",
        ),
        (
            f"{asked['probes']:,} probes and {asked['questions']:,} questions, from a sample of 8 million characters",
            f"{asked['seconds']:.0f} s",
            "",
        ),
        (
            f"packed: {packed['tokens']:,} tokens of the first {packed['megabytes']:.0f} MB",
            f"{packed['seconds']:.0f} s",
            f"{packed['megabytes'] / packed['seconds']:.2f} MB/s",
        ),
    ]
    return (
        f"{arguments.files:,} files of {arguments.megabytes:g} MB in all, seed {arguments.seed}: {read['documents']:,} "
        f"documents, {read['copies']:,} copies skipped; {read['remark'].split('(')[0].strip()}.\n\n"
        f"{_report.table(('what', 'processor time', 'rate'), rows)}\n\n"
        f"Memory at the peak, above the imports: {read['peak']:,.0f} MiB after reading, {asked['peak']:,.0f} MiB after "
        f"probes and questions, {packed['peak']:,.0f} MiB after packing."
    )


def main() -> None:
    """Write the documents, measure in a new process, print."""
    parser = _report.parser(__doc__, "corpus", "seed")
    parser.add_argument("--megabytes", type=float, default=100.0)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--packed", type=float, default=10.0)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure is not None:
        print(json.dumps(measure(arguments.measure, arguments.packed, arguments.seed)))
        return
    with tempfile.TemporaryDirectory(prefix="recovery-corpus-") as scratch:
        write_documents(Path(scratch), arguments.megabytes, arguments.files, arguments.seed)
        command = [sys.executable, "-m", "benchmarks.corpus", "--measure", scratch]
        command += ["--packed", str(arguments.packed), "--seed", str(arguments.seed)]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    text = body(figures, arguments)
    print(text)
    if arguments.write:
        facts = _report.machine(("transformers", "tokenizers"))
        _report.write("corpus", "Reading a large corpus", text, facts, figures)


if __name__ == "__main__":
    main()
