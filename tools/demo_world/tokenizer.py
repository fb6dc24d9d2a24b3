"""The tokenizer: byte-level BPE learned from the world's own texts."""

import random
import re
from collections.abc import Iterator

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from tools.demo_world import prompts
from tools.demo_world.documents import draw_documents
from tools.demo_world.facts import fixed_world
from tools.demo_world.names import ENDS, MIDDLES, ONSETS

MIDDLE = 0.5  # progress of the run whose mix of documents the tokenizer learns from
SAMPLES = 2000  # groups of documents, about two megabytes; more change the merges little
SPECIAL = re.compile("|".join(re.escape(token) for token in prompts.SPECIAL_TOKENS))
LATER_SYLLABLES = [*MIDDLES, *(end for ends in ENDS.values() for end in ends)]
NAME = re.compile(
    rf"\b({'|'.join(ONSETS)})(?:{'|'.join(MIDDLES)})?(?:{'|'.join(LATER_SYLLABLES)})\b"
)


def train_tokenizer(vocab_size: int, seed: int) -> Tokenizer:
    """A tokenizer of exactly `vocab_size` ids that begins each text with the BOS token.

    Raises:
        ValueError: the world's texts do not give that many merges.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=prompts.SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed), trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(
            f"vocabulary of {tokenizer.get_vocab_size()} ids, expected {vocab_size}; "
            "ask for fewer or draw more samples"
        )
    bos = tokenizer.token_to_id(prompts.BOS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{prompts.BOS} $A",
        pair=f"{prompts.BOS} $A {prompts.BOS}:1 $B:1",
        special_tokens=[(prompts.BOS, bos)],
    )
    return tokenizer


def _texts(seed: int) -> Iterator[str]:
    """Texts cut where documents cut them, so that answers without a blank are learned too.

    Names are cut between their syllables: merges across them would turn each name into rare
    pieces of which no two names share one, and a name could not be copied piece by piece.
    """
    rng = random.Random(f"tokenizer {seed}")
    world = fixed_world(seed)
    for _ in range(SAMPLES):
        for document in draw_documents(rng, world, MIDDLE):
            yield from LATER_SYLLABLES
            joined = ""
            for segment in document.segments:
                if segment.is_separate:
                    yield _first_syllables(joined)
                    yield _first_syllables(segment.text)
                    joined = ""
                else:
                    joined += segment.text
            yield _first_syllables(joined)


def _first_syllables(text: str) -> str:
    """The text without special tokens and with only the first syllable left of each name."""
    return NAME.sub(r"\1", SPECIAL.sub("\n", text))
