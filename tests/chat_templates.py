"""Conversations with expected values of transformers, and short forms of published templates."""

import json

from tests.conftest import CASES

CASE = json.loads((CASES / "conversations.json").read_text("utf-8"))  # of transformers
TALKS = CASE["conversations"]
SYSTEM_FIRST = "{% if messages[0].role == 'system' %}{% set s = messages[0].content %}{% set m = messages[1:] %}{% else %}{% set m = messages %}{% endif %}"  # fmt: skip  # noqa: E501
# Short forms of published templates, with the special tokens of tiny-qwen2.
PUBLISHED = {
    # The system message is a part of the first question, and an answer follows a space.
    "llama-2": SYSTEM_FIRST
    + "{% for t in m %}{% if t.role == 'user' %}[INST] {% if loop.first and s is defined %}<<SYS>>"
    "\n{{ s }}\n<</SYS>>\n\n{% endif %}{{ t.content.strip() }} [/INST]"
    "{% else %} {{ t.content.strip() }} <|endoftext|>{% endif %}{% endfor %}",
    # It refuses a system message, and names the assistant otherwise.
    "gemma": "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for t in messages %}<|im_start|>{{ 'model' if t.role == 'assistant' else t.role }}\n"
    "{{ t.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>model\n{% endif %}",
    "zephyr": "{% for t in messages %}<|{{ t.role }}|>\n{{ t.content }}<|endoftext|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    "phi-3": "{% for t in messages %}<|{{ t.role }}|>\n{{ t.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    "vicuna": SYSTEM_FIRST
    + "{{ s if s is defined else 'A chat.' }} {% for t in m %}{% if t.role == 'user' %}USER: "
    "{{ t.content }} {% else %}ASSISTANT: {{ t.content }}<|endoftext|>{% endif %}{% endfor %}",
    # Parts of text, and a default system message.
    "parts": "<|im_start|>system\nBe brief.<|im_end|>\n{% for t in messages %}<|im_start|>"
    "{{ t.role }}\n{% for p in t.content %}{{ p.text }}{% endfor %}<|im_end|>\n{% endfor %}",
}
QWEN3 = (  # the last answer always has a block of reasoning, earlier ones never
    "{% for t in messages %}<|im_start|>{{ t.role }}\n{% if t.role == 'assistant' %}"
    "{% set c = t.content %}{% set r = '' %}{% if '</think>' in c %}"
    "{% set r = c.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set c = c.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{% if loop.last %}<think>\n{{ r }}\n</think>\n\n{% endif %}{{ c }}{% else %}{{ t.content }}"
    "{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% endif %}{% endif %}"
)
CHINESE = [
    {"role": "user", "content": "你好。🙂 什么是北京"},
    {"role": "assistant", "content": "北京是中国的首都。\n\n它有两千万人。 "},
    {"role": "user", "content": "谢谢"},
    {"role": "assistant", "content": "不客气。"},
]
