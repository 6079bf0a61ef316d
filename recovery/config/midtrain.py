"""Settings of mid-training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from recovery.config.model import TrainingConfig
from recovery.engines import check_address, is_address
from recovery.errors import UsageError
from recovery.settings import setting, share

WRITER_FILE = "rewritten.jsonl"  # texts beside the documents that they are about, as a writer


@dataclass(frozen=True)
class MidtrainConfig(TrainingConfig):
    """Continued training on documents.

    Chat is replayed as completions of the clean base, or from ``replay_data``; "kl" as its loss is arXiv 2605.26097,
    ``project`` is A-GEM (arXiv 1812.00420). Augmented text takes ``augment_share`` of the tokens that would otherwise
    be the documents', less if it would be repeated more than four times as often as they are. With a ``writer`` (arXiv
    2508.09494) only text that the passage supports is used, and its tokens count as sampled by this stage.
    """

    docs: Path | None = setting(
        None,
        "The documents: a folder, a file (.md .html .pdf ...), a table (FILE:COLUMN), a folder of "
        "datasets, or ORG/DATASET on the hub (docs/corpus.md).",
        metavar="SOURCE",
    )
    student: str = setting("latest", "Checkpoint to train: a name, a folder, a hub id.", metavar="NAME")
    steps: int | None = setting(None, "Maximum number of optimizer steps.", minimum=1)
    epochs: float | None = setting(None, "Passes over the documents.", above=0)
    batch_tokens: int | None = setting(
        None,
        "Tokens trained on per step.",
        minimum=16,
        shown="8192, fewer for a small corpus, so that it gets about a hundred steps",
    )
    row_length: int = setting(2048, "Maximum row length in tokens; longer documents are split.", minimum=16)
    replay: float = share(
        0.0, "Share of trained tokens that are chat with responses of the clean model itself, e.g. 0.3."
    )
    replay_loss: str = setting(
        "answers",
        "Loss on that chat: cross-entropy of the responses, or forward KL to the clean model's distribution at each "
        "token.",
        choices=("answers", "kl"),
    )
    replay_prompts: int = setting(1000, "Prompts that the replayed chat is sampled on.", minimum=1)
    replay_focus: float = share(
        0.0,
        "Share of these prompts drawn by the kinds of instruction that the clean model itself fails, "
        "which are forgotten first; the rest evenly.",
    )
    replay_data: Path | None = setting(
        None, "Conversations of your own to replay instead: JSON Lines, or a table, of messages.", metavar="SOURCE"
    )
    replay_documents: float | None = share(
        None, "Share of document tokens taken from earlier cycles' documents.", shown="0; inside a cycle 0.5"
    )
    anchor: float = setting(0.0, "Weight of the KL penalty to base on the documents.", minimum=0)
    project: bool = setting(
        False, "Remove from each gradient the component that would raise the loss on base's own chat (A-GEM)."
    )
    router_loss: float | None = setting(
        None,
        "Weight of the loss that keeps the experts of a mixture of experts evenly used; 0: off.",
        minimum=0,
        shown="router_aux_loss_coef in the model's config.json",
    )
    held_out: float = share(0.05, "Share of documents held out for evaluation.", most=0.5)
    fewest_questions: int = setting(
        20, "Least number of questions that measure what is learnt: with fewer nothing is trained.", minimum=0
    )
    near_duplicates: str = setting(
        "keep",
        "Documents that share 90% of all sequences of five words with an earlier one: count them, or skip them.",
        choices=("keep", "skip"),
    )
    older_versions: str = setting(
        "replace",
        "Earlier documents that have a newer version here: replace them, or keep both as valid.",
        choices=("replace", "keep"),
    )
    withdrawn: tuple[str, ...] = setting(
        (),
        "A document that is no longer valid, or a folder or pattern of them ('notes/*'), by the path below the folder: "
        "left out here, no longer rehearsed or asked about; may be repeated.",
        flag="--withdraw",
        metavar="NAME",
    )
    augment: int = setting(
        0, "Paraphrases of each fact of the documents to train on in addition, e.g. 4; 0: none.", minimum=0
    )
    augment_share: float = share(0.3, "Share of this cycle's document tokens that are augmented text.")
    augment_questions: float = share(
        0.5,
        "Share of the augmented text that is questions with answers: from questions.jsonl, and generated "
        "ones about facts of no probe.",
    )
    writer: str | None = setting(
        None,
        "A checkpoint or a chat server that rewrites passages for --augment, or 'rewritten.jsonl' beside "
        "the documents (docs/corpus.md). Unsupported sentences are dropped; their tokens are counted.",
        metavar="NAME",
    )
    writer_questions: bool = setting(
        False, "Train also on the questions with answers among the texts of rewritten.jsonl."
    )
    max_new_tokens: int = setting(256, "Maximum tokens of a completion.", minimum=1)
    prompts: Path | None = setting(
        None,
        "Ordinary prompts of your own: a JSONL file, a table (FILE:COLUMN, docs/chat.md), or a folder of "
        "train/development/test.jsonl. Built in: 'composer', and 'composer:chat' without verifiable "
        "instructions.",
        metavar="SOURCE",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        chat, set_share = self.replay or self.project, "set the share of chat, as in --replay 0.3"
        if self.steps is not None and self.epochs is not None:
            raise UsageError("--steps and --epochs both set the length of mid-training: give one of them")
        if self.distils_replay and not chat:
            raise UsageError(f"--replay-loss kl needs --replay or --project: {set_share}")
        if self.replay_data is not None and not chat:
            raise UsageError(f"--replay-data needs --replay or --project: {set_share}")
        if self.replay_focus > 0 and (self.replay_data is not None or not chat):
            raise UsageError(f"--replay-focus chooses the prompts of --replay: {set_share}, and omit --replay-data")
        if self.augment and not self.augment_share:
            raise UsageError("--augment-share 0 leaves no tokens for the paraphrases: raise it, or set --augment 0")
        if self.writer is not None and not self.augment:
            raise UsageError(
                "--writer rewrites passages for --augment: set the number of paraphrases, as in --augment 4"
            )
        if self.writer_questions and self.writer != WRITER_FILE:
            raise UsageError(f"--writer-questions reads {WRITER_FILE}: add --writer {WRITER_FILE}")
        if self.writer_questions and not self.augment_questions:
            raise UsageError("--augment-questions 0 leaves no tokens for the --writer-questions: raise it")
        if self.writer is not None and self.writer.lower().endswith(".jsonl") and self.writer != WRITER_FILE:
            raise UsageError(
                f"--writer {self.writer}: texts are read beside the documents that they are about: put them there as "
                f"{WRITER_FILE}, and give --writer {WRITER_FILE}"
            )
        if self.writer is not None and is_address(self.writer):
            check_address(self.writer, "--writer")

    @property
    def samples_replay(self) -> bool:
        """Whether the clean model answers the chat that is replayed, or that guards a projection."""
        return (self.replay > 0 or self.project) and self.replay_data is None

    @property
    def distils_replay(self) -> bool:
        """Whether the clean model scores the replayed chat."""
        return self.replay_loss == "kl"

    @property
    def skips_near(self) -> bool:
        """Whether near-duplicates are left out."""
        return self.near_duplicates == "skip"

    @property
    def passes(self) -> float:
        """Number of epochs, used if ``steps`` is not given."""
        return 3.0 if self.epochs is None else self.epochs
