"""jaxscore as a model of lm-evaluation-harness: `import jaxscore.adapters.lm_eval` registers it.

    lm_eval.simple_evaluate(model="jaxscore", model_args={"pretrained": FOLDER}, tasks=[...])

The numbers are those of lm-evaluation-harness' `hf` at batch size 1, in float32, by eager attention
and without its logits cache. Text that requests share is computed once.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxscore.errors import InputError, install_extra

try:
    # Before `register_model`: get_model imports the other models only while none is registered.
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

from jaxscore.adapters import arguments
from jaxscore.adapters import model as making
from jaxscore.adapters.lm_eval import encoding, outputs
from jaxscore.adapters.lm_eval.encoding import ChatTemplate, Encoder, Rolling
from jaxscore.adapters.lm_eval.generation import Texts
from jaxscore.adapters.lm_eval.outputs import Details, Shown
from jaxscore.adapters.scoring import Answer, Asked, answers
from jaxscore.io import processes
from jaxscore.io.local_path import local_path
from jaxscore.io.printable import one_line
from jaxscore.text.bounded_tokenizer import decode

log = logging.getLogger("lm_eval.jaxscore")  # their handler shows what is below theirs

LONGEST = 80  # characters of a text in a message


@register_model("jaxscore")
class JaxscoreLM(TemplateLM):
    """Scores and continues texts for lm-evaluation-harness.

    Attributes:
        scorer: computes all of it.
        tokenizer: transformers' own kind.
    """

    def __init__(self, pretrained: Any = None, **model_args: Any) -> None:
        """Args:
            pretrained: a folder, a hub id, "demo", or a `Scorer`.
            model_args: see `jaxscore.adapters.arguments`.

        Raises:
            ArgumentError: a name that does not exist, or a value that cannot be; a TypeError.
            InputError: the model cannot be used, and why.
        """
        super().__init__()
        self._args, idle = arguments.read({"pretrained": pretrained, **model_args})
        if idle:
            log.info("these arguments decide nothing in jaxscore: %s", ", ".join(sorted(idle)))
        self._made = making.make(self._args)
        self.scorer = self._made.scorer
        self.tokenizer = configure_pad_token(self._made.tokenizer)
        self._encoder = Encoder(self.tokenizer, self._args.add_bos_token, self.prefix_token_id)
        self._texts = Texts(
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
        """What a text without context is scored after."""
        if self._args.prefix_token_id is not None:
            return self._args.prefix_token_id
        bos = self.tokenizer.bos_token_id
        return self.tokenizer.eos_token_id if bos is None else bos

    @property
    def max_length(self) -> int:
        return self._made.length

    @property
    def max_gen_toks(self) -> int:
        return self._args.max_gen_toks

    @property
    def tokenizer_name(self) -> str:
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """Ids of one text, see `Encoder.encode`."""
        [ids] = self._encoder.encode([string], add_special_tokens)
        return ids

    def tok_decode(self, tokens: Any, skip_special_tokens: bool = True) -> str:
        """The text of some ids."""
        return decode(self.tokenizer, tokens, skip_special_tokens=skip_special_tokens)

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """A conversation as text, see `ChatTemplate.render`."""
        return self._chat.render(chat_history, add_generation_prompt=add_generation_prompt)

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Log-likelihood in nats of each continuation, and whether all of it is greedy.

        Raises:
            InputError: a request that cannot be scored; the message names it.
        """
        if self._args.enable_thinking:
            raise InputError(
                "enable_thinking: a log-likelihood of an answer without its thinking means "
                "nothing; leave it out, or choose tasks that generate"
            )
        pairs = [request.args for request in requests]
        named = self._named(requests)
        asked = self._encoder.pairs(pairs, named)
        return self._scored(asked, named, disable_tqdm, requests)

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[Any, list[int], list[int]]],
        disable_tqdm: bool = False,
        **kwargs: Any,
    ) -> list[tuple[float, bool]]:
        """The same for token ids."""
        contexts: dict[tuple[int, ...], np.ndarray] = {}
        asked = []
        for _, context, continuation in requests:
            key = tuple(context)
            ids = contexts.setdefault(key, np.array(key, np.int32))
            asked.append(Asked(ids, np.array(continuation, np.int32)))
        return self._scored(asked, lambda k: f"request {k}", disable_tqdm, None)

    def _scored(
        self,
        asked: Sequence[Asked],
        named: Callable[[int], str],
        quiet: bool,
        requests: Sequence[Instance] | None,
    ) -> list[tuple[float, bool]]:
        out: list[Any] = [None] * len(asked)
        sequences: list[Any] = [None] * len(asked)
        with self._shown(quiet, "log-likelihoods", len(asked)):
            for some in answers(self.scorer, asked, self.max_length, named):
                for one in some:
                    for place in one.places:
                        out[place] = one.total, one.greedy
                        if self._args.audit_noise:
                            sequences[place] = one.sequence
                        if requests is not None:
                            self._finished(requests[place], [one], out[place])
                self._flush()
        if self._args.audit_noise and requests:
            totals = [total for total, _ in out]
            self._noise.append(
                outputs.audit(self.scorer, self._args.audit_noise, requests, sequences, totals)
            )
        return out

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Log-likelihood in nats of each whole text, in disjoint windows after the prefix token.

        Raises:
            InputError: a text that cannot be scored; the message names it.
        """
        texts = [request.args[0] for request in requests]
        named = self._named(requests)
        if texts and self.prefix_token_id is None:
            raise InputError(
                "loglikelihood_rolling: the tokenizer has neither BOS nor EOS to put before a "
                "text; give prefix_token_id"
            )
        encoding.check(texts, named)
        rolling = Rolling(self._encoder.encode(texts), self.prefix_token_id, self.max_length)
        out = [0.0] * len(texts)
        with self._shown(disable_tqdm, "rolling log-likelihoods", len(rolling.asked)):
            for some in answers(
                self.scorer, rolling.asked, self.max_length, lambda k: named(rolling.owner[k])
            ):
                for window, answer in ((k, one) for one in some for k in one.places):
                    if (found := rolling.take(window, answer)) is not None:
                        place = rolling.owner[window]
                        out[place] = sum(one.total for one in found)
                        self._finished(requests[place], found, out[place])
                self._flush()
        return out

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Each context continued up to a stop string, an EOS, or its number of tokens.

        Raises:
            InputError: a request that cannot be continued as it asks; the message names it.
        """
        asked = [request.args for request in requests]
        named = self._named(requests)
        out: list[Any] = [None] * len(asked)
        written: list[Any] = [None] * len(asked)
        with self._shown(disable_tqdm, "texts", len(asked)):
            for place, text, prompt, ids in self._texts.written(asked, named):
                out[place] = text
                self.cache_hook.add_partial("generate_until", requests[place].args, text)
                if self._details is not None:
                    written[place] = Asked(prompt, ids)
            if self._details is not None:
                # A prompt is cut already; cut once more it would not be what the text came from.
                most = self.scorer.model.max_positions
                for some in answers(self.scorer, written, most, named):
                    for one in some:
                        for place in one.places:
                            self._details.write(requests[place], [one])
        self._flush()
        return out

    def get_model_info(self) -> dict[str, Any]:
        """What the results file says of the model: hf's keys, and ours under `jaxscore`."""
        return outputs.info(self._made, self._args, self._noise)

    def close(self) -> None:
        """Let other runs have the journal, and close `details`; a `Scorer` that was given stays
        open. Also twice."""
        if self._details is not None:
            self._details.close()
        if self._made.folder is not None:
            self.scorer.close()

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """Take the cache of `--use_cache`.

        Raises:
            InputError: it has answers of another model.
        """
        if cache_hook.dbdict is not None:
            about = self.scorer.about and {
                **self.scorer.about,
                "max_length": self.max_length,
                **{name: getattr(self._args, name) for name in outputs.DECIDE},
            }
            outputs.claim(cache_hook.dbdict, about)
        super().set_cache_hook(cache_hook)

    def _finished(self, request: Instance, found: list[Answer], answer: Any) -> None:
        """One request has its answer."""
        self.cache_hook.add_partial(request.request_type, request.args, answer)
        if self._details is not None:
            self._details.write(request, found)

    def _flush(self) -> None:
        if self._details is not None:
            self._details.flush()

    def _shown(self, quiet: bool, what: str, n: int) -> Shown:
        return Shown(self.scorer, quiet or not processes.is_first(), what, n)

    def _named(self, requests: Sequence[Instance]) -> Callable[[int], str]:
        """A request for people: task, document, choice, and where its text ends."""

        def named(place: int) -> str:
            one = requests[place]
            text = one_line(str(one.args[0])[-LONGEST:], LONGEST)
            return f"{one.task_name}, document {one.doc_id}, choice {one.idx} (... {text!r})"

        return named
