"""Architectures of transformers: structure and width from a configuration, two layers where the full model is slow.

Vocabularies are cut to 1,000 tokens, since an embedding costs memory and little else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.models.definition import Architecture, Built, image, tokens

WORDS = 1000


class _Called(nn.Module):
    """A model of transformers with positional inputs and a tuple of tensors as result."""

    def __init__(
        self, model: nn.Module, names: Sequence[str], results: Sequence[str], fixed: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.model, self.names, self.results, self.fixed = model, tuple(names), tuple(results), dict(fixed)

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        found = self.model(**dict(zip(self.names, inputs, strict=True)), **self.fixed)
        return tuple(found[result] for result in self.results)


def _model(
    kind: str,
    inputs: Callable[[], dict[str, Any]],
    config: Mapping[str, Any],
    results: Sequence[str] = ("last_hidden_state",),
    maker: str = "AutoModel",
    fixed: Mapping[str, Any] | None = None,
    part: str = "",
) -> Built:
    """The model of a configuration; with `part`, the attribute of it that is called."""
    import transformers

    made = transformers.AutoConfig.for_model(kind, **config)
    if maker == "AutoModel":
        model = transformers.AutoModel.from_config(made)
    else:
        model = getattr(transformers, maker)(made)
    given = inputs()
    model = getattr(model, part) if part else model
    return _Called(model, list(given), results, fixed or {}), tuple(given.values())


def _text(length: int = 128, mask: bool = True) -> dict[str, Any]:
    """Token numbers and a mask that leaves out the last five of them."""
    given = {"input_ids": tokens(WORDS, 1, length)}
    if mask:
        given["attention_mask"] = (torch.arange(length)[None] < length - 5).long()
    return given


def _pixels(size: int = 224, channels: int = 3) -> dict[str, Any]:
    return {"pixel_values": image(size, channels=channels)}


def _pair(length: int = 64) -> dict[str, Any]:
    return _text(length) | {"decoder_input_ids": tokens(WORDS, 1, length // 2)}


def _encoder(name: str, kind: str = "", config: Mapping[str, Any] | None = None, **fields: Any) -> Architecture:
    """An encoder of text with a mask."""
    fields.setdefault("inputs", _text)
    made = {"vocab_size": WORDS, "pad_token_id": 0, **({"num_hidden_layers": 2} if config is None else config)}
    return _entry(name, partial(_model, kind or name, config=made, **fields))


def _decoder(name: str, config: Mapping[str, Any], kind: str = "", **fields: Any) -> Architecture:
    """A decoder over 64 tokens, without a cache of keys and values."""
    tokens_ = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    made = {"vocab_size": WORDS, "use_cache": False, **tokens_, **config}
    fields.setdefault("inputs", partial(_text, 64))
    return _entry(name, partial(_model, kind or name, config=made, fixed={"use_cache": False}, **fields))


def _entry(name: str, build: Callable[[], Built], notes: str = "2 layers") -> Architecture:
    return Architecture(name, "transformers", "transformers", build, notes=notes)


_LLAMA = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 2, "num_attention_heads": 16}
_GROUPED = {**_LLAMA, "num_key_value_heads": 4}
_LAYOUT = {"vocab_size": WORDS, "num_hidden_layers": 2, "pad_token_id": 0}
_WHISPER = {"d_model": 384, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 6}
_WHISPER |= {"decoder_attention_heads": 6, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536, "vocab_size": WORDS}
_MARKS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
_BART = {"vocab_size": WORDS, "encoder_layers": 2, "decoder_layers": 2, **_MARKS, "forced_eos_token_id": None}
_CLIP_TEXT = {
    "num_hidden_layers": 2,
    "vocab_size": WORDS,
    "eos_token_id": WORDS - 1,
    "bos_token_id": 1,
    "pad_token_id": 0,
}


def _boxed(length: int = 64) -> dict[str, Any]:
    corner = torch.randint(0, 500, (1, length, 2))
    return _text(length) | {"bbox": torch.cat([corner, corner + torch.randint(1, 400, corner.shape)], -1)}


def _speech(samples: int = 16000) -> dict[str, Any]:
    return {"input_values": torch.randn(1, samples)}


def _heard(frames: int = 3000) -> dict[str, Any]:
    return {"input_features": torch.randn(1, 80, frames), "decoder_input_ids": tokens(WORDS, 1, 16)}


def _matched() -> dict[str, Any]:
    return {**_text(77), **_pixels()}


ARCHITECTURES = [
    _encoder("bert"),
    _encoder("roberta"),
    _encoder("distilbert", config={"n_layers": 2}),
    _encoder("albert", config={"hidden_size": 768, "num_hidden_layers": 2, "num_attention_heads": 12}),
    _encoder("electra"),
    _encoder("deberta", config={"num_hidden_layers": 2, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    _encoder(
        "deberta-v2",
        config={
            "num_hidden_layers": 2,
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"],
            "hidden_size": 768,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "position_buckets": 64,
        },
    ),
    _encoder("mpnet"),
    _encoder("mobilebert", config={"num_hidden_layers": 4}),
    _encoder("squeezebert"),
    _encoder("xlnet", config={"n_layer": 2, "d_model": 768, "n_head": 12, "d_inner": 3072}, fixed={"use_mems": False}),
    _encoder("longformer", config={"num_hidden_layers": 2, "attention_window": 32}),
    _encoder("big_bird", config={"num_hidden_layers": 2, "attention_type": "original_full"}),
    _encoder("modernbert", config={"num_hidden_layers": 3, "cls_token_id": 1, "sep_token_id": 2}),
    _encoder("fnet", inputs=partial(_text, mask=False)),
    _decoder("gpt2", {"n_layer": 2}),
    _decoder("opt", {"num_hidden_layers": 2}),
    _decoder("bloom", {"n_layer": 2, "hidden_size": 1024, "n_head": 16}),
    _decoder(
        "gpt_neo", {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "hidden_size": 768, "num_heads": 12}
    ),
    _decoder("gpt_neox", {**_LLAMA}),
    _decoder("gptj", {"n_layer": 2, "n_embd": 1024, "n_head": 16}),
    _decoder("llama", _GROUPED),
    _decoder("mistral", {**_GROUPED, "sliding_window": 32}),
    _decoder("mixtral", {**_GROUPED, "hidden_size": 512, "intermediate_size": 1024, "num_local_experts": 4}),
    _decoder(
        "mixtral-batched",
        {
            **_GROUPED,
            "hidden_size": 512,
            "intermediate_size": 1024,
            "num_local_experts": 4,
            "experts_implementation": "batched_mm",
        },
        "mixtral",
    ),
    _decoder("gemma", {**_GROUPED, "head_dim": 64}),
    _decoder("gemma2", {**_GROUPED, "head_dim": 64, "sliding_window": 32}),
    _decoder("phi", _LLAMA),
    _decoder("phi3", _GROUPED),
    _decoder("qwen2", _GROUPED),
    _decoder("qwen3", {**_GROUPED, "head_dim": 64}),
    _decoder("falcon", {"hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 2}),
    _decoder("mpt", {"d_model": 1024, "n_heads": 16, "n_layers": 2}),
    _decoder("mamba", {"hidden_size": 256, "num_hidden_layers": 2}, inputs=partial(_text, 32, mask=False)),
    _decoder("rwkv", {"hidden_size": 256, "num_hidden_layers": 2}, inputs=partial(_text, 32, mask=False)),
    _entry("t5", partial(_model, "t5", _pair, {"vocab_size": WORDS, "num_layers": 2}, fixed={"use_cache": False})),
    _entry("bart", partial(_model, "bart", _pair, _BART, fixed={"use_cache": False})),
    _entry("whisper", partial(_model, "whisper", _heard, _WHISPER | _MARKS, fixed={"use_cache": False})),
    _entry(
        "clip",
        partial(
            _model,
            "clip",
            _matched,
            {"text_config": _CLIP_TEXT, "vision_config": {"num_hidden_layers": 2}},
            ("text_embeds", "image_embeds", "logits_per_image"),
        ),
    ),
    _entry("vit", partial(_model, "vit", _pixels, {"num_hidden_layers": 2})),
    _entry("dinov2", partial(_model, "dinov2", _pixels, {"num_hidden_layers": 2, "image_size": 224})),
    _entry("segformer", partial(_model, "segformer", _pixels, {}), notes=""),
    _entry(
        "detr",
        partial(
            _model,
            "detr",
            _pixels,
            {
                "encoder_layers": 2,
                "decoder_layers": 2,
                "use_timm_backbone": False,
                "use_pretrained_backbone": False,
                "backbone": None,
                "backbone_config": {"model_type": "resnet", "out_features": ["stage4"]},
            },
            ("logits", "pred_boxes"),
            "DetrForObjectDetection",
        ),
    ),
    _entry(
        "dpt",
        partial(
            _model,
            "dpt",
            partial(_pixels, 224),
            {"image_size": 224, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3]},
            ("logits",),
            "DPTForSemanticSegmentation",
        ),
        notes="4 layers",
    ),
    _entry(
        "sam-encoder",
        partial(
            _model,
            "sam",
            partial(_pixels, 256),
            {"vision_config": {"num_hidden_layers": 2, "image_size": 256, "global_attn_indexes": [1]}},
            part="vision_encoder",
        ),
        notes="2 layers, image of 256",
    ),
    _entry("layoutlm", partial(_model, "layoutlm", _boxed, _LAYOUT)),
    _entry("wav2vec2", partial(_model, "wav2vec2", _speech, {"num_hidden_layers": 2, "apply_spec_augment": False})),
    _entry("hubert", partial(_model, "hubert", _speech, {"num_hidden_layers": 2, "apply_spec_augment": False})),
]
