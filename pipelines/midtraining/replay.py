"""Chat replayed in mid-training: the user's, or the clean model's answers to ordinary prompts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from pipelines.data.document_rows import chat_rows
from pipelines.data.mixing import choose, shuffled
from pipelines.data.prompt_sampler import weakest
from pipelines.runtime.generation import CompletedConversation, answered_before
from pipelines.runtime.model_loading import FrozenModel
from pipelines.runtime.stage import Stage
from recovery.batching import Row
from recovery.config import MidtrainConfig
from recovery.data.prompt_files import REPLAY_DATA, load_conversations
from recovery.data.prompts import behaviour_prompts, without_held_out
from recovery.errors import UsageError
from recovery.losses.objective import MAIN_TEACHER
from recovery.models.chat_loading import load_chat
from recovery.rng import RandomStream
from recovery.rollouts.engine import Sampling
from recovery.types import Prompt
from recovery.workspace import Checkpoint

# Conversations per step whose loss a projected gradient may not raise.
GUARD_ROWS = 16


def replayed(stage: Stage, frozen: FrozenModel, config: MidtrainConfig, base: Checkpoint) -> list[Row]:
    """Return packed rows of chat, trained on directly or towards the clean model's scores: the user's chat, or the
    clean model's completions of training prompts.
    """
    prompts, notes = behaviour_prompts(base.path, config.prompts, config.seed), list[str]()
    if config.replay_data is not None:
        given, cut = f"{REPLAY_DATA} {config.replay_data}", set[int]()
        said = load_conversations(config.replay_data, option=REPLAY_DATA, notes=notes)
        found = without_held_out(said, prompts, given=given, notes=notes)
        problem = f"{given}: no conversation fits in the context of {base.name}"
    else:
        sampling = Sampling(config.max_new_tokens, seed=config.seed)
        answered = _answered(stage, frozen, config, base, prompts.train, sampling)
        found = [one.messages for one in answered]
        cut = {index for index, one in enumerate(answered) if not one.finished}
        problem = (
            f"none of the clean model's answers {'began' if config.distils_replay else 'ended'} within "
            f"{config.max_new_tokens} tokens, so there is no chat to replay: raise --max-new-tokens, or omit --replay"
        )
    chat = load_chat(str(base.weights), config.template_args, adapter=base.adapter)
    rows = chat_rows(chat, base, found, config.row_length, cut, notes=notes)
    if not rows:
        raise UsageError(problem)
    for note in notes:
        stage.session.display.say(note)
    return [replace(row, teacher=MAIN_TEACHER) for row in rows] if config.distils_replay else rows


def _answered(
    stage: Stage,
    frozen: FrozenModel,
    config: MidtrainConfig,
    base: Checkpoint,
    prompts: Sequence[Prompt],
    sampling: Sampling,
) -> list[CompletedConversation]:
    """Return the clean model's conversations to be replayed; the last of them on prompts of its weakest kinds."""
    weak = round(config.replay_prompts * config.replay_focus)
    if weak and not any(prompt.checks for prompt in prompts):
        stage.session.display.say("no prompt has checks by which answers are judged: all are replayed evenly")
        weak = 0
    # A distribution can be learnt from the beginning of an answer; as an example it would teach to stop there.
    whole = functools.partial(answered_before, unfinished=config.distils_replay)
    even = shuffled(prompts, config.seed, RandomStream.BEHAVIOUR_PROMPTS)
    answered, _ = whole(stage, frozen, base, even, sampling, count=config.replay_prompts - weak)
    if not weak:
        return answered
    chosen = weakest(answered, prompts, weak, config.seed)
    more, _ = whole(stage, frozen, base, chosen, sampling, count=weak, counted="spoken-weak.json")
    return [*answered, *more]


def guard_rows(config: MidtrainConfig, chat_rows: Sequence[Row]) -> Callable[[int], list[Row]]:
    """Return the hook that selects the chat rows whose loss a step may not raise."""
    return lambda step: choose(
        chat_rows, min(GUARD_ROWS, len(chat_rows)), step, config.seed, stream=RandomStream.GUARD_ROWS
    )
