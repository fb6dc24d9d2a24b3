"""jaxscore as a custom model of lighteval: the numbers of its `TransformersModel`.

choice  spaces at the prompt's end move to the choice; prompt and choice are encoded separately,
        the choice without special tokens; an EOS at the prompt's end is dropped; both together
        are truncated at the left to max_length
text    the prompt is truncated at the left to max_length and keeps its special tokens; the text
        is greedy, ends at the tokenizer's EOS, and is truncated at each stop string in turn
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
from lighteval.models.abstract_model import LightevalModel, ModelConfig
from lighteval.models.model_input import GenerationParameters
from lighteval.models.model_output import ModelResponse
from lighteval.tasks.prompt_manager import PromptManager
from lighteval.tasks.requests import Doc

from jaxscore.adapters.arguments import LM_EVAL_ARGUMENTS, read_arguments, read_flag
from jaxscore.adapters.model import (
    DEFAULT_LENGTH,
    Question,
    answer_questions,
    config_length,
    load_model,
)
from jaxscore.errors import InputError, is_valid_unicode
from jaxscore.text import chat_template
from jaxscore.text.bounded_tokenizer import decode_ids
from jaxscore.types.requests import GenerationRequest


class JaxscoreModel(LightevalModel):
    """Scores choices and continues prompts.

    Args:
        config: `model_name` is a folder, a hub id, `demo`, or `pretrained=...,dtype=float32`.

    Raises:
        InputError: an argument or the model cannot be used; the message gives the reason.
    """

    add_special_tokens = True
    tokenizer: Any = None
    max_length = 0

    def __init__(self, config: ModelConfig) -> None:
        values: dict[str, Any] = {"pretrained": config.model_name}
        if "=" in config.model_name:
            values = dict(pair.partition("=")[::2] for pair in config.model_name.split(","))
        chat = read_flag("override_chat_template", values.pop("override_chat_template", None))
        if unusable := sorted(LM_EVAL_ARGUMENTS & set(values)):
            raise InputError(f"{', '.join(unusable)}: not used in lighteval; leave it out")
        if config.generation_parameters != GenerationParameters():
            raise InputError("generation_parameters: jaxscore's texts are greedy; leave it out")
        args, _ = read_arguments(values)
        self.scorer, self.tokenizer, self.max_length, folder = load_model(args)
        self.scorer.progress = True
        if folder and not args.max_length:  # lighteval never asks the tokenizer
            self.max_length = config_length(folder) or DEFAULT_LENGTH
        self._chat = self.tokenizer.chat_template is not None if chat is None else chat
        # Its prompts are rendered by our process, with checks, instead of by the tokenizer.
        template = SimpleNamespace(apply_chat_template=self._render)
        self._prompts = PromptManager(self._chat, template, config.system_prompt)
        self.config = config.model_copy(update={"model_name": args.pretrained})
        # lighteval's cache identifies a custom model only by its names, so it is never read.
        self._cache = SimpleNamespace(_init_registry=lambda registry: None)

    def loglikelihood(self, docs: list[Doc]) -> list[ModelResponse]:
        """Compute the log-likelihood in nats of each choice, and if all its tokens are greedy.

        Raises:
            InputError: a document that cannot be scored; the message names it.
        """
        responses, questions, choices_of = [], [], []
        shared: dict[tuple[int, ...], np.ndarray] = {}
        for doc in docs:
            if not doc.choices:
                raise InputError(f"{_name(doc)}: expected choices to score")
            prompt = self._prompt(doc)
            contexts, choices = self.tok_encode_pair(prompt, doc.choices, pairwise=True)
            response = ModelResponse(prompt, contexts[0], output_tokens=choices)
            response.logprobs = [0.0] * len(choices)
            response.argmax_logits_eq_gold = [False] * len(choices)
            responses.append(response)
            for k, (context, choice) in enumerate(zip(contexts, choices, strict=True)):
                name = f"{_name(doc)}, choice {k}"
                choices_of.append((response, k, name))
                if (room := self.max_length - len(choice)) < 1:
                    raise InputError(
                        f"{name} has {len(choice)} tokens, expected fewer than max_length, "
                        f"{self.max_length}; the task needs a model with more positions"
                    )
                ids = shared.setdefault(tuple(context[-room:]), np.array(context[-room:], np.int32))
                questions.append(Question(ids, np.array(choice, np.int32)))
        for window in answer_questions(
            self.scorer, questions, self.max_length, lambda k: choices_of[k][2]
        ):
            for answer in window:
                for response, k, _ in (choices_of[index] for index in answer.indices):
                    response.logprobs[k] = answer.total
                    response.argmax_logits_eq_gold[k] = answer.greedy
        return responses

    def loglikelihood_rolling(self, docs: list[Doc]) -> list[ModelResponse]:
        """Refuse: lighteval's `TransformersModel` raises an error on its perplexity tasks."""
        raise InputError("perplexity tasks of lighteval are not computed; use jaxscore lm-eval")

    def greedy_until(self, docs: list[Doc]) -> list[ModelResponse]:
        """Continue each prompt.

        Raises:
            InputError: a document that cannot be continued; the message names it.
        """
        defaults, eos = self.scorer.model.generation_defaults, self.tokenizer.eos_token
        if eos is None:
            raise InputError(
                "greedy_until: the tokenizer lacks an EOS, by which lighteval ends texts"
            )
        if unhandled := ", ".join(defaults.unhandled_greedy):
            raise InputError(f"generation_config.json: {unhandled} is not computed by jaxscore")
        responses, requests = [], []
        for index, doc in enumerate(docs):
            stop = (eos, *(() if self._chat else doc.stop_sequences or ()))
            if doc.num_samples != 1 or "" in stop:
                raise InputError(f"{_name(doc)}: expected one sample and no empty stop string")
            prompt = self._prompt(doc)
            ids = self._prompt_ids(prompt)
            responses.append(ModelResponse(prompt, ids))
            room = self.max_length - len(ids)
            n_new = max(1, room if doc.generation_size is None else min(room, doc.generation_size))
            requests.append(GenerationRequest(
                index, ids, n_new, stop=stop, eos_ids=(self.tokenizer.eos_token_id,),
                repetition_penalty=defaults.repetition_penalty,
            ))  # fmt: skip
        for index, generated in self.scorer.generator().stream(requests):
            if generated.error is not None:
                raise InputError(f"{_name(docs[index])}: {generated.error}")
            eos_ids = () if generated.eos_id is None else (generated.eos_id,)
            ids = [*map(int, generated.token_ids), *eos_ids]
            text = decode_ids(self.tokenizer, ids, skip_special_tokens=True)
            for end in requests[index].stop:
                text = text.split(end)[0]
            responses[index].text, responses[index].output_tokens = [text], [ids]
        return responses

    def _prompt_ids(self, prompt: str) -> list[int]:
        """Return at most max_length ids, including special tokens."""
        ids, bare = self.tok_encode(prompt), self.tok_encode(prompt, False)
        if (cut := len(ids) - self.max_length) <= 0:
            return ids
        first = next(k for k in range(len(ids)) if ids[k : k + len(bare)] == bare)
        return ids[:first] + ids[first + cut :]

    def _render(self, messages: list[dict[str, str]], **_: Any) -> str:
        return chat_template.render(self.tokenizer, messages)

    def _prompt(self, doc: Doc) -> str:
        prompt = self._prompts.prepare_prompt(doc)
        if doc.images or not is_valid_unicode(prompt + "".join(doc.choices or ())):
            raise InputError(f"{_name(doc)}: expected valid Unicode and no images")
        return prompt


def _name(doc: Doc) -> str:
    return f"{doc.task_name}, document {doc.id}"
