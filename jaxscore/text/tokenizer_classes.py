"""What transformers' tokenizer classes add to a tokenizer.json, by name.

`tokenizer_config.json` names the class. What each class does is measured on transformers 4.57.6.
In transformers 5 the class of the same name may make its tokenizer from the vocabulary alone, so
neither class is used. A class that is not here adds nothing.
"""

import dataclasses
from collections.abc import Mapping

BOS, EOS, UNK, PAD = "bos_token", "eos_token", "unk_token", "pad_token"
SEP, CLS, MASK = "sep_token", "cls_token", "mask_token"
SPECIAL = (BOS, EOS, UNK, SEP, PAD, CLS, MASK)


@dataclasses.dataclass(frozen=True)
class TokenizerClass:
    """Of a class, what holds where `tokenizer_config.json` says nothing else.

    Attributes:
        special: special tokens by their role.
        adds: whether a BOS stands before a text and an EOS after it; None is what tokenizer.json
            says.
        prefix_space: whether the class sets the blank before a text of a plain ByteLevel.
        lowercases: whether the class sets the letters' case and accents of a BertNormalizer.
    """

    special: Mapping[str, str] = dataclasses.field(default_factory=dict)
    adds: tuple[bool, bool] | None = None
    prefix_space: bool = True
    lowercases: bool = False


PLAIN = TokenizerClass()
# A llama's class that is told of a prefix space builds itself from a SentencePiece file instead.
_LLAMA = TokenizerClass(
    {BOS: "<s>", EOS: "</s>", UNK: "<unk>"}, adds=(True, False), prefix_space=False
)
_END = {BOS: "<|endoftext|>", EOS: "<|endoftext|>", UNK: "<|endoftext|>"}

CLASSES = {
    "BertTokenizer": TokenizerClass(
        {UNK: "[UNK]", SEP: "[SEP]", PAD: "[PAD]", CLS: "[CLS]", MASK: "[MASK]"}, lowercases=True
    ),
    "BloomTokenizer": TokenizerClass({BOS: "<s>", EOS: "</s>", UNK: "<unk>", PAD: "<pad>"}),
    "CodeGenTokenizer": TokenizerClass(_END),
    "CodeLlamaTokenizer": _LLAMA,
    "CohereTokenizer": TokenizerClass(
        {BOS: "<BOS_TOKEN>", EOS: "<|END_OF_TURN_TOKEN|>", UNK: "<UNK>"}, adds=(True, False)
    ),
    "GPT2Tokenizer": TokenizerClass(_END),
    "GPTNeoXTokenizer": TokenizerClass(_END, adds=(False, False)),
    "GemmaTokenizer": TokenizerClass(
        {BOS: "<bos>", EOS: "<eos>", UNK: "<unk>", PAD: "<pad>"}, adds=(True, False)
    ),
    "LlamaTokenizer": _LLAMA,
    "Qwen2Tokenizer": TokenizerClass(
        {EOS: "<|endoftext|>", UNK: "<|endoftext|>", PAD: "<|endoftext|>"}
    ),
    "XGLMTokenizer": TokenizerClass(
        {BOS: "<s>", EOS: "</s>", SEP: "</s>", CLS: "<s>", UNK: "<unk>", PAD: "<pad>"}
    ),
}

# The class of a model whose files name none; for the models that run here.
OF_MODEL_TYPE = {
    "arcee": "LlamaTokenizer",
    "bert": "BertTokenizer",
    "bloom": "BloomTokenizer",
    "cohere": "CohereTokenizer",
    "cohere2": "CohereTokenizer",
    "deepseek_v2": "LlamaTokenizer",
    "deepseek_v3": "LlamaTokenizer",
    "ernie4_5": "LlamaTokenizer",
    "ernie4_5_moe": "LlamaTokenizer",
    "exaone4": "GPT2Tokenizer",
    "gemma": "GemmaTokenizer",
    "gemma2": "GemmaTokenizer",
    "gemma3": "GemmaTokenizer",
    "gemma3_text": "GemmaTokenizer",
    "gpt2": "GPT2Tokenizer",
    "gpt_neo": "GPT2Tokenizer",
    "gpt_neox": "GPTNeoXTokenizer",
    "gptj": "GPT2Tokenizer",
    "llama": "LlamaTokenizer",
    "llama4": "LlamaTokenizer",
    "llama4_text": "LlamaTokenizer",
    "mistral": "LlamaTokenizer",
    "mistral3": "LlamaTokenizer",
    "mixtral": "LlamaTokenizer",
    "olmo2": "GPTNeoXTokenizer",
    "olmo3": "GPT2Tokenizer",
    "olmoe": "GPTNeoXTokenizer",
    "opt": "GPT2Tokenizer",
    "phi": "CodeGenTokenizer",
    "phi3": "LlamaTokenizer",
    "phimoe": "LlamaTokenizer",
    "qwen2": "Qwen2Tokenizer",
    "qwen2_5_vl": "Qwen2Tokenizer",
    "qwen2_moe": "Qwen2Tokenizer",
    "qwen2_vl": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
    "qwen3_moe": "Qwen2Tokenizer",
    "qwen3_vl": "Qwen2Tokenizer",
    "stablelm": "GPTNeoXTokenizer",
    "starcoder2": "GPT2Tokenizer",
    "xglm": "XGLMTokenizer",
}
