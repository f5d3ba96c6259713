"""Chat models built in place: a byte-level tokenizer, a tiny Llama, and templates with the quirks of the main families.

The templates are our own and short; each has the properties of its family that an append-only encoding must survive.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIALS = (
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<bos>"),
    *("<s>", "</s>", "[INST]", "[/INST]", "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>"),
)
# As in Qwen: one id each, and yet not special, so that a decoder which skips special tokens keeps them.
PLAIN_ADDED = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# A tool role that is written into a user turn.
QWEN25 = (
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{{ '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}"
    "{% elif m.role in ['system', 'user', 'assistant'] %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# The same, with thinking dropped from every turn but the last, and an empty thought in the prompt when it is off.
QWEN3 = (
    "{% for m in messages %}{% set text = m.content %}"
    "{% if m.role == 'assistant' and not loop.last %}"
    "{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{% if m.role == 'tool' %}"
    "{{ '<|im_start|>user\n<tool_response>\n' + text + '\n</tool_response><|im_end|>\n' }}"
    "{% elif m.role in ['system', 'user', 'assistant'] %}"
    "{{ '<|im_start|>' + m.role + '\n' + text + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)

# A beginning of text, today's date in the system message, contents trimmed, tool results written as JSON.
LLAMA3 = (
    "{{ '<bos>' }}{% set date = date_string if date_string is defined else strftime_now('%d %b %Y') %}"
    "{% for m in messages %}{{ '<|start_header_id|>' + ('ipython' if m.role == 'tool' else m.role) }}"
    "{{ '<|end_header_id|>\n\n' }}{% if m.role == 'system' %}{{ 'Today Date: ' + date + '\n\n' }}{% endif %}"
    "{{ (m.content | tojson) if m.role == 'tool' else (m.content | trim) }}{{ '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)

# Its own system block around the given one, with the date; tool results as user turns.
SMOLLM3 = (
    "{% set think = enable_thinking is not defined or enable_thinking %}"
    "{{ '<|im_start|>system\n## Metadata\n\nToday Date: ' + strftime_now('%d %B %Y') + '\nReasoning Mode: ' }}"
    "{{ '/think' if think else '/no_think' }}{{ '\n\n## Custom Instructions\n\n' }}"
    "{% if messages[0].role == 'system' %}{{ messages[0].content.rstrip() }}"
    "{% set messages = messages[1:] %}{% endif %}"
    "{{ '\n\n<|im_end|>\n' }}{% for m in messages %}"
    "{{ '<|im_start|>' + ('user' if m.role == 'tool' else m.role) + '\n' }}"
    "{% if m.role == 'assistant' and not think %}{{ '<think>\n\n</think>\n' }}{% endif %}"
    "{{ m.content.lstrip('\n') + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if not think %}{{ '<think>\n\n</think>\n' }}{% endif %}{% endif %}"
)

# Strict alternation, no generation prompt, a space before answers, tool results only with ids, and a system message
# that moves to the last user turn as the conversation grows.
MISTRAL = (
    "{{ '<s>' }}{% set system = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% set turns = messages[1:] if system else messages %}{% for m in turns %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}{{ '[INST] ' + (system + '\n\n' if system and loop.last else '') }}"
    "{{ m.content + '[/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ ' ' + m.content + '</s>' }}"
    "{% else %}{{ raise_exception('tool results need an id') }}{% endif %}{% endfor %}"
)

# No system role, and another name for the assistant.
GEMMA = (
    "{{ '<bos>' }}{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for m in messages %}"
    "{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('unknown role') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim }}"
    "{{ '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)

# The generation prompt itself opens the thinking, and earlier turns lose theirs.
DEEPSEEK = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}"
    "{% elif m.role == 'user' %}{{ '<|user|>' + m.content }}"
    "{% elif m.role == 'assistant' %}{{ '<|assistant|>' + m.content.split('</think>')[-1].lstrip('\n') + '</s>' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|><think>\n' }}{% endif %}"
)

# Roles in plain text, which anybody can write.
VICUNA = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content + ' ' }}"
    "{% elif m.role == 'user' %}{{ 'USER: ' + m.content + ' ' }}"
    "{% elif m.role == 'assistant' %}{{ 'ASSISTANT: ' + m.content + '</s>' }}"
    "{% else %}{{ raise_exception('no such role') }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT: ' }}{% endif %}"
)

TEMPLATES = {
    "chatml": CHATML,
    "qwen2.5": QWEN25,
    "qwen3": QWEN3,
    "llama3": LLAMA3,
    "smollm3": SMOLLM3,
    "mistral": MISTRAL,
    "gemma": GEMMA,
    "deepseek": DEEPSEEK,
}


def byte_level(texts: Iterable[str] = (), vocab_size: int = 320) -> Tokenizer:
    """A byte-level BPE with a few merges, more for what is in `texts`, and the added tokens of all families."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    own = ["the answer of the clone is in the document", "Answer: call im_end think"]
    tokenizer.train_from_iterator([*own, *texts], trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in PLAIN_ADDED])
    return tokenizer


def chat_tokenizer(template: str | None, backend: Tokenizer | None = None) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend or byte_level(), bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = template
    return tokenizer


def tiny_llama(tokenizer: PreTrainedTokenizerFast, positions: int = 1024, hidden_size: int = 32) -> LlamaForCausalLM:
    """Random weights: two layers, grouped heads, tied embeddings."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
    )
    return LlamaForCausalLM(config).eval()
