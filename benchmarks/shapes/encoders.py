"""Write the encoders as ONNX: ``python -m benchmarks.shapes.encoders NAME FILE``.

``bert_base``, ``minilm`` and ``resnet18`` are models of the package transformers with random
weights; ``--transformers`` names a folder that has the package if the environment does not.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


class _Hidden(nn.Module):
    """The last hidden states of an encoder of text."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states: Tensor = self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0]
        return states


class _Sentence(_Hidden):
    """One embedding a text, as sentence-transformers make it: masked mean, then norm 1."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = super().forward(input_ids, attention_mask)
        mask = attention_mask[:, :, None].to(states.dtype)
        return nn.functional.normalize((states * mask).sum(1) / mask.sum(1))


class _Scores(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixel_values: Tensor) -> Tensor:
        scores: Tensor = self.network(pixel_values=pixel_values)[0]
        return scores


class _Tiny(nn.Module):
    """Words, one layer of attention with a mask, one of feed-forward."""

    def __init__(self, vocabulary: int = 100, width: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.mixed = nn.Linear(width, 3 * width)
        self.feed = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.words(input_ids)
        query, key, value = self.mixed(x).chunk(3, -1)
        bias = (1.0 - attention_mask[:, None, :].to(x.dtype)) * -10000.0
        weights = torch.softmax(query @ key.transpose(1, 2) * 0.25 + bias, -1)
        x = x + weights @ value
        normed: Tensor = self.norm(x + self.feed(x))
        return normed


def _bert(**options: int) -> nn.Module:
    import transformers  # type: ignore[import-not-found]

    config = transformers.BertConfig(**options, attn_implementation="eager")
    encoder: nn.Module = transformers.BertModel(config, add_pooling_layer=False)
    return encoder


def _resnet18() -> nn.Module:
    import transformers

    config = transformers.ResNetConfig(
        depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic", num_labels=1000
    )
    return _Scores(transformers.ResNetForImageClassification(config))


MINILM = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
}
ENCODERS: Mapping[str, Callable[[], nn.Module]] = {
    "bert_base": lambda: _Hidden(_bert()),
    "minilm": lambda: _Sentence(_bert(**MINILM)),
    "resnet18": _resnet18,
    "tiny": _Tiny,
}


def _example(name: str) -> tuple[dict[str, Tensor], dict[str, dict[int, str]]]:
    """Inputs to export with, and the names of their open axes."""
    if name == "resnet18":
        image = torch.randn(2, 3, 96, 160)
        return {"pixel_values": image}, {"pixel_values": {0: "batch", 2: "height", 3: "width"}}
    ids = torch.randint(5, 100, (2, 24))
    open_axes = {0: "batch", 1: "length"}
    feeds = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return feeds, dict.fromkeys(feeds, open_axes)


def save_sentences(encoder: Any, folder: Path) -> None:
    """Write an encoder for sentence-transformers, with a tokenizer that takes word ``wN`` as N."""
    import tokenizers  # type: ignore[import-not-found]

    encoder.save_pretrained(folder)
    words = {f"w{number}": number for number in range(encoder.config.vocab_size)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    facts = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "w0",
        "unk_token": "w0",
        "model_max_length": encoder.config.max_position_embeddings,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))


def write(name: str, file: Path) -> None:
    """Write a model with weights of seed 0; the batch, lengths and sizes are open."""
    torch.manual_seed(0)
    module = ENCODERS[name]().eval()
    feeds, axes = _example(name)
    part = file.with_suffix(".part")
    file.parent.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        program = torch.onnx.export(
            module,
            tuple(feeds.values()),
            dynamo=True,
            input_names=list(feeds),
            output_names=["y"],
            dynamic_shapes=tuple(axes.values()),
            verbose=False,
        )
    assert program is not None
    program.save(str(part), external_data=False)
    if isinstance(module, _Sentence):
        save_sentences(module.encoder, file.with_suffix(""))
    part.replace(file)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shapes.encoders")
    parser.add_argument("name", choices=ENCODERS)
    parser.add_argument("file", type=Path)
    parser.add_argument("--transformers", type=Path, help="folder that has the package")
    options = parser.parse_args()
    if options.transformers:
        sys.path.append(str(options.transformers))
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    write(options.name, options.file)


if __name__ == "__main__":
    main()
