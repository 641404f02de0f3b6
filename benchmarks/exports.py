"""Exports of small transformers as ``.pt2`` and as ONNX, imported by Braid: who refuses which?

    transformers by name ──torch.export──> NAME.pt2  ──import_model──> in parts, whole, or refused
                         ──torch.onnx────> NAME.onnx ──import_model──>   "

Weights are random, widths 16 to 64, two layers. Needs ``transformers`` (made with 5.24), which is
no dependency of Braid: ``pip install --target FOLDER --no-deps transformers ...``, and then
``PYTHONPATH=FOLDER python -m benchmarks.exports WORK [NAME ...]``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from braid.core.errors import BraidError
from braid.engine.importer.host.launch import import_model
from braid.engine.importer.host.report import read_report
from braid.engine.importer.host.request import ImportLimits

Options = Mapping[str, Any]

_BATCH, _LENGTH = 2, 12
_NET: Options = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
_TEXT: Options = {**_NET, "vocab_size": 99, "max_position_embeddings": 64}
_CAUSAL: Options = {**_TEXT, "num_key_value_heads": 2, "head_dim": 8, "use_cache": False}
_IMAGE: Options = {**_NET, "image_size": 32, "patch_size": 8}
_TOKENS: Options = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_BOTH_HALVES: Options = {
    **{f"{half}_{what}": count for half in ("encoder", "decoder") for what, count in (
        ("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))},
    "d_model": 32,
    "vocab_size": 99,
    "max_position_embeddings": 64,
    "use_cache": False,
    **_TOKENS,
    "decoder_start_token_id": 1,
}  # fmt: skip
_AUDIO: Options = {
    **_NET,
    "conv_dim": (16, 16),
    "conv_stride": (4, 4),
    "conv_kernel": (8, 4),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}


def _ids() -> Tensor:
    return torch.randint(5, 90, (_BATCH, _LENGTH))


def _mask() -> Tensor:
    mask = torch.ones(_BATCH, _LENGTH, dtype=torch.int64)
    mask[1, 8:] = 0
    return mask


def _inputs(kind: str) -> dict[str, Tensor]:
    """Arguments of a model by the letters of what it takes."""
    kinds = {
        "ids": lambda: {"input_ids": _ids()},
        "text": lambda: {"input_ids": _ids(), "attention_mask": _mask()},
        "image": lambda: {"pixel_values": torch.randn(_BATCH, 3, 32, 32)},
        "sound": lambda: {"input_values": torch.randn(_BATCH, 1600)},
        "waves": lambda: {"input_values": torch.randn(_BATCH, 1, 1600)},
        "mel": lambda: {"input_features": torch.randn(_BATCH, 16, 100)},
        "frames": lambda: {"input_features": torch.randn(_BATCH, 40, 16)},
        "spectrum": lambda: {"input_values": torch.randn(_BATCH, 64, 16)},
        "answer": lambda: {"decoder_input_ids": _ids()},
        "boxes": lambda: {"bbox": torch.randint(0, 50, (_BATCH, _LENGTH, 1)).repeat(1, 1, 4)},
        "past": lambda: {"past_values": torch.randn(_BATCH, 32, 3)},
    }
    return {name: value for part in kind.split("+") for name, value in kinds[part]().items()}


_CLIP_HALVES: Options = {
    "text_config": {**_TEXT, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0},
    "vision_config": _IMAGE,
    "projection_dim": 16,
}
_RESNET: Options = {
    "embedding_size": 16,
    "hidden_sizes": [16, 32],
    "depths": [1, 1],
    "layer_type": "basic",
    "out_features": ["stage2"],
}

MODELS: Mapping[str, tuple[str, Options, str]] = {
    # encoders of text
    "albert": ("", {**_TEXT, "embedding_size": 16}, "text"),
    "bert": ("", _TEXT, "text"),
    "big_bird": ("", {**_TEXT, "attention_type": "original_full"}, "text"),
    "camembert": ("", _TEXT, "text"),
    "canine": ("", {**_TEXT, "local_transformer_stride": 4, "downsampling_rate": 2,
                    "upsampling_kernel_size": 2, "num_hash_buckets": 64}, "text"),
    "convbert": ("", {**_TEXT, "embedding_size": 32}, "text"),
    "deberta": ("", {**_TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, "text"),
    "deberta-v2": ("", {**_TEXT, "relative_attention": True,
                        "pos_att_type": ["p2c", "c2p"]}, "text"),
    "distilbert": ("", {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4,
                        "hidden_dim": 64}, "text"),
    "electra": ("", {**_TEXT, "embedding_size": 16}, "text"),
    "ernie": ("", _TEXT, "text"),
    "esm": ("", {**_TEXT, "pad_token_id": 1, "mask_token_id": 4,
                 "position_embedding_type": "rotary"}, "text"),
    "fnet": ("", _TEXT, "ids"),
    "layoutlm": ("", {**_TEXT, "max_2d_position_embeddings": 64}, "text+boxes"),
    "longformer": ("", {**_TEXT, "attention_window": 4}, "text"),
    "mobilebert": ("", {**_TEXT, "embedding_size": 32, "intra_bottleneck_size": 16,
                        "true_hidden_size": 16}, "text"),
    "modernbert": ("", {**_TEXT, "pad_token_id": 0, "local_attention": 8}, "text"),
    "mpnet": ("", _TEXT, "text"),
    "rembert": ("", {**_TEXT, "input_embedding_size": 16, "output_embedding_size": 16}, "text"),
    "roberta": ("", {**_TEXT, "pad_token_id": 1}, "text"),
    "roformer": ("", {**_TEXT, "embedding_size": 32}, "text"),
    "splinter": ("", _TEXT, "text"),
    "squeezebert": ("", {**_TEXT, "embedding_size": 32}, "text"),
    "xlm-roberta": ("", _TEXT, "text"),
    "xlnet": ("", {"vocab_size": 99, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64,
                   "use_mems_eval": False}, "text"),
    # decoders of text
    "biogpt": ("CausalLM", {**_TEXT, "use_cache": False}, "text"),
    "bloom": ("CausalLM", {**_TEXT, "use_cache": False}, "text"),
    "codegen": ("CausalLM", {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4,
                             "n_positions": 64, "n_ctx": 64, "rotary_dim": 4,
                             "use_cache": False}, "text"),
    "cohere": ("CausalLM", _CAUSAL, "text"),
    "falcon": ("CausalLM", {**_TEXT, "use_cache": False}, "text"),
    "gemma": ("CausalLM", _CAUSAL, "text"),
    "gemma2": ("CausalLM", {**_CAUSAL, "sliding_window": 8}, "text"),
    "gpt2": ("CausalLM", {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4,
                          "n_positions": 64, "use_cache": False}, "text"),
    "gpt_neo": ("CausalLM", {**_TEXT, "num_layers": 2, "num_heads": 4,
                             "attention_types": [[["global", "local"], 1]], "window_size": 8,
                             "use_cache": False}, "text"),
    "gpt_neox": ("CausalLM", {**_TEXT, "use_cache": False}, "text"),
    "gptj": ("CausalLM", {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4,
                          "n_positions": 64, "rotary_dim": 4, "use_cache": False}, "text"),
    "llama": ("CausalLM", _CAUSAL, "text"),
    "mamba": ("CausalLM", {"vocab_size": 99, "hidden_size": 32, "state_size": 8,
                           "num_hidden_layers": 2, "use_cache": False}, "ids"),
    "mamba2": ("CausalLM", {"vocab_size": 99, "hidden_size": 32, "state_size": 8, "num_heads": 8,
                            "head_dim": 8, "n_groups": 1, "chunk_size": 4, "num_hidden_layers": 2,
                            "use_cache": False}, "ids"),
    "mistral": ("CausalLM", {**_CAUSAL, "sliding_window": 8}, "text"),
    "mixtral": ("CausalLM", {**_CAUSAL, "num_local_experts": 4}, "text"),
    "mpt": ("CausalLM", {"vocab_size": 99, "d_model": 32, "n_heads": 4, "n_layers": 2,
                         "max_seq_len": 64}, "text"),
    "olmo2": ("CausalLM", _CAUSAL, "text"),
    "opt": ("CausalLM", {**_TEXT, "ffn_dim": 64, "word_embed_proj_dim": 32,
                         "use_cache": False}, "text"),
    "phi": ("CausalLM", {**_CAUSAL, "num_key_value_heads": 4}, "text"),
    "phi3": ("CausalLM", {**_CAUSAL, **_TOKENS}, "text"),
    "qwen2": ("CausalLM", _CAUSAL, "text"),
    "qwen2_moe": ("CausalLM", {**_CAUSAL, "num_experts": 4, "num_experts_per_tok": 2,
                               "moe_intermediate_size": 32,
                               "shared_expert_intermediate_size": 32}, "text"),
    "qwen3": ("CausalLM", _CAUSAL, "text"),
    "smollm3": ("CausalLM", {**_CAUSAL, **_TOKENS}, "text"),
    "stablelm": ("CausalLM", _CAUSAL, "text"),
    "starcoder2": ("CausalLM", _CAUSAL, "text"),
    # text to text
    "bart": ("", _BOTH_HALVES, "text+answer"),
    "blenderbot-small": ("", _BOTH_HALVES, "text+answer"),
    "m2m_100": ("", _BOTH_HALVES, "text+answer"),
    "marian": ("", {**_BOTH_HALVES, "decoder_vocab_size": 99}, "text+answer"),
    "pegasus": ("", _BOTH_HALVES, "text+answer"),
    "t5": ("", {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2,
                "num_heads": 4, "use_cache": False, "decoder_start_token_id": 0}, "text+answer"),
    "longt5": ("", {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2,
                    "num_heads": 4, "use_cache": False, "decoder_start_token_id": 0,
                    "local_radius": 3}, "text+answer"),
    # images
    "beit": ("", {**_IMAGE, "use_relative_position_bias": True}, "image"),
    "bit": ("", {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1],
                 "num_groups": 4}, "image"),
    "clip": ("", _CLIP_HALVES, "text+image"),
    "clipseg": ("", {**_CLIP_HALVES, "extract_layers": [1], "reduce_dim": 16}, "text+image"),
    "convnext": ("", {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2}, "image"),
    "deit": ("", _IMAGE, "image"),
    "detr": ("ObjectDetection", {**_BOTH_HALVES, "num_queries": 5,
                                 "backbone_config": {**_RESNET, "model_type": "resnet"},
                                 "use_timm_backbone": False, "backbone": None}, "image"),
    "dinov2": ("", {**_IMAGE, "mlp_ratio": 2}, "image"),
    "focalnet": ("", {"image_size": 32, "patch_size": 2, "embed_dim": 16, "hidden_sizes": [16, 32],
                      "depths": [1, 1], "focal_levels": [2, 2], "focal_windows": [3, 3]}, "image"),
    "hiera": ("", {"image_size": [32, 32], "embed_dim": 16, "depths": [1, 1], "num_heads": [1, 2],
                   "num_query_pool": 1, "masked_unit_size": [4, 4],
                   "masked_unit_attention": [True, False]}, "image"),
    "levit": ("", {"image_size": 32, "hidden_sizes": [16, 24, 32], "depths": [1, 1, 1],
                   "num_attention_heads": [2, 3, 4], "key_dim": [8, 8, 8]}, "image"),
    "mobilenet_v2": ("", {"image_size": 32, "depth_multiplier": 0.25}, "image"),
    "mobilevit": ("", {"image_size": 32, "hidden_sizes": [16, 24, 32], "num_attention_heads": 4,
                       "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 32]}, "image"),
    "owlvit": ("", {**_CLIP_HALVES, "text_config": {**_CLIP_HALVES["text_config"],
                                                    "max_position_embeddings": 16}}, "text+image"),
    "poolformer": ("", {"hidden_sizes": [16, 32], "depths": [1, 1], "num_encoder_blocks": 2,
                        "patch_sizes": [7, 3], "strides": [4, 2], "padding": [2, 1],
                        "mlp_ratio": 2.0}, "image"),
    "pvt": ("", {"image_size": 32, "hidden_sizes": [16, 32], "depths": [1, 1],
                 "num_encoder_blocks": 2, "sequence_reduction_ratios": [2, 1],
                 "patch_sizes": [4, 2], "strides": [4, 2], "num_attention_heads": [1, 2],
                 "mlp_ratios": [2, 2]}, "image"),
    "regnet": ("", {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1],
                    "groups_width": 8}, "image"),
    "resnet": ("ImageClassification", _RESNET, "image"),
    "segformer": ("SemanticSegmentation", {
        "num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [16, 32],
        "patch_sizes": [7, 3], "strides": [4, 2], "num_attention_heads": [1, 2],
        "mlp_ratios": [2, 2], "decoder_hidden_size": 16}, "image"),
    "siglip": ("", {"text_config": {**_CLIP_HALVES["text_config"], "max_position_embeddings": 12},
                    "vision_config": _IMAGE}, "text+image"),
    "swin": ("", {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2],
                  "num_heads": [2, 4], "window_size": 4}, "image"),
    "swinv2": ("", {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2],
                    "num_heads": [2, 4], "window_size": 4,
                    "pretrained_window_sizes": [0, 0]}, "image"),
    "vit": ("ImageClassification", _IMAGE, "image"),
    "yolos": ("ObjectDetection", {**_IMAGE, "image_size": [32, 32],
                                  "num_detection_tokens": 5}, "image"),
    # sound and series
    "audio-spectrogram-transformer": ("", {**_NET, "patch_size": 8, "max_length": 64,
                                           "num_mel_bins": 16}, "spectrum"),
    "encodec": ("", {"hidden_size": 16, "num_filters": 4, "upsampling_ratios": [4, 2],
                     "codebook_size": 16, "target_bandwidths": [6.0],
                     "sampling_rate": 8000}, "waves"),
    "hubert": ("", _AUDIO, "sound"),
    "moonshine": ("", {**_TEXT, **_TOKENS, "encoder_num_hidden_layers": 2,
                       "decoder_num_hidden_layers": 2, "encoder_num_attention_heads": 4,
                       "decoder_num_attention_heads": 4, "use_cache": False}, "sound+answer"),
    "patchtst": ("", {"num_input_channels": 3, "context_length": 32, "patch_length": 8,
                      "patch_stride": 8, "d_model": 32, "ffn_dim": 64, "num_attention_heads": 4,
                      "num_hidden_layers": 2}, "past"),
    "speech_to_text": ("", {**_BOTH_HALVES, "conv_channels": 16, "input_feat_per_channel": 16,
                            "max_source_positions": 64, "max_target_positions": 64},
                       "frames+answer"),
    "unispeech": ("", _AUDIO, "sound"),
    "wav2vec2": ("CTC", {**_AUDIO, "vocab_size": 32}, "sound"),
    "wavlm": ("", {**_AUDIO, "num_buckets": 16, "max_bucket_distance": 32}, "sound"),
    "whisper": ("", {**_BOTH_HALVES, "num_mel_bins": 16, "max_source_positions": 50,
                     "max_target_positions": 64}, "mel+answer"),
}  # fmt: skip
"""Type of a model of transformers -> its head ("": none), options of its config, its inputs."""


def _module(name: str) -> nn.Module:
    import transformers  # type: ignore[import-not-found]

    head, options, kind = MODELS[name]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, **options)
    auto = getattr(transformers, f"AutoModelFor{head}" if head else "AutoModel")
    model = auto.from_config(config).eval()
    if any("experts" in option for option in options):  # "grouped_mm" is no operator of aten
        model.set_experts_implementation("batched_mm")

    arguments = ", ".join(_inputs(kind))
    given = ", ".join(f"{argument}={argument}" for argument in _inputs(kind))
    scope: dict[str, Any] = {}
    exec(f"def forward(self, {arguments}):\n    return self.model({given})", scope)
    module: nn.Module = type("Model", (nn.Module,), {"forward": scope["forward"]})()
    module.model = model
    return module.eval()


def export(name: str, folder: Path) -> None:
    """Write ``NAME.pt2``, ``NAME.onnx`` and what could not be written, with its reason."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    module, inputs, said = _module(name), _inputs(MODELS[name][2]), {}
    batch = torch.export.Dim("batch", min=1, max=64)
    shapes: Any = {argument: {0: batch} for argument in inputs}
    with torch.no_grad():
        try:
            program = torch.export.export(module, (), inputs, dynamic_shapes=shapes, strict=False)
        except Exception as error:
            said["batch"], shapes = _first_line(error), None
            program = torch.export.export(module, (), inputs, strict=False)
        torch.export.save(program, folder / f"{name}.pt2")
        try:
            written = torch.onnx.export(
                module, (), kwargs=inputs, dynamic_shapes=shapes, dynamo=True, verbose=False
            )
            assert written is not None
            written.save(folder / f"{name}.onnx")
        except Exception as error:
            said["onnx"] = _first_line(error)
    (folder / f"{name}.json").write_text(json.dumps(said))


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:200]


def imported(file: Path) -> str:
    """Return how Braid takes a file: "parts", "whole: reason" or "refused: reason"."""
    with tempfile.TemporaryDirectory() as folder:
        artefact = Path(folder) / "artefact"
        try:
            asyncio.run(import_model(file, artefact, ImportLimits(), lambda fraction, step: None))
        except BraidError as error:
            return f"refused: {error}"
        report = read_report(artefact)
    whole = [warning for warning in report.warnings if "whole by" in warning]
    batch = "" if report.batch is not None else " (unbatched)"
    how = f"whole: {whole[0]}" if whole else f"parts{batch}"
    return how + "".join(f"; {warning}" for warning in report.warnings if warning not in whole)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.exports")
    parser.add_argument("work", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--export", choices=MODELS, help="write the files of one model, and end")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    if options.export:
        export(options.export, options.work)
        return
    _all(options.work, options.names or list(MODELS))


def _all(work: Path, names: Sequence[str]) -> None:
    for name in names:
        pt2, onnx, facts = (work / f"{name}.{ending}" for ending in ("pt2", "onnx", "json"))
        if not facts.exists():
            command = [sys.executable, "-m", __spec__.name, str(work), "--export", name]
            end = subprocess.run(command, capture_output=True, text=True)
            if end.returncode:
                last = end.stderr.strip().splitlines()[-1][:200]
                print(f"{name} | not exported: {last}", flush=True)
                continue
        said = json.loads(facts.read_text())
        of_pt2 = imported(pt2)
        of_onnx = imported(onnx) if onnx.exists() else f"not written: {said['onnx']}"
        batch = f" | batch: {said['batch']}" if "batch" in said else ""
        print(f"{name} | pt2 {of_pt2} | onnx {of_onnx}{batch}", flush=True)


if __name__ == "__main__":
    main()
