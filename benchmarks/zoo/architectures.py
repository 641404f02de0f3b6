"""Architectures of the package transformers, from their configurations, with random weights.

Small enough for a few milliseconds, wide enough that operators and not calls take the time: hidden
128 to 384, 2 to 6 layers, 64 tokens, images of 128 to 224, half a second of sound. Needs
``transformers``, in the environment or in a folder of its own; the extra ``zoo`` has the version.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from benchmarks.zoo.entry import Draw, Entry, floats, ids, mask

Options = Mapping[str, Any]

_LENGTH, _WORDS = 64, 1000

_INPUTS: Mapping[str, Mapping[str, Draw]] = {
    "ids": {"input_ids": ids(_LENGTH, vocabulary=_WORDS, first=5)},
    "text": {
        "input_ids": ids(_LENGTH, vocabulary=_WORDS, first=5),
        "attention_mask": mask(_LENGTH),
    },
    "image": {"pixel_values": floats(3, 128, 128)},
    "photo": {"pixel_values": floats(3, 224, 224)},
    "sound": {"input_values": floats(8000)},
    "waves": {"input_values": floats(1, 6400)},
    "mel": {"input_features": floats(40, 200)},
    "frames": {"input_features": floats(200, 40)},
    "spectrum": {"input_values": floats(128, 64)},
    "answer": {"decoder_input_ids": ids(32, vocabulary=_WORDS, first=5)},
    "boxes": {"bbox": lambda rows: ids(_LENGTH, 1, vocabulary=50)(rows).repeat(1, 1, 4)},
    "past": {"past_values": floats(256, 7)},
}
"""Inputs by the letters of what a model takes."""


def _net(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
    }


def _text(hidden: int = 256, layers: int = 4, heads: int = 4) -> dict[str, Any]:
    return {**_net(hidden, layers, heads), "vocab_size": _WORDS, "max_position_embeddings": 128}


def _causal(hidden: int = 256, layers: int = 4, heads: int = 4) -> dict[str, Any]:
    shared = {"num_key_value_heads": heads // 2, "head_dim": hidden // heads, "use_cache": False}
    return {**_text(hidden, layers, heads), **shared}


def _gpt(hidden: int = 256, layers: int = 4, heads: int = 4, **more: Any) -> dict[str, Any]:
    names = {"n_embd": hidden, "n_layer": layers, "n_head": heads}
    return {"vocab_size": _WORDS, "n_positions": 128, "use_cache": False, **names, **more}


def _image(hidden: int = 192, layers: int = 6, heads: int = 3) -> dict[str, Any]:
    return {**_net(hidden, layers, heads), "image_size": 128, "patch_size": 16}


_TOKENS: Options = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_BOTH_HALVES: Options = {
    **{f"{half}_{what}": count for half in ("encoder", "decoder") for what, count in (
        ("layers", 3), ("attention_heads", 4), ("ffn_dim", 1024))},
    "d_model": 256,
    "vocab_size": _WORDS,
    "max_position_embeddings": 128,
    "use_cache": False,
    **_TOKENS,
    "decoder_start_token_id": 1,
}  # fmt: skip
_T5: Options = {
    "vocab_size": _WORDS,
    "d_model": 256,
    "d_kv": 64,
    "d_ff": 1024,
    "num_layers": 3,
    "num_heads": 4,
    "use_cache": False,
    "decoder_start_token_id": 0,
}
_AUDIO: Options = {
    **_net(256, 4, 4),
    "conv_dim": (64, 128, 128),
    "conv_stride": (5, 4, 4),
    "conv_kernel": (10, 8, 4),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 32,
    "num_conv_pos_embedding_groups": 4,
}
_CLIP_HALVES: Options = {
    "text_config": {**_text(192, 4, 3), **_TOKENS},
    "vision_config": _image(192, 4, 3),
    "projection_dim": 128,
}
_RESNET: Options = {
    "embedding_size": 32,
    "hidden_sizes": [32, 64, 128, 256],
    "depths": [2, 2, 2, 2],
    "layer_type": "basic",
    "out_features": ["stage4"],
}
_SLIDING: Options = {"sliding_window": 32}

MODELS: Mapping[str, Mapping[str, tuple[str, Options, str]]] = {
    "text encoders": {
        "albert": ("", {**_text(), "embedding_size": 128}, "text"),
        "bert": ("", _text(), "text"),
        "big_bird": ("", {**_text(), "attention_type": "original_full"}, "text"),
        "camembert": ("", _text(384, 3, 6), "text"),
        "canine": ("", {**_text(192, 3, 3), "local_transformer_stride": 16, "downsampling_rate": 4,
                        "upsampling_kernel_size": 4, "num_hash_buckets": 512}, "text"),
        "convbert": ("", {**_text(), "embedding_size": 128}, "text"),
        "data2vec-text": ("", {**_text(), "pad_token_id": 1}, "text"),
        "deberta": ("", {**_text(), "relative_attention": True,
                         "pos_att_type": ["p2c", "c2p"]}, "text"),
        "deberta-v2": ("", {**_text(), "relative_attention": True,
                            "pos_att_type": ["p2c", "c2p"]}, "text"),
        "distilbert": ("", {"vocab_size": _WORDS, "dim": 384, "n_layers": 3, "n_heads": 6,
                            "hidden_dim": 1536}, "text"),
        "electra": ("", {**_text(256, 6), "embedding_size": 128}, "text"),
        "ernie": ("", _text(320, 4, 5), "text"),
        "esm": ("", {**_text(), "pad_token_id": 1, "mask_token_id": 4,
                     "position_embedding_type": "rotary"}, "text"),
        "fnet": ("", _text(), "ids"),
        "layoutlm": ("", {**_text(), "max_2d_position_embeddings": 64}, "text+boxes"),
        "longformer": ("", {**_text(), "attention_window": 16}, "text"),
        "megatron-bert": ("", _text(), "text"),
        "mobilebert": ("", {**_text(256, 8), "embedding_size": 128, "intra_bottleneck_size": 128,
                            "true_hidden_size": 128, "intermediate_size": 512}, "text"),
        "modernbert": ("", {**_text(), "pad_token_id": 0, "local_attention": 32}, "text"),
        "mpnet": ("", _text(), "text"),
        "rembert": ("", {**_text(), "input_embedding_size": 128,
                         "output_embedding_size": 256}, "text"),
        "roberta": ("", {**_text(384, 6, 6), "pad_token_id": 1}, "text"),
        "roberta-prelayernorm": ("", {**_text(), "pad_token_id": 1}, "text"),
        "roformer": ("", {**_text(), "embedding_size": 256}, "text"),
        "splinter": ("", _text(128, 6, 2), "text"),
        "squeezebert": ("", {**_text(), "embedding_size": 256}, "text"),
        "xlm-roberta": ("", _text(192, 6, 3), "text"),
        "xlnet": ("", {"vocab_size": _WORDS, "d_model": 256, "n_layer": 4, "n_head": 4,
                       "d_inner": 1024, "use_mems_eval": False}, "text"),
    },
    "text decoders": {
        "biogpt": ("CausalLM", {**_text(), "use_cache": False}, "text"),
        "bloom": ("CausalLM", {**_text(), "use_cache": False}, "text"),
        "codegen": ("CausalLM", _gpt(n_ctx=128, rotary_dim=32), "text"),
        "cohere": ("CausalLM", _causal(), "text"),
        "falcon": ("CausalLM", {**_text(), "use_cache": False}, "text"),
        "gemma": ("CausalLM", _causal(), "text"),
        "gemma2": ("CausalLM", {**_causal(), **_SLIDING}, "text"),
        "gpt2": ("CausalLM", _gpt(), "text"),
        "gpt_neo": ("CausalLM", {**_text(), "num_layers": 4, "num_heads": 4,
                                 "attention_types": [[["global", "local"], 2]], "window_size": 32,
                                 "use_cache": False}, "text"),
        "gpt_neox": ("CausalLM", {**_text(), "use_cache": False}, "text"),
        "gptj": ("CausalLM", _gpt(rotary_dim=32), "text"),
        "granite": ("CausalLM", _causal(), "text"),
        "llama": ("CausalLM", _causal(384, 4, 6), "text"),
        "mamba": ("CausalLM", {"vocab_size": _WORDS, "hidden_size": 128, "state_size": 16,
                               "num_hidden_layers": 2, "use_cache": False}, "ids"),
        "mamba2": ("CausalLM", {"vocab_size": _WORDS, "hidden_size": 256, "state_size": 32,
                                "num_heads": 8, "head_dim": 64, "n_groups": 1, "chunk_size": 16,
                                "num_hidden_layers": 2, "use_cache": False}, "ids"),
        "mistral": ("CausalLM", {**_causal(), **_SLIDING}, "text"),
        "mixtral": ("CausalLM", {**_causal(192, 2), "num_local_experts": 4}, "text"),
        "mpt": ("CausalLM", {"vocab_size": _WORDS, "d_model": 256, "n_heads": 4, "n_layers": 4,
                             "max_seq_len": 128}, "text"),
        "olmo2": ("CausalLM", _causal(), "text"),
        "opt": ("CausalLM", {**_text(), "ffn_dim": 1024, "word_embed_proj_dim": 256,
                             "use_cache": False}, "text"),
        "phi": ("CausalLM", {**_causal(), "num_key_value_heads": 4}, "text"),
        "phi3": ("CausalLM", {**_causal(), **_TOKENS}, "text"),
        "qwen2": ("CausalLM", _causal(), "text"),
        "qwen2_moe": ("CausalLM", {**_causal(192, 2), "num_experts": 4, "num_experts_per_tok": 2,
                                   "moe_intermediate_size": 256,
                                   "shared_expert_intermediate_size": 256}, "text"),
        "qwen3": ("CausalLM", _causal(), "text"),
        "smollm3": ("CausalLM", {**_causal(), **_TOKENS}, "text"),
        "stablelm": ("CausalLM", _causal(), "text"),
        "starcoder2": ("CausalLM", _causal(), "text"),
    },
    "text to text": {
        "bart": ("", _BOTH_HALVES, "text+answer"),
        "blenderbot-small": ("", _BOTH_HALVES, "text+answer"),
        "longt5": ("", {**_T5, "local_radius": 15}, "text+answer"),
        "m2m_100": ("", _BOTH_HALVES, "text+answer"),
        "marian": ("", {**_BOTH_HALVES, "decoder_vocab_size": _WORDS}, "text+answer"),
        "pegasus": ("", _BOTH_HALVES, "text+answer"),
        "t5": ("", _T5, "text+answer"),
    },
    "image transformers": {
        "beit": ("", {**_image(), "use_relative_position_bias": True}, "image"),
        "deit": ("", _image(), "image"),
        "detr": ("ObjectDetection", {**_BOTH_HALVES, "num_queries": 25,
                                     "backbone_config": {**_RESNET, "model_type": "resnet"},
                                     "use_timm_backbone": False, "backbone": None}, "photo"),
        "dinov2": ("", {**_image(), "mlp_ratio": 4}, "image"),
        "focalnet": ("", {"image_size": 128, "patch_size": 4, "embed_dim": 48,
                          "hidden_sizes": [48, 96, 192], "depths": [2, 2, 2],
                          "focal_levels": [2, 2, 2], "focal_windows": [3, 3, 3]}, "image"),
        "hiera": ("", {"image_size": [128, 128], "embed_dim": 96, "depths": [2, 3],
                       "num_heads": [1, 2], "num_query_pool": 1, "masked_unit_size": [8, 8],
                       "masked_unit_attention": [True, False]}, "image"),
        "levit": ("", {"image_size": 128, "hidden_sizes": [128, 192, 256], "depths": [2, 2, 2],
                       "num_attention_heads": [4, 6, 8], "key_dim": [16, 16, 16]}, "image"),
        "mobilevit": ("", {"image_size": 128, "hidden_sizes": [64, 80, 96],
                           "num_attention_heads": 4,
                           "neck_hidden_sizes": [16, 16, 24, 48, 64, 80, 320]}, "image"),
        "poolformer": ("", {"hidden_sizes": [48, 96, 192], "depths": [2, 2, 2],
                            "num_encoder_blocks": 3, "patch_sizes": [7, 3, 3],
                            "strides": [4, 2, 2], "padding": [2, 1, 1], "mlp_ratio": 4.0}, "image"),
        "pvt": ("", {"image_size": 128, "hidden_sizes": [64, 128, 192], "depths": [2, 2, 2],
                     "num_encoder_blocks": 3, "sequence_reduction_ratios": [4, 2, 1],
                     "patch_sizes": [4, 2, 2], "strides": [4, 2, 2],
                     "num_attention_heads": [1, 2, 3], "mlp_ratios": [4, 4, 4]}, "image"),
        "segformer": ("SemanticSegmentation", {
            "num_encoder_blocks": 4, "depths": [1, 1, 1, 1], "sr_ratios": [8, 4, 2, 1],
            "hidden_sizes": [32, 64, 128, 192], "patch_sizes": [7, 3, 3, 3],
            "strides": [4, 2, 2, 2], "num_attention_heads": [1, 2, 4, 6],
            "mlp_ratios": [4, 4, 4, 4], "decoder_hidden_size": 128}, "image"),
        "swin": ("", {"image_size": 128, "patch_size": 4, "embed_dim": 48, "depths": [2, 2, 2],
                      "num_heads": [2, 4, 8], "window_size": 4}, "image"),
        "swinv2": ("", {"image_size": 128, "patch_size": 4, "embed_dim": 48, "depths": [2, 2],
                        "num_heads": [2, 4], "window_size": 4,
                        "pretrained_window_sizes": [0, 0]}, "image"),
        "vit": ("ImageClassification", _image(), "image"),
        "yolos": ("ObjectDetection", {**_image(192, 4), "image_size": [128, 128],
                                      "num_detection_tokens": 20}, "image"),
    },
    "convolutional images": {
        "bit": ("", {"embedding_size": 32, "hidden_sizes": [64, 128, 256], "depths": [1, 2, 1],
                     "num_groups": 16}, "image"),
        "convnext": ("", {"hidden_sizes": [48, 96, 192], "depths": [2, 2, 2],
                          "num_stages": 3}, "image"),
        "convnextv2": ("", {"hidden_sizes": [48, 96, 192], "depths": [2, 2, 2],
                            "num_stages": 3}, "image"),
        "mobilenet_v1": ("", {"depth_multiplier": 0.75}, "image"),
        "mobilenet_v2": ("", {"depth_multiplier": 0.75}, "photo"),
        "regnet": ("", {"embedding_size": 32, "hidden_sizes": [32, 64, 160, 256],
                        "depths": [1, 1, 3, 2], "groups_width": 16}, "photo"),
        "resnet": ("ImageClassification", _RESNET, "photo"),
    },
    "images and text": {
        "clip": ("", _CLIP_HALVES, "text+image"),
        "clipseg": ("", {**_CLIP_HALVES, "extract_layers": [1, 3], "reduce_dim": 64}, "text+image"),
        "owlvit": ("", _CLIP_HALVES, "text+image"),
        "siglip": ("", {key: _CLIP_HALVES[key] for key in ("text_config", "vision_config")},
                   "text+image"),
    },
    "sound and series": {
        "audio-spectrogram-transformer": ("", {**_net(192, 6, 3), "patch_size": 16,
                                               "max_length": 128, "num_mel_bins": 64}, "spectrum"),
        "encodec": ("", {"hidden_size": 64, "num_filters": 16, "upsampling_ratios": [4, 2],
                         "codebook_size": 64, "target_bandwidths": [6.0],
                         "sampling_rate": 8000}, "waves"),
        "hubert": ("", _AUDIO, "sound"),
        "moonshine": ("", {**_text(), **_TOKENS, "encoder_num_hidden_layers": 3,
                           "decoder_num_hidden_layers": 3, "encoder_num_attention_heads": 4,
                           "decoder_num_attention_heads": 4, "use_cache": False}, "sound+answer"),
        "patchtst": ("", {"num_input_channels": 7, "context_length": 256, "patch_length": 16,
                          "patch_stride": 8, "d_model": 128, "ffn_dim": 512,
                          "num_attention_heads": 4, "num_hidden_layers": 3}, "past"),
        "speech_to_text": ("", {**_BOTH_HALVES, "conv_channels": 256, "input_feat_per_channel": 40,
                                "max_source_positions": 200, "max_target_positions": 128},
                           "frames+answer"),
        "unispeech": ("", _AUDIO, "sound"),
        "wav2vec2": ("CTC", {**_AUDIO, "vocab_size": 32}, "sound"),
        "wavlm": ("", {**_AUDIO, "num_buckets": 64, "max_bucket_distance": 128}, "sound"),
        "whisper": ("", {**_BOTH_HALVES, "num_mel_bins": 40, "max_source_positions": 100,
                         "max_target_positions": 128}, "mel+answer"),
    },
}  # fmt: skip
"""By family: type of a model of transformers -> its head ("": none), its options, its inputs."""


def _module(name: str, head: str, options: Options, arguments: tuple[str, ...]) -> nn.Module:
    """Build a model with all its outputs of floats, the keys and values of caches left out."""
    import transformers  # type: ignore[import-not-found]

    config = transformers.AutoConfig.for_model(name, **options)
    auto = getattr(transformers, f"AutoModelFor{head}" if head else "AutoModel")
    model = auto.from_config(config).eval()
    if any("experts" in option for option in options):  # "grouped_mm" is no operator of aten
        model.set_experts_implementation("batched_mm")
    scope: dict[str, Any] = {"floats_of": _floats_of}
    given = ", ".join(f"{argument}={argument}" for argument in arguments)
    body = f"return floats_of(self.model({given}))"
    exec(f"def forward(self, {', '.join(arguments)}):\n    {body}", scope)
    module: nn.Module = type("Model", (nn.Module,), {"forward": scope["forward"]})()
    module.model = model
    return module.eval()


def _floats_of(outputs: Any) -> tuple[Tensor, ...]:
    values = outputs.to_tuple()
    return tuple(
        value for value in values if isinstance(value, Tensor) and value.is_floating_point()
    )


def _entry(family: str, name: str) -> Entry:
    head, options, kind = MODELS[family][name]
    draws = {key: draw for part in kind.split("+") for key, draw in _INPUTS[part].items()}
    build = functools.partial(_module, name, head, options, tuple(draws))
    return Entry(family, build, tuple(draws.values()))


ARCHITECTURES: Mapping[str, Entry] = {
    name: _entry(family, name) for family, models in MODELS.items() for name in models
}
