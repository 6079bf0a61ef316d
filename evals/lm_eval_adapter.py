"""lm-eval model class over the rollout engine, which evaluates the model in memory.

lm-eval's own backends load a model from a path. Here its three kinds of request use the rollout engine and the scorer
of training, with the current weights.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.evaluator import evaluate
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from evals.generation import Answer, generate
from evals.knowledge import document_prefix
from evals.lm_eval_samples import task_result
from evals.lm_eval_tasks import quiet
from evals.loglikelihood import likelihoods
from recovery.models.loaded import Loaded
from recovery.rollouts.engine import Engine, Progress, Sampling
from recovery.types import Message, SuiteResult


class EngineLM(TemplateLM):
    """lm-eval model over ``engine`` (generation) and ``loaded`` (log-likelihoods), which share their weights.

    ``max_gen_toks`` is for tasks without a limit of their own.
    ``answers`` holds the last response to each text, with its number of tokens, which lm-eval does not keep. Chat
    requests are encoded by the model's :class:`~recovery.models.chat_template.ChatFormat`, as in training.
    """

    def __init__(
        self,
        loaded: Loaded,
        engine: Engine,
        *,
        max_gen_toks: int = 256,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        super().__init__()
        self.loaded, self.engine, self.tokenizer = loaded, engine, loaded.tokenizer
        self.max_gen_toks, self.seed, self.progress = max_gen_toks, seed, progress
        self.answers: dict[str, Answer] = {}
        self._before = document_prefix(loaded)
        self._chat_ids: dict[str, list[int]] = {}
        self._begun: set[str] = set()

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text: the tokenizer's own, otherwise one that ends a response."""
        eos = self.tokenizer.eos_token_id
        return int(eos) if eos is not None else min(self.loaded.chat.end_ids)

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without context: the beginning-of-text token if there is one."""
        bos = self.tokenizer.bos_token_id
        return int(bos) if bos is not None else self.eot_token_id

    @property
    def tokenizer_name(self) -> str:
        """Key of lm-eval's request caches."""
        return self.loaded.path.replace("/", "__")

    @property
    def max_length(self) -> int:
        """The model's context window, in tokens."""
        return self.loaded.max_length

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Return the model's chat template, which :meth:`apply_chat_template` applies."""
        return "" if chat_template is False else str(self.tokenizer.chat_template or "plain")

    def apply_chat_template(self, chat_history: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """Return the conversation as text; its exact tokens are cached for when lm-eval sends the text back."""
        messages = list(chat_history)
        if add_generation_prompt:
            text = self.loaded.chat.render(messages, generation_prompt=True)
            self._chat_ids[text] = self.loaded.chat.prompt_ids(messages)
            return text
        text, ids = self.loaded.chat.begun(messages)  # lm-eval gives the beginning of the response
        self._chat_ids[text] = ids
        self._begun.add(text)
        return text

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return token ids; what the tokenizer puts before a text is added at most once, and never to a chat prompt.

        What it puts after a text, such as an end token, is not: a continuation or a response follows.
        """
        if string in self._chat_ids:
            return list(self._chat_ids[string])
        bos = self.tokenizer.bos_token
        if add_special_tokens is None:
            add_special_tokens = not (bos and string.startswith(bos))
        ids = list(self.tokenizer(string, add_special_tokens=False)["input_ids"])
        return [*self._before, *ids] if add_special_tokens else ids

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return responses to (text, generation arguments) requests, cut at the first stop string of each."""
        kinds: dict[Sampling, list[int]] = {}
        for index, request in enumerate(requests):
            kinds.setdefault(self._sampling(request.args[1]), []).append(index)
        results = [""] * len(requests)
        for sampling, members in kinds.items():
            prompts = [self._prompt(requests[index].args[0], sampling.max_new_tokens) for index in members]
            completions = generate(self.engine, prompts, sampling, window=self.max_length, progress=self.progress)
            for index, completion in zip(members, completions, strict=True):
                asked, arguments = requests[index].args
                made = Answer("", 0, False, fits=False)
                if completion is not None:
                    text = self._text(completion.ids, asked, arguments.get("until") or ())
                    made = Answer(text, len(completion.ids), completion.finished)
                results[index], self.answers[asked] = made.text, made
        return results

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Return (log-probability in nats, whether it is greedy) for (context, continuation) requests."""
        return super().loglikelihood(requests, disable_tqdm=True)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-probability (nats) of whole texts, in disjoint windows of the model's length."""
        pieces, owners = [], []
        for index, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0], add_special_tokens=False)
            windows = get_rolling_token_windows(
                token_list=tokens, prefix_token=self.prefix_token_id, max_seq_len=self.max_length, context_len=1
            )
            for context, continuation in map(make_disjoint_window, windows):
                pieces.append((context, [continuation]))
                owners.append(index)
        totals = [0.0] * len(requests)
        found = likelihoods(self.loaded, pieces, progress=self.progress)
        for owner, scored in zip(owners, found, strict=True):
            totals[owner] += scored[0].total
        return totals

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        if context in self._chat_ids:
            return list(self._chat_ids[context]), self.loaded.chat.encode(continuation)
        ids, rest = super()._encode_pair(context, continuation)
        return list(ids), list(rest)

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        pairs = [(context, [continuation]) for _, context, continuation in requests]
        scored = likelihoods(self.loaded, pairs, progress=self.progress)
        return [(likelihood.total, likelihood.greedy) for (likelihood,) in scored]

    def _sampling(self, arguments: Mapping[str, Any]) -> Sampling:
        limit = int(arguments.get("max_gen_toks") or arguments.get("max_new_tokens") or self.max_gen_toks)
        if not arguments.get("do_sample"):
            return Sampling(limit, temperature=0.0, seed=self.seed)
        temperature, top_p = float(arguments.get("temperature", 1.0)), float(arguments.get("top_p", 1.0))
        return Sampling(limit, temperature, top_p, self.seed)

    def _prompt(self, text: str, limit: int) -> list[int]:
        prompt = self.tok_encode(text)
        if text in self._chat_ids:  # truncation on the left would break the turns of a chat prompt
            return prompt
        return prompt[-max(self.max_length - limit, self.max_length // 2) :]

    def _text(self, ids: Sequence[int], asked: str, until: str | Sequence[str]) -> str:
        """Return the response to a text, up to the first stop string."""
        if asked in self._chat_ids:
            text = self.loaded.chat.text(ids, begun=asked in self._begun)
        else:
            ends = self.loaded.chat.end_ids
            length = next((i for i, token in enumerate(ids) if token in ends), len(ids))
            text = self.tokenizer.decode(ids[:length], skip_special_tokens=True)
        for stop in (until,) if isinstance(until, str) else until:
            if stop:
                text = text.split(stop, 1)[0]
        return text


_FEWSHOT_SEED = 1234  # the default of lm-eval's command


def run_lm_eval(lm: EngineLM, tasks: Mapping[str, Any], *, limit: int | None = None) -> dict[str, Any]:
    """Run lm-eval's own evaluation loop on loaded tasks; return {"results", "samples"} by task.

    The chat template is applied to tasks that generate but not to those that score given continuations, the usual
    convention for both.
    """
    merged: dict[str, Any] = {"results": {}, "samples": {}}
    with quiet():
        for chat in (True, False):
            chosen = {name: task for name, task in tasks.items() if (task.OUTPUT_TYPE == "generate_until") is chat}
            if chosen:
                part = _evaluate(lm, chosen, limit, chat)
                for kept in merged:
                    merged[kept] |= part[kept]
    return merged


def run_tasks(lm: EngineLM, tasks: Mapping[str, Any], *, limit: int | None = None) -> list[SuiteResult]:
    """Run loaded lm-eval tasks (:func:`~evals.lm_eval_tasks.load_tasks`); return one result per task, with its items.

    The headline is lm-eval's own aggregate. Its standard error is computed over the items if the aggregate is their
    mean (so that it can be paired), otherwise it is lm-eval's.
    """
    results = run_lm_eval(lm, tasks, limit=limit)
    found = sorted(results["samples"].items())
    return [task_result(name, samples, results["results"][name]) for name, samples in found]


def _evaluate(lm: EngineLM, tasks: Mapping[str, Any], limit: int | None, chat: bool) -> Mapping[str, Any]:
    for task in tasks.values():
        task.build_all_requests = _without_bar(task.build_all_requests)
        # Every evaluation shows the same examples, those of lm-eval's own command; without a seed they are random.
        task.set_fewshot_seed(_FEWSHOT_SEED)
    results = evaluate(
        lm,
        {"tasks": dict(tasks)},
        limit=limit,
        bootstrap_iters=0,
        log_samples=True,
        apply_chat_template=chat,
        fewshot_as_multiturn=chat,
    )
    assert results is not None  # None only on other ranks of a distributed run
    return results


def _without_bar(build: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``build`` to suppress its progress bar, which lm-eval cannot switch off."""

    def quietly(**arguments: Any) -> None:
        with redirect_stderr(io.StringIO()):
            build(**arguments)

    return quietly
