import pytest
import torch
from torch import nn

from benchmarks.networks import NETWORKS

# torchvision's counts without auxiliary classifiers; NASNet-A from its PyTorch port (as in timm);
# BERT-base uncased as in transformers, 109,482,240, less the pooler's 590,592;
# T5-base's encoder likewise.
PUBLISHED_PARAMETERS = {
    "squeezenet": 1_235_496,
    "googlenet": 6_624_904,
    "inception_v3": 23_834_568,
    "nasnet_mobile": 5_289_978,
    "nasnet_large": 88_753_150,
    "mnasnet": 2_218_512,
    "mnasnet_pair": 2 * 2_218_512,
    "shufflenet": 1_366_792,
    "resnet50": 25_557_032,
    "bert_base": 108_891_648,
    "t5_encoder": 109_628_544,
}
# Mean and deviation over wirings, RandWire paper, tables 2 and 3.
RANDWIRE_PARAMETERS = {"randwire": (61.5e6, 1.32e6), "randwire_small": (5.6e6, 0.1e6)}
OUTPUT_SHAPES = {
    "mnasnet_pair": (2000,),
    "bert_base": (128, 768),
    "t5_encoder": (128, 768),
    "deepfm": (1,),
    "detr_like": (144, 92),
}


def on_meta(name: str) -> nn.Module:
    with torch.device("meta"):
        return NETWORKS[name].construct().eval()


def parameters(name: str) -> int:
    return sum(p.numel() for p in on_meta(name).parameters())


@pytest.mark.parametrize("name", PUBLISHED_PARAMETERS)
def test_has_the_published_number_of_parameters(name: str) -> None:
    assert parameters(name) == PUBLISHED_PARAMETERS[name]


@pytest.mark.parametrize("name", RANDWIRE_PARAMETERS)
def test_random_wiring_has_about_the_published_number_of_parameters(name: str) -> None:
    mean, deviation = RANDWIRE_PARAMETERS[name]
    assert parameters(name) == pytest.approx(mean, abs=deviation)


@pytest.mark.parametrize("name", NETWORKS)
def test_answers_one_row_of_output_per_row_of_input(name: str) -> None:
    network = NETWORKS[name]
    inputs = [x.to("meta") for x in network.example_inputs(2)]
    assert on_meta(name)(*inputs).shape == (2, *OUTPUT_SHAPES.get(name, (1000,)))
