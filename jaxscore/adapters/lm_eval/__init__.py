"""jaxscore as a model of lm-evaluation-harness: `import jaxscore.adapters.lm_eval` registers it.

    lm_eval.simple_evaluate(model="jaxscore", model_args={"pretrained": FOLDER}, tasks=[...])

The numbers equal lm-evaluation-harness' `hf` at batch size 1, in float32, by eager attention
and without its logits cache. Text that requests share is computed once.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxscore.errors import InputError, install_extra

try:
    # Before `register_model`: get_model imports the other models only if none is registered.
    import lm_eval.models  # noqa: F401
except ModuleNotFoundError as problem:
    if (problem.name or "").partition(".")[0] != "lm_eval":
        raise
    raise ModuleNotFoundError(
        f"jaxscore.adapters.lm_eval needs lm-evaluation-harness; {install_extra('lm-eval')}",
        name="lm_eval",
    ) from None

from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook, TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import configure_pad_token

from jaxscore.adapters.arguments import read_arguments
from jaxscore.adapters.lm_eval import outputs
from jaxscore.adapters.lm_eval.encoding import ChatTemplate, Encoder, Rolling, check_unicode
from jaxscore.adapters.lm_eval.generation import TextGenerator
from jaxscore.adapters.lm_eval.outputs import CallLog, Details
from jaxscore.adapters.model import Answer, Question, answer_questions, load_model
from jaxscore.errors import one_line
from jaxscore.io import processes
from jaxscore.io.local_path import local_path
from jaxscore.text.bounded_tokenizer import decode_ids

log = logging.getLogger("lm_eval.jaxscore")  # lm-evaluation-harness displays its child loggers

QUOTED = 80  # characters of a text in a message


@register_model("jaxscore")
class JaxscoreLM(TemplateLM):
    """Scores and continues texts for lm-evaluation-harness.

    Args:
        pretrained: a folder, a hub id, "demo", or a `Scorer`.
        model_args: see `jaxscore.adapters.arguments`.

    Attributes:
        scorer: computes all numbers and texts.
        tokenizer: transformers' tokenizer.

    Raises:
        ArgumentError: an unknown name or an invalid value; a TypeError.
        InputError: the model cannot be used; the message gives the reason.
    """

    def __init__(self, pretrained: Any = None, **model_args: Any) -> None:
        super().__init__()
        self._args, idle = read_arguments({"pretrained": pretrained, **model_args})
        if idle:
            log.info("jaxscore ignores these arguments: %s", ", ".join(sorted(idle)))
        self._model = load_model(self._args)
        self.scorer = self._model.scorer
        self.tokenizer = configure_pad_token(self._model.tokenizer)
        self._encoder = Encoder(self.tokenizer, self._args.add_bos_token, self.prefix_token_id)
        self._texts = TextGenerator(
            self.scorer,
            self._encoder,
            self.max_length,
            self.max_gen_toks,
            self._args.think_end_token,
        )
        self._chat = ChatTemplate(self.tokenizer, self._args.chat_template_args)
        path = self._args.details
        self._details = None if path is None else Details(local_path(path), self.scorer.encoder)
        self._noise: list[dict[str, Any]] = []
        self.batch_sizes: dict[str, int] = {}

    @property
    def eot_token_id(self) -> Any:
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> Any:
        """The token before a text without context."""
        if self._args.prefix_token_id is not None:
            return self._args.prefix_token_id
        bos = self.tokenizer.bos_token_id
        return self.tokenizer.eos_token_id if bos is None else bos

    @property
    def max_length(self) -> int:
        return self._model.length

    @property
    def max_gen_toks(self) -> int:
        return self._args.max_gen_toks

    @property
    def tokenizer_name(self) -> str:
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """Return the ids of a text, see `Encoder.encode`."""
        [ids] = self._encoder.encode([string], add_special_tokens)
        return ids

    def tok_decode(self, tokens: Any, skip_special_tokens: bool = True) -> str:
        """Return the text of ids."""
        return decode_ids(self.tokenizer, tokens, skip_special_tokens=skip_special_tokens)

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Return the text of a conversation, see `ChatTemplate.render`."""
        return self._chat.render(chat_history, add_generation_prompt=add_generation_prompt)

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Compute the log-likelihood of each continuation in nats, and if its tokens are greedy.

        Raises:
            InputError: a request that cannot be scored; the message names it.
        """
        if self._args.enable_thinking:
            raise InputError(
                "enable_thinking: the log-likelihood of an answer without its thinking is "
                "meaningless; leave it out, or choose tasks that generate"
            )
        name_of = self._names(requests)
        questions = self._encoder.pairs([request.args for request in requests], name_of)
        return self._score(questions, name_of, disable_tqdm, requests)

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[Any, list[int], list[int]]],
        disable_tqdm: bool = False,
        **kwargs: Any,
    ) -> list[tuple[float, bool]]:
        """Compute `loglikelihood` of token ids."""
        contexts: dict[tuple[int, ...], np.ndarray] = {}
        questions = []
        for _, context, continuation in requests:
            key = tuple(context)
            ids = contexts.setdefault(key, np.array(key, np.int32))
            questions.append(Question(ids, np.array(continuation, np.int32)))
        return self._score(questions, lambda k: f"request {k}", disable_tqdm, None)

    def _score(
        self,
        questions: Sequence[Question],
        name_of: Callable[[int], str],
        quiet: bool,
        requests: Sequence[Instance] | None,
    ) -> list[tuple[float, bool]]:
        results: list[Any] = [None] * len(questions)
        sequences: list[Any] = [None] * len(questions)
        with self._log_call(quiet, "log-likelihoods", len(questions)):
            for window in answer_questions(self.scorer, questions, self.max_length, name_of):
                for answer in window:
                    for index in answer.indices:
                        results[index] = answer.total, answer.greedy
                        if self._args.audit_noise:
                            sequences[index] = answer.sequence
                        if requests is not None:
                            self._finish(requests[index], [answer], results[index])
                self._flush()
        if self._args.audit_noise and requests:
            totals = [total for total, _ in results]
            noise = outputs.audit_noise(
                self.scorer, self._args.audit_noise, requests, sequences, totals
            )
            self._noise.append(noise)
        return results

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Compute each text's log-likelihood in nats, in disjoint windows after the prefix token.

        Raises:
            InputError: a text that cannot be scored; the message names it.
        """
        texts = [request.args[0] for request in requests]
        name_of = self._names(requests)
        if texts and self.prefix_token_id is None:
            raise InputError(
                "loglikelihood_rolling: the tokenizer has neither BOS nor EOS to put before a "
                "text; give prefix_token_id"
            )
        check_unicode(texts, name_of)
        rolling = Rolling(self._encoder.encode(texts), self.prefix_token_id, self.max_length)
        text_of = rolling.text_of
        totals = [0.0] * len(texts)
        with self._log_call(disable_tqdm, "rolling log-likelihoods", len(text_of)):
            for window in answer_questions(
                self.scorer, rolling.questions, self.max_length, lambda k: name_of(text_of[k])
            ):
                for k, answer in ((k, scored) for scored in window for k in scored.indices):
                    if (of_text := rolling.add_answer(k, answer)) is not None:
                        index = text_of[k]
                        totals[index] = sum(scored.total for scored in of_text)
                        self._finish(requests[index], of_text, totals[index])
                self._flush()
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Continue each context up to a stop string, an EOS, or its number of tokens.

        Raises:
            InputError: a request that cannot be continued; the message names it.
        """
        arguments = [request.args for request in requests]
        name_of = self._names(requests)
        texts: list[Any] = [None] * len(requests)
        questions: list[Any] = [None] * len(requests)
        with self._log_call(disable_tqdm, "texts", len(requests)):
            for index, text, prompt, ids in self._texts.generate(arguments, name_of):
                texts[index] = text
                self.cache_hook.add_partial("generate_until", requests[index].args, text)
                questions[index] = Question(prompt, ids)
            if self._details is not None:
                # The prompts are truncated already and must not be truncated again.
                n_positions = self.scorer.model.max_positions
                for window in answer_questions(self.scorer, questions, n_positions, name_of):
                    for answer in window:
                        for index in answer.indices:
                            self._details.write(requests[index], [answer])
        self._flush()
        return texts

    def get_model_info(self) -> dict[str, Any]:
        """Return the model for the results file: hf's keys, and jaxscore's under `jaxscore`."""
        return outputs.model_info(self._model, self._args, self._noise)

    def close(self) -> None:
        """Close `details` and the journal, but not a `Scorer` that was passed in."""
        if self._details is not None:
            self._details.close()
        if self._model.folder is not None:
            self.scorer.close()

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """Use the cache of `--use_cache`.

        Raises:
            InputError: the cache has answers of another model.
        """
        if cache_hook.dbdict is not None:
            about = self.scorer.about and {
                **self.scorer.about,
                "max_length": self.max_length,
                **{name: getattr(self._args, name) for name in outputs.CACHE_ARGUMENTS},
            }
            outputs.claim_cache(cache_hook.dbdict, about)
        super().set_cache_hook(cache_hook)

    def _finish(self, request: Instance, answers: list[Answer], result: Any) -> None:
        """Cache a request's result, and write its details."""
        self.cache_hook.add_partial(request.request_type, request.args, result)
        if self._details is not None:
            self._details.write(request, answers)

    def _flush(self) -> None:
        if self._details is not None:
            self._details.flush()

    def _log_call(self, quiet: bool, unit: str, n: int) -> CallLog:
        return CallLog(self.scorer, quiet or not processes.is_first(), unit, n)

    def _names(self, requests: Sequence[Instance]) -> Callable[[int], str]:
        """Return a function that names a request by task, document, choice, and end of the text."""

        def name_of(index: int) -> str:
            request = requests[index]
            text = one_line(str(request.args[0])[-QUOTED:], QUOTED)
            choice = f"{request.task_name}, document {request.doc_id}, choice {request.idx}"
            return f"{choice} (... {text!r})"

        return name_of
