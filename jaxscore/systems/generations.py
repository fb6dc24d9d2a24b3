"""Common parts of `sample` and `usc-generate`, which let a model write texts after prompts."""

import abc
import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxscore.errors import InputError
from jaxscore.io.items import named
from jaxscore.shell.flags import flag
from jaxscore.shell.items import Entry, Items, check_usable
from jaxscore.shell.made import check_made, record_facts
from jaxscore.shell.settings import MODEL_GROUP, Settings
from jaxscore.shell.system import Record, System
from jaxscore.systems.drawn_tokens import OUTPUTS, PROMPT_TOKEN_IDS, TOKEN_IDS, ids_of_text
from jaxscore.text.chat_template import Message
from jaxscore.text.decoder import TokenBytes
from jaxscore.types.requests import GenerationRequest
from jaxscore.types.results import Generated

SEEDS = 1 << 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationSettings(Settings):
    """Settings of a system that generates text."""

    temperature: float = flag(0.0)
    max_new_tokens: int = flag(
        1024, least=1, metavar="N", help="a text ends there at the latest (default 1024)"
    )
    top_p: float = flag(
        1.0,
        metavar="P",
        help="draw from the most probable tokens of this much probability (default 1: all)",
    )
    seed: int = flag(0, group=MODEL_GROUP, help="of the draws (default 0)")

    def __post_init__(self) -> None:
        """Check all values; see `Settings`."""
        super().__post_init__()
        if self.temperature < 0:
            raise InputError(f"setting temperature is {self.temperature}, expected 0 or more")
        if not 0 < self.top_p <= 1:
            raise InputError(f"setting top_p is {self.top_p}, expected above 0 up to 1")


@dataclasses.dataclass(frozen=True)
class Prompt:
    """The prompt of an item, or the reason why it has none.

    Attributes:
        name: the item's name in messages.
        id: the entry's id.
        fields: the item's fields for the record.
        text: the text or the messages.
        added: further fields of the record.
        error: the reason why the item cannot be used, or None.
    """

    name: str
    id: str | int
    fields: Mapping[str, Any]
    text: str | list[Message] = ""
    added: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    error: str | None = None


class Placed(NamedTuple):
    """A prompt with its position, from 0, and the seed of its first text."""

    position: int
    prompt: Prompt
    seed: int


@dataclasses.dataclass(frozen=True)
class Texts:
    """The texts of a prompt.

    Attributes:
        fields: the fields for the record; empty without a text.
        finish: the `Generated.finish` of each text that this run generated.
        error: the reason why a text is missing, or None.
    """

    fields: Mapping[str, Any]
    finish: Sequence[str] = ()
    error: str | None = None


class GeneratingSystem(System, abc.ABC):
    """A system that writes texts after prompts.

    Attributes:
        texts_per_slot: the number of texts per slot of the generator that are planned together.
    """

    texts_per_slot = 16

    @abc.abstractmethod
    def prompt(self, entry: Entry, settings: Any) -> Prompt:
        """Read the prompt of an entry."""

    @abc.abstractmethod
    def seeds(self, prompts: Iterable[Prompt], settings: Any) -> Iterator[int]:
        """Yield the seed of the first text of each prompt; further texts have the next ones."""

    @abc.abstractmethod
    def model_input(self, lm: Any, prompt: Prompt, settings: Any) -> str:
        """Return the text that the model reads.

        Raises:
            InputError: the model cannot read the prompt.
        """

    @abc.abstractmethod
    def drawn_with(self, settings: Any) -> dict[str, Any]:
        """Return the settings of generation for a record; None if they do not apply."""

    @abc.abstractmethod
    def record_of(self, prompt: Prompt, fields: Mapping[str, Any]) -> Record:
        """Return the record of a prompt, from the fields of its texts or of an earlier record."""

    @abc.abstractmethod
    def is_same(self, prompt: Prompt, record: Mapping[str, Any]) -> bool:
        """Return True if an earlier record is of the same prompt, drawn with the same seeds."""

    def n_texts(self, settings: Any) -> int:
        """Return the number of texts of each prompt."""
        return 1

    def n_usable(self, record: Mapping[str, Any]) -> int:
        """Return the number of texts of an earlier record."""
        texts = record.get(OUTPUTS)
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            return 0
        return len(texts)

    def text(self, generated: Generated) -> str:
        """Return a generated text for the record."""
        return generated.text

    def sampling(self, settings: Any) -> dict[str, Any]:
        """Return arguments of a `GenerationRequest`."""
        names = ("max_new_tokens", "temperature", "top_p")
        return {name: getattr(settings, name) for name in names}

    def count(self, lm: Any, texts: Texts) -> None:
        """Count facts on generated texts in `lm` that the records lack."""

    def needs(self, settings: Any) -> tuple[str, ...]:
        """See `System.needs`."""
        return ("is_local", "generates")

    def check(self, items: Items, settings: Any) -> None:
        """Refuse items without a prompt."""
        items.require_usable()
        prompts = (self.prompt(entry, settings) for entry in items.entries())
        check_usable((prompt.name, prompt.error) for prompt in prompts)

    def recall(
        self, entry: Entry, record: Record, settings: Any, facts: Mapping[str, Any]
    ) -> bool | None:
        """See `System.recall`: a record keeps all of its texts or none."""
        prompt, n_asked = self.prompt(entry, settings), self.n_texts(settings)
        if prompt.error is not None:
            return True
        if not self.is_same(prompt, record):
            return None
        n, configs = self.n_usable(record), record.get("configs")
        if n > n_asked:
            raise InputError(f"{entry.name} has {n} samples, this run asks for {n_asked}")
        if n:
            earlier = {**configs} if isinstance(configs, dict) else {}
            earlier["generator"] = record.get("generator")
            check_made(entry.name, earlier, self._provenance(facts, settings))
        return n == n_asked

    def score(self, lm: Any, items: Any, settings: Any) -> Iterator[Record]:
        """Generate the texts of many prompts together; yield each record once it is complete.

        Raises:
            NothingUsable: no prompt has all of its texts.
        """
        needs_model, size, n_before = len(items.recalled) < items.n_all, 1, 0
        if needs_model:
            n_planned = self.texts_per_slot * lm.generator().side_by_side
            size, n_before = (
                max(1, n_planned // self.n_texts(settings)),
                lm.statistics.tokens_written,
            )
        first_failed, n_good = None, 0
        for group in self._groups(items, settings, size):
            missing = {
                index
                for index, prompt, _ in group
                if prompt.error is None and index not in items.recalled
            }
            results = self._generate(lm, group, missing, settings) if missing else iter(())
            finished: dict[int, Texts] = {}
            for index, prompt, _ in group:
                if prompt.error is not None:
                    texts = Texts({}, error=prompt.error)
                elif index in items.recalled:
                    texts = Texts(items.recalled[index])
                else:
                    while index not in finished:
                        finished.update([next(results)])
                    texts = finished.pop(index)
                    self.count(lm, texts)
                record = self.record_of(prompt, texts.fields)
                if texts.error is None:
                    n_good += 1
                else:
                    record["error"] = texts.error
                    first_failed = first_failed or (prompt.name, texts.error)
                yield record
            for _ in results:  # exhaust those of recalled prompts, planned with the others
                pass
        if first_failed is not None and not n_good:
            check_usable([first_failed])
        if needs_model:
            lm.counts["n_tokens_written"] += lm.statistics.tokens_written - n_before

    def _groups(self, items: Items, settings: Any, size: int) -> Iterator[list[Placed]]:
        """Yield the prompts in groups with `size` usable ones, recalled or not."""
        prompts, again = itertools.tee(self.prompt(entry, settings) for entry in items.entries())
        group: list[Placed] = []
        n = 0
        for index, pair in enumerate(zip(prompts, self.seeds(again, settings), strict=True)):
            group.append(Placed(index, *pair))
            n += pair[0].error is None
            if n == size:
                yield group
                group, n = [], 0
        yield group

    def _generate(
        self, lm: Any, group: Sequence[Placed], missing: Collection[int], settings: Any
    ) -> Iterator[tuple[int, Texts]]:
        """Yield index and texts of each prompt, once all of its texts are finished.

        Args:
            missing: the indices of the prompts without texts. With a journal, which has the
                others, all are planned together as in an uninterrupted run: a text then has the
                same slot and block, and the same bits.
        """
        n, inputs, requests = self.n_texts(settings), [], []
        for index, prompt, seed in group:
            if prompt.error is not None or (index not in missing and lm.journal is None):
                continue
            try:
                text = self.model_input(lm, prompt, settings)
                # The text has the special tokens that the model reads.
                [ids] = lm.encoder.prompt_ids(
                    [text], special_tokens=False, max_positions=lm.capabilities.max_positions
                )
            except InputError as problem:
                yield index, Texts({}, error=str(problem))
                continue
            inputs.append((index, text, ids.tolist()))
            requests += [
                GenerationRequest(
                    id=prompt.name if n == 1 else f"{prompt.name}, sample {k + 1}",
                    prompt=ids,
                    seed=(seed + k) % SEEDS,
                    **self.sampling(settings),
                )
                for k in range(n)
            ]
        configs = self._provenance(record_facts(lm), settings)
        origin = {
            "generator": configs.pop("generator"),
            "configs": {name: value for name, value in configs.items() if value is not None},
        }
        decoder = TokenBytes(lm.encoder.tokenizer)
        stream = lm.generator().stream(requests)
        unfinished: dict[int, dict[int, Generated]] = {}
        while True:
            with lm.timed():
                numbered = next(stream, None)
            if numbered is None:
                return
            number, k = divmod(numbered[0], n)
            results = unfinished.setdefault(number, {})
            results[k] = numbered[1]
            if len(results) == n:
                del unfinished[number]
                index, text, prompt_ids = inputs[number]
                texts = self._texts([results[k] for k in range(n)], decoder)
                if fields := texts.fields:
                    fields = {"model_input": text, **fields, PROMPT_TOKEN_IDS: prompt_ids, **origin}
                yield index, dataclasses.replace(texts, fields=fields)

    def _texts(self, results: Sequence[Generated], decoder: TokenBytes) -> Texts:
        """Return the texts of a prompt up to the first that failed."""
        n_good = next((k for k, r in enumerate(results) if r.error or not r.finish), None)
        good, error = results[:n_good], None
        if n_good is not None:
            error = str(results[n_good].error)
            # A problem of the prompt fails all of its texts identically.
            if any(result.error != results[n_good].error for result in results):
                error = f"sample {n_good + 1}: {error}"
        fields = {
            OUTPUTS: [self.text(result) for result in good],
            "finish": [result.finish for result in good],
            TOKEN_IDS: [ids_of_text(decoder, result) for result in good],
        }
        return Texts(fields if good else {}, [str(result.finish) for result in good], error)

    def _provenance(self, model: Mapping[str, Any], settings: Any) -> dict[str, Any]:
        """Return a record's `generator` and `configs`; None for settings that do not apply.

        Args:
            model: see `made.record_facts`; unknown facts are left out.
        """
        facts = dict(model)
        generator = {"generator": facts.pop("model")} if "model" in facts else {}
        dtype = {"dtype": facts.pop("dtype")} if "dtype" in facts else {}
        return {**generator, **facts, **self.drawn_with(settings), **dtype}


def name_of(record: Mapping[str, Any], number: int) -> str:
    """Return an output item's name in messages: its id, else its number and another name."""
    return str(record["id"]) if "id" in record else named(f"item {number}", {**record})
