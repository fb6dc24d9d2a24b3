"""What `sample` and `usc-generate` share: texts that a model writes after prompts, and resuming."""

import abc
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxscore.errors import InputError
from jaxscore.lm import LocalLM
from jaxscore.systems.drawn_tokens import PROMPT_TOKEN_IDS, TOKEN_IDS, ids_of, ids_of_text
from jaxscore.systems.resuming import Known, Work
from jaxscore.systems.settings import MODEL_GROUP, Settings, setting
from jaxscore.text.decoder import TokenBytes
from jaxscore.types.requests import GenerationRequest
from jaxscore.types.results import Generated


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationSettings(Settings):
    """Settings of a system that generates text."""

    temperature: float = setting(0.0)
    max_new_tokens: int = setting(
        1024, least=1, metavar="N", help="a text ends there at the latest (default 1024)"
    )
    top_p: float = setting(
        1.0,
        metavar="P",
        help="draw from the most probable tokens of this much probability (default 1: all)",
    )
    seed: int = setting(0, group=MODEL_GROUP, help="of the draws (default 0)")

    def __post_init__(self) -> None:
        """Check all values; see `Settings`."""
        super().__post_init__()
        if self.temperature < 0:
            raise InputError(f"setting temperature is {self.temperature}, expected 0 or more")
        if not 0 < self.top_p <= 1:
            raise InputError(f"setting top_p is {self.top_p}, expected above 0 up to 1")


@dataclasses.dataclass
class Generations(Known):
    """The texts of an entry that are known.

    Attributes:
        texts: in their order.
        finish: what ended each, as of `Generated.finish`; empty if its record does not say it.
        model_input: the text that the model read.
        token_ids: ids of each text, see `drawn_tokens`; None if its record does not have them.
        prompt_token_ids: ids that the model read, or None.
        made: what they were generated with.
    """

    texts: list[str]
    finish: list[str]
    model_input: Any
    token_ids: list[Any]
    prompt_token_ids: Any

    def id_fields(self) -> dict[str, Any]:
        """Return the ids as a record has them, without a field that an earlier version left out."""
        ids = self.token_ids if any(ids is not None for ids in self.token_ids) else None
        fields = {PROMPT_TOKEN_IDS: self.prompt_token_ids, TOKEN_IDS: ids}
        return {name: value for name, value in fields.items() if value is not None}


class GenerationWork(Work[Generations]):
    """Prompts with the texts that are known.

    Attributes:
        n_texts: of each entry.
        texts_per_slot: texts that are planned together, for each slot of the generator.
    """

    n_texts = 1
    texts_per_slot = 16

    @abc.abstractmethod
    def model_input(self, lm: LocalLM, place: int) -> str:
        """The text that the model reads.

        Raises:
            InputError: it cannot read the entry.
        """

    @abc.abstractmethod
    def requests(self, place: int, prompt: np.ndarray) -> list[GenerationRequest]:
        """Make the requests for an entry's texts.

        Args:
            prompt: int32 [n], the token ids of `model_input`.
        """

    def text(self, generated: Generated) -> str:
        """A generated text as its record has it."""
        return generated.text

    @abc.abstractmethod
    def drawn_with(self) -> dict[str, Any]:
        """The settings of generation as a record has them; None for what does not apply."""

    def made_with(self, model: Mapping[str, Any]) -> dict[str, Any]:
        """See `Work.made_with`."""
        facts = dict(model)
        return {"generator": facts.pop("model"), **facts, **self.drawn_with()}

    def configs(self, known: Generations) -> dict[str, Any]:
        """What an entry's texts were generated with, as its record has it."""
        assert known.made is not None
        return {
            name: value
            for name, value in known.made.items()
            if name != "generator" and value is not None
        }

    def recalled(self, record: Mapping[str, Any], finish: list[str]) -> Generations:
        """The texts of a record."""
        configs = record.get("configs")
        made = {
            "generator": record.get("generator"),
            **(configs if isinstance(configs, dict) else {}),
        }
        texts = record["output"]
        ids = [ids_of(record, k) for k in range(len(texts))]
        prompt_ids = record.get(PROMPT_TOKEN_IDS)
        return Generations(made, texts, finish, record.get("model_input"), ids, prompt_ids)

    def is_finished(self, place: int) -> bool:
        """See `Work.is_finished`."""
        known = self.known[place]
        return place in self.errors or (known is not None and len(known.texts) >= self.n_texts)

    def generate(self, lm: LocalLM, on_item: Callable[[Mapping[str, Any]], None] | None) -> int:
        """Generate what is missing.

        Returns:
            The number of tokens that the model wrote.
        """
        made, before = self.made(lm), lm.statistics.tokens_written
        generator, decoder = lm.generator(), TokenBytes(lm.encoder.tokenizer)
        usable = [place for place in range(len(self.entries)) if place not in self.errors]
        together = max(1, self.texts_per_slot * generator.side_by_side // self.n_texts)
        for first in range(0, len(usable), together):
            # The same entries together as in a run from the beginning, so that a text has the same
            # slot and block, and with them the same last bits, whatever an earlier run has left.
            places = usable[first : first + together]
            missing = {place for place in places if not self.is_finished(place)}
            if not missing:
                continue
            if lm.journal is None:  # which has what is not missing
                places = [place for place in places if place in missing]
            inputs = self._model_inputs(lm, places, missing)
            requests = [
                request
                for place, (_, ids) in inputs.items()
                for request in self.requests(place, ids)
            ]
            order = list(inputs)
            for k, generated in self._by_entry(generator.stream(requests)):
                if (place := order[k]) in missing:
                    text, ids = inputs[place]
                    new = Generations(made, [], [], text, [], ids.tolist())
                    self._take(place, generated, new, decoder)
                    self.pass_on(on_item)
        return int(lm.statistics.tokens_written) - before

    def _model_inputs(
        self, lm: LocalLM, places: Sequence[int], missing: Collection[int]
    ) -> dict[int, tuple[str, np.ndarray]]:
        """Text and ids that the model reads of each entry; an unreadable one fails alone."""
        out = {}
        for place in places:
            try:
                text = self.model_input(lm, place)
                # The text has the special tokens that the model reads.
                [ids] = lm.encoder.prompt_ids(
                    [text], special_tokens=False, max_positions=lm.capabilities.max_positions
                )
                out[place] = text, ids
            except InputError as problem:
                if place in missing:
                    self.errors[place] = str(problem)
        return out

    def _by_entry(
        self, generated: Iterator[tuple[int, Generated]]
    ) -> Iterator[tuple[int, list[Generated]]]:
        """The number of each prompt and its texts, once all of them are finished."""
        found: dict[int, dict[int, Generated]] = {}
        for number, one in generated:
            prompt, k = divmod(number, self.n_texts)
            found.setdefault(prompt, {})[k] = one
            if len(found[prompt]) == self.n_texts:
                texts = found.pop(prompt)
                yield prompt, [texts[k] for k in range(self.n_texts)]

    def _take(
        self,
        place: int,
        generated: Sequence[Generated],
        new: Generations,
        decoder: TokenBytes,
    ) -> None:
        """Note the texts of an entry up to the first that failed; those that are known stay.

        Args:
            new: what the texts were made of and with, without a text.
        """
        known = self.known[place] or new
        texts, finish, token_ids = [*known.texts], [*known.finish], [*known.token_ids]
        for k, one in enumerate(generated[len(texts) :], start=len(texts) + 1):
            if one.error or one.finish is None:
                # What is wrong with the prompt is wrong with every text of it.
                is_shared = all(other.error == one.error for other in generated)
                self.errors[place] = str(one.error) if is_shared else f"sample {k}: {one.error}"
                break
            texts.append(self.text(one))
            finish.append(one.finish)
            token_ids.append(ids_of_text(decoder, one))
        if texts:
            self.known[place] = dataclasses.replace(
                new, texts=texts, finish=finish, token_ids=token_ids
            )
