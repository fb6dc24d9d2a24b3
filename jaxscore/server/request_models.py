"""Request bodies, declared field by field, and the messages about invalid fields.

Types are strict: "5" and true are not numbers. null means the default. A field that would
change the numbers and is not implemented accepts its neutral value only, and an unknown field is
refused by name. The `description` of a field completes "expected ..." in error messages.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    PlainValidator,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from jaxscore.io.json_input import json_kind
from jaxscore.server import MAX_PROMPTS, ApiError, invalid_field

NDJSON = "application/x-ndjson"
MAX_DISPLAYED = 60  # characters of a client's value in a message
MAX_SAMPLES = 128
# Stop strings are searched for after each token, in the thread that all requests share; a search
# decodes as many characters as the longest one has.
MAX_STOPS, MAX_STOP_LENGTH = 64, 1000
MAX_TEMPERATURE = 1e30  # far below the float32 range; all tokens are equally likely long before

PROMPT = (
    "a string, a list of strings, a list of token ids, or a list of lists of token ids, none of "
    "these lists empty"
)


def parse_object(raw: bytes, subject: str = "the body") -> dict[str, Any]:
    """Parse one JSON object, in strict UTF-8 and strict JSON.

    Raises:
        ApiError: 400 for anything else: NaN, numbers beyond a double, text after the object,
            nesting beyond 1,024, a lone surrogate.
    """
    try:
        value = orjson.loads(raw)
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise ApiError(
            400,
            f"{subject} is not JSON ({error}); expected one object in UTF-8",
            code="invalid_json",
        ) from None
    if not isinstance(value, dict):
        raise ApiError(400, f"{subject} is {json_kind(value)}, expected an object")
    return value


def describe_value(value: Any) -> str:
    """Describe a client's value for a message: short ones verbatim, others by their type."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        n = len(value)
        return f'"{value}"' if n <= MAX_DISPLAYED else f"a string of {n} characters"
    if type(value) in (int, float):
        return str(value)
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return json_kind(value)


def describe_list(value: list[Any]) -> str:
    """Describe a client's list for a message by the types of its items."""
    types = {"an empty list" if item == [] else json_kind(item) for item in value}
    return f"a list of {' and '.join(sorted(types))}"


def split_prompts(value: Any) -> list[str] | list[list[int]]:
    """Return the prompts of a field `prompt`, which has one of four shapes."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(type(item) is str for item in value):
            return value
        if all(type(item) is int for item in value):
            return [value]
        if all(
            isinstance(item, list) and item and all(type(id) is int for id in item)
            for item in value
        ):
            return value
        actual = describe_list(value)
    else:
        actual = describe_value(value)
    raise PydanticCustomError("prompt_shape", "no prompts", {"found": actual})


def accept_only(*values: Any) -> AfterValidator:
    """Return the validator of an unimplemented field: null, or a value that changes nothing."""

    def check(value: Any) -> Any:
        for accepted in values:
            if value == accepted and isinstance(value, bool) == isinstance(accepted, bool):
                return value
        neutral = ", ".join(orjson.dumps(accepted).decode() for accepted in (None, *values))
        raise PydanticCustomError("unsupported_parameter", "neutral", {"neutral": neutral})

    return AfterValidator(check)


def _limit_logprobs(value: int, info: ValidationInfo) -> int:
    """Check the server's limit, which is the context of the validation."""
    if value > (info.context or {})["max_logprobs"]:
        raise PydanticCustomError("max_logprobs", "too many")
    return value


SERVER_LIMIT = "--max-logprobs"  # in a description; messages have its value instead
TOP_LOGPROBS = f"a whole number from 0 to {SERVER_LIMIT}"
TopLogprobs = Annotated[int, Field(ge=0), AfterValidator(_limit_logprobs)]
StopString = Annotated[
    str,
    # U+FFFD decodes an incomplete character.
    StringConstraints(min_length=1, max_length=MAX_STOP_LENGTH, pattern=r"^[^\x{fffd}]*$"),
]


TemplateVariables = Annotated[
    dict[str, Any] | None,
    Field(
        description='an object of the chat template\'s variables, {"enable_thinking": false}',
    ),
]


def flag(default: bool = False) -> Any:
    """Declare a field that is true or false."""
    return Field(default, description="true or false")


class RequestModel(BaseModel):
    """Strict model whose fields may be null if they have a default."""

    model_config = ConfigDict(strict=True, frozen=True)
    accepts_unknown: ClassVar[Literal["nothing", "null", "anything"]] = "nothing"

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, values: Any) -> Any:
        """Drop nulls, and refuse the first unknown field: a body may have millions of them."""
        if not isinstance(values, dict):
            return values
        fields = cls.model_fields
        for name, value in () if cls.accepts_unknown == "anything" else values.items():
            if name not in fields and not (value is None and cls.accepts_unknown == "null"):
                expected = ", ".join(name for name, field in fields.items() if field.description)
                raise PydanticCustomError(
                    "unknown_parameter", "unknown", {"name": name, "known": expected}
                )
        return {name: value for name, value in values.items() if value is not None}


class ServedModelRequest(RequestModel):
    """Any request; it may name the model that it is for."""

    model: str | None = Field(None, description="a name that /v1/models lists")


class StreamOptions(RequestModel):
    """Options of a stream."""

    include_usage: bool = flag()


class SamplingRequest(ServedModelRequest):
    """Fields that completions and chats share."""

    temperature: float = Field(
        1.0, ge=0, le=MAX_TEMPERATURE, description="a number from 0, which is greedy, to 1e30"
    )
    top_p: float = Field(1.0, ge=0, le=1, description="a number from 0 to 1")
    n: int = Field(1, ge=1, le=MAX_SAMPLES, description=f"a whole number from 1 to {MAX_SAMPLES}")
    stop: Annotated[
        list[StopString],
        FailFast(),
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    ] = Field(
        [],
        max_length=MAX_STOPS,
        description=f"a string of 1 to {MAX_STOP_LENGTH} characters without U+FFFD, or a list of "
        f"at most {MAX_STOPS} of them",
    )
    seed: int | None = Field(None, description="a whole number")
    stream: bool = flag()
    stream_options: StreamOptions = Field(
        StreamOptions(), description='an object {"include_usage": true or false}'
    )
    user: Any = Field(None, description="anything")
    return_token_ids: bool = flag()

    # Fields of OpenAI's and vLLM's interface that are not implemented.
    logit_bias: Annotated[Any, accept_only({})] = None
    presence_penalty: Annotated[Any, accept_only(0)] = None
    frequency_penalty: Annotated[Any, accept_only(0)] = None
    repetition_penalty: Annotated[Any, accept_only(1)] = None
    top_k: Annotated[Any, accept_only(0, -1)] = None
    min_p: Annotated[Any, accept_only(0)] = None
    min_tokens: Annotated[Any, accept_only(0)] = None
    response_format: Annotated[Any, accept_only({"type": "text"})] = None
    ignore_eos: Annotated[Any, accept_only(False)] = None
    skip_special_tokens: Annotated[Any, accept_only(True)] = None
    use_beam_search: Annotated[Any, accept_only(False)] = None
    stop_token_ids: Annotated[Any, accept_only([])] = None
    bad_words: Annotated[Any, accept_only([])] = None
    allowed_token_ids: Annotated[Any, accept_only([])] = None
    truncate_prompt_tokens: Annotated[Any, accept_only()] = None


class CompletionRequest(SamplingRequest):
    """Body of `/v1/completions`."""

    prompt: Annotated[list[str] | list[list[int]], PlainValidator(split_prompts)] = Field(
        description=PROMPT
    )
    max_tokens: int = Field(16, ge=0, description="a whole number from 0")
    logprobs: TopLogprobs | None = Field(None, description=TOP_LOGPROBS)
    prompt_logprobs: TopLogprobs | None = Field(None, description=TOP_LOGPROBS)
    echo: bool = flag()
    add_special_tokens: bool = flag(True)
    return_tokens_as_token_ids: bool = flag()

    suffix: Annotated[Any, accept_only("")] = None
    best_of: Annotated[Any, accept_only(1)] = None


class TextPart(RequestModel):
    """Part of a message; its other fields are ignored."""

    accepts_unknown = "anything"
    type: Literal["text"] = Field(description='"text", since the model reads only text')
    text: str = Field(description="a string")


def _text_parts(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


class Message(RequestModel):
    """One message of a conversation."""

    accepts_unknown = "null"
    role: str = Field(description="a string")
    content: Annotated[list[TextPart], FailFast(), BeforeValidator(_text_parts)] = Field(
        description="a string or a list of text parts"
    )
    name: str | None = Field(None, description="a string")
    annotations: Any = Field(None, description="anything")  # of answers; templates ignore them

    tool_calls: Annotated[Any, accept_only([])] = None  # as vLLM's answers have them

    @property
    def n_characters(self) -> int:
        """Number of characters of all parts."""
        return sum(len(text.text) for text in self.content)

    def to_dict(self) -> dict[str, Any]:
        """Return the message for the chat template, with one part as a string."""
        texts = [text.text for text in self.content]
        parts = [{"type": "text", "text": text} for text in texts]
        name = {} if self.name is None else {"name": self.name}
        return {"role": self.role, "content": texts[0] if len(texts) == 1 else parts, **name}


class ChatRequest(SamplingRequest):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], FailFast()] = Field(
        min_length=1,
        max_length=MAX_PROMPTS,
        description=f"a list of 1 to {MAX_PROMPTS} messages",
    )
    max_tokens: int | None = Field(None, ge=1, description="a whole number from 1")
    max_completion_tokens: int | None = Field(None, ge=1, description="a whole number from 1")
    logprobs: bool = flag()
    top_logprobs: TopLogprobs | None = Field(None, description=TOP_LOGPROBS)
    chat_template_kwargs: TemplateVariables = None

    tools: Annotated[Any, accept_only([])] = None
    tool_choice: Annotated[Any, accept_only("none", "auto")] = None
    functions: Annotated[Any, accept_only([])] = None
    function_call: Annotated[Any, accept_only("none", "auto")] = None
    parallel_tool_calls: Annotated[Any, accept_only(True, False)] = None
    modalities: Annotated[Any, accept_only(["text"])] = None
    audio: Annotated[Any, accept_only()] = None
    prompt_logprobs: Annotated[Any, accept_only()] = None
    add_generation_prompt: Annotated[Any, accept_only(True)] = None


class TokenizeRequest(ServedModelRequest):
    """Body of `/tokenize`."""

    prompt: str = Field(description="a string")
    add_special_tokens: bool = flag(True)


class DetokenizeRequest(ServedModelRequest):
    """Body of `/detokenize`."""

    tokens: Annotated[list[int], FailFast()] = Field(description="a list of token ids")


class LabelOptions(ServedModelRequest):
    """Query of `/jaxscore/label`, for a body with a request per line."""

    truncate: Literal["left"] | None = Field(None, description='"left"')


class ScoreOptions(LabelOptions):
    """Query of `/jaxscore/score`, for a body with a request per line."""

    boundary: Literal["joint", "separate"] = Field("joint", description='"joint" or "separate"')
    special_tokens: bool = flag(True)
    summary_only: bool = flag()
    rank: bool = flag()
    top_k: TopLogprobs = Field(0, description=TOP_LOGPROBS)
    texts: bool = flag()
    score_roles: Literal["assistant", "last", "all"] = Field(
        "assistant", description='"assistant", "last" or "all"'
    )
    score_turn_end: bool = flag()


class _Requests(RequestModel):
    requests: list[Any] = Field(
        min_length=1,
        max_length=MAX_PROMPTS,
        description=f"a list of 1 to {MAX_PROMPTS} requests; send more as {NDJSON}, one per line",
    )


class LabelBody(_Requests, LabelOptions):
    """Body of `/jaxscore/label`."""


class ScoreBody(_Requests, ScoreOptions):
    """Body of `/jaxscore/score`."""

    chat_template_kwargs: TemplateVariables = None


AnyRequest = TypeVar("AnyRequest", bound=RequestModel)
AnyServedRequest = TypeVar("AnyServedRequest", bound=ServedModelRequest)


def validate(
    model: type[AnyRequest], values: Mapping[str, Any], max_logprobs: int = 0
) -> AnyRequest:
    """Check a client's fields.

    Args:
        model: the declaration of the fields.
        values: the client's values by name.
        max_logprobs: the server's limit of most probable tokens per position.

    Raises:
        ApiError: 400, with the field at fault as `param`.
    """
    try:
        return model.model_validate(values, context={"max_logprobs": max_logprobs})
    except ValidationError as error:
        [first, *_] = error.errors(include_url=False)
        raise _invalid_field(model, values, first, max_logprobs) from None


def _invalid_field(
    model: type[RequestModel],
    values: Mapping[str, Any],
    error: Mapping[str, Any],
    max_logprobs: int,
) -> ApiError:
    """Convert an error of pydantic for the client."""
    error_type, location, context = error["type"], error["loc"], error.get("ctx", {})
    if location and isinstance(values.get(location[0]), str):  # `stop`, which became a list
        location = location[:1]
    path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in location)[1:]
    if error_type == "unknown_parameter":
        name = context["name"]
        short = name if len(name) <= MAX_DISPLAYED else f"{name[:MAX_DISPLAYED]}…"
        where = f"{path} has an " if path else ""
        return invalid_field(
            str(location[0]) if location else short,
            f"{where}unrecognized field {describe_value(name)}; expected {context['known']}",
            None if location else error_type,
        )
    actual = describe_value(error["input"])
    expected = _description(model, location).replace(SERVER_LIMIT, str(max_logprobs))
    if error_type == "unsupported_parameter":
        return invalid_field(
            str(location[0]),
            f"{path} is {actual}, which this server does not apply; leave it out, or give a value "
            f"that changes nothing: {context['neutral']}",
            error_type,
        )
    if error_type == "missing":
        actual = "null" if len(location) == 1 and location[0] in values else "missing"
    elif error_type == "prompt_shape":
        actual = context["found"]
    elif error_type == "model_type" and len(location) > 1:
        expected = "an object"
    return invalid_field(str(location[0]), f"{path} is {actual}; expected {expected}")


def _description(model: type[BaseModel], location: tuple[str | int, ...]) -> str:
    """Return the description of the innermost field of an error's location."""
    description, fields = "", model.model_fields
    for name in location:
        if isinstance(name, str) and name in fields:
            description = fields[name].description or description
            fields = {**StreamOptions.model_fields, **Message.model_fields, **TextPart.model_fields}
    return description
