"""A model of inspect_ai: `inspect eval TASK --model jaxscore/NAME`.

Conversations go through the scheduler and the worker of `jaxscore.server`, without HTTP: texts are
generated together, and log-probabilities are the scorer's. The entry point is `inspect_ai`.
"""

import asyncio
import dataclasses
import logging
from typing import Any

import orjson
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    GenerateConfig,
    Logprobs,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    modelapi,
)
from inspect_ai.tool import ToolChoice, ToolInfo

from jaxscore.engine.generation.slots import most_rows
from jaxscore.errors import InputError
from jaxscore.scorer import Scorer
from jaxscore.server import CONTEXT_LENGTH, ApiError, Settings
from jaxscore.server.choices import Choice, ChoiceRequest, compute_choices
from jaxscore.server.completions import chat_logprobs, read_chat
from jaxscore.server.service import Service

STOP_SECONDS = 25.0  # for the work in progress when the model is closed
# Fields of GenerateConfig that a chat request also has; it refuses values that it does not apply
FIELDS = (
    "max_tokens temperature top_p top_k seed logprobs top_logprobs frequency_penalty "
    "presence_penalty logit_bias"
).split()
RENAMED = {"stop_seqs": "stop", "num_choices": "n"}
NOT_APPLIED = (
    "best_of response_schema effort reasoning_effort reasoning_tokens verbosity modalities "
    "extra_body"
).split()


@modelapi(name="jaxscore")
class JaxscoreAPI(ModelAPI):
    """A local model: `-M` takes the arguments of `Scorer.from_pretrained`."""

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008  inspect_ai's own signature
        **model_args: Any,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config)
        self._scorer = Scorer.from_pretrained(model_name, **model_args)
        for line in self._scorer.remarks:
            logging.getLogger("jaxscore").warning("%s", line)
        self._service = Service(self._scorer, Settings(names=(model_name,)))
        self._service.worker.start()
        self._service.worker.ready.result()  # raises the error of the first window

    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        """Continue a conversation.

        Raises:
            InputError: the task uses a feature that is not applied here; the message names it.
        """
        if tools:
            raise InputError("the task has tools, which are not applied here; take one without")
        if used := [name for name in NOT_APPLIED if getattr(config, name, None)]:
            raise InputError(f"{used[0]} is not applied here; leave it out")
        loop, service = asyncio.get_running_loop(), self._service
        n_prompt_top, max_top = config.prompt_logprobs, service.settings.max_logprobs
        if n_prompt_top is not None and not 0 <= n_prompt_top <= max_top:
            raise InputError(
                f"prompt_logprobs is {n_prompt_top}, expected a whole number from 0 to {max_top}"
            )
        try:
            raw = orjson.dumps(_body(input, config), option=orjson.OPT_NON_STR_KEYS)
            request = await loop.run_in_executor(service.chat_threads, read_chat, service, raw)
            request = dataclasses.replace(request, n_prompt_top=n_prompt_top)
            choices = await compute_choices(service, request)
        except ApiError as problem:
            if problem.code == CONTEXT_LENGTH:
                message = problem.message
                return ModelOutput.from_content(self.model_name, message, "model_length", message)
            raise InputError(problem.message) from None
        n_prompt, n_generated = len(request.prompts[0].ids), sum(len(c.ids) for c in choices)
        n_all = n_prompt + n_generated
        return ModelOutput(
            model=self.model_name,
            choices=[self._choice(request, choice) for choice in choices],
            usage=ModelUsage(input_tokens=n_prompt, output_tokens=n_generated, total_tokens=n_all),
        )

    def _choice(self, request: ChoiceRequest, choice: Choice) -> ChatCompletionChoice:
        n_prompt = len(request.prompts[0].ids) - 1 if request.scores_prompts else 0

        def listed(tokens: slice, top: int | None) -> Logprobs | None:
            if choice.logprobs is None or top is None:
                return None
            logprobs = choice.logprobs.select(tokens, top)
            content: Any = chat_logprobs(self._service.token_bytes, logprobs)
            return Logprobs(content=content)

        return ChatCompletionChoice(
            message=ChatMessageAssistant(content=choice.text, model=self.model_name),
            stop_reason="stop" if choice.finish_reason == "stop" else "max_tokens",
            logprobs=listed(slice(n_prompt, None), request.n_top),
            prompt_logprobs=listed(slice(n_prompt), request.n_prompt_top),
        )

    def max_connections(self) -> int:
        """Return the number of conversations that the device generates together."""
        return most_rows(self._scorer.model)

    def collapse_user_messages(self) -> bool:
        """Return True: chat templates alternate user and assistant."""
        return True

    def close(self) -> None:
        """Finish the work in progress and end the worker."""
        self._service.worker.stop(STOP_SECONDS)
        self._scorer.close()


def _body(messages: list[ChatMessage], config: GenerateConfig) -> dict[str, Any]:
    """Return the conversation as the body of a chat request."""
    for message in messages:
        contents = [] if isinstance(message.content, str) else message.content
        others = [content.type for content in contents if content.type != "text"]
        if message.role == "tool":
            others.append("a tool's answer")
        elif getattr(message, "tool_calls", None):
            others.append("a tool's call")
        if others:
            raise InputError(f"a message has {others[0]}, expected only text")
    names = {name: name for name in FIELDS} | RENAMED
    values = {field: getattr(config, name) for name, field in names.items()}
    return {
        **{field: value for field, value in values.items() if value is not None},
        "messages": [{"role": message.role, "content": message.text} for message in messages],
    }
