import json

import pytest

from braid.compiler.options import NO_LENGTHS
from braid.core.errors import InvalidRequest
from braid.core.json_form import from_json, to_json
from braid.core.tensor import BATCH, TensorType
from braid.server.repository.configuration import Configuration, configuration_from_text
from braid.server.repository.declared import check_declared
from braid.server.store.interface import DeclaredTensor, reshaped, reshapes
from braid.server.store.serving_config import (
    ON_DEMAND,
    PINNED,
    Batching,
    Residency,
    ServingConfig,
    VersionPolicy,
)

DEVICES = ("cpu",)
LABELS = {"names.txt": b"cat\r\ndog\n", "bytes.txt": b"\xff"}


def read(text: str) -> Configuration:
    return configuration_from_text(text, "net", DEVICES, LABELS.__getitem__)


def test_what_is_offered_is_read() -> None:
    config = read(
        """
        name: "net"  backend: "onnxruntime"  max_batch_size: 8
        default_model_filename: "net.onnx"
        dynamic_batching { preferred_batch_size: [4] max_queue_delay_microseconds: 1500 }
        version_policy { latest { num_versions: 2 } }
        instance_group { count: 1 kind: KIND_CPU }
        """
    )

    assert config.options.batch_sizes == (1, 4, 8)
    assert config.filename == "net.onnx"
    labelled = ServingConfig(labels={"stable": 1}, batching=Batching(share=2.0))
    assert config.serving(labelled) == ServingConfig(
        VersionPolicy(latest=2), {"stable": 1}, Batching(share=2.0, max_wait_ms=1.5)
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_batchsize: 3", r"line 1:1 : .* no field named \"max_batchsize\""),
        ("max_batch_size: 3\nname 'net'", "line 2:"),
        ("name: 'other'", "of model 'other', not of 'net'"),
        ("platform: 'tensorrt_plan'", "platform 'tensorrt_plan'"),
        ("max_batch_size: -1", "max_batch_size is -1"),
        ("sequence_batching {}", "sequence_batching: not offered"),
        ("ensemble_scheduling {}", "ensemble_scheduling: not offered"),
        ("model_transaction_policy { decoupled: true }", "decoupled: not offered"),
        ("instance_group { passive: true }", "instance_group asks for passive: not offered"),
        (
            "input { name: 'x' dims: [2, 3] reshape { shape: [5] } }",
            r"dims \[2, 3\] and the reshape \[5\], which are of another size",
        ),
        ("input { name: 'x' dims: [-1, 3] reshape { shape: [3] } }", "of another size"),
        ("input { name: 'x' is_shape_tensor: true }", "input 'x' asks for is_shape_tensor"),
        ("output { name: 'y' label_filename: '../l' }", "label_filename '../l' is not a file"),
        ("output { name: 'y' label_filename: 'bytes.txt' }", "bytes.txt is no text in UTF-8"),
        ("backend: 'python'", "export the model that it calls as ONNX"),
        ("backend: 'pytorch' platform: 'pytorch_libtorch'", "torch.export.save as .pt2"),
        ("platform: 'tensorflow_savedmodel'", "tf2onnx"),
        ("platform: 'tensorrt_plan' max_batch_size: 8", "the ONNX file that it was built from"),
        ("backend: 'openvino'", "the ONNX file that it was made from"),
        ("platform: 'ensemble' ensemble_scheduling {}", "onnx.compose.merge_models"),
        ("backend: 'dali'", "give the model as ONNX, or as .pt2"),
        ("default_model_filename: '../net.onnx'", "not a file's name"),
        ("version_policy { specific {} }", "names no version"),
        ("dynamic_batching { max_queue_delay_microseconds: 100000000 }", "waiting 100.0 s"),
    ],
)
def test_what_is_not_offered_is_refused_by_name(text: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refusal:
        read(text).serving(ServingConfig())
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("instance_group { count: 1 kind: KIND_CPU }", ""),
        ("instance_group { count: 2 }", "instance_group (one instance runs on each of cpu)"),
        ("instance_group [{ count: 1 }, { count: 1 }]", "instance_group (one instance"),
        ("instance_group { kind: KIND_GPU gpus: [0] }", "instance_group (one instance"),
        ("instance_group { kind: KIND_MODEL }", "instance_group (one instance"),
        ("instance_group { rate_limiter {} }", "instance_group.rate_limiter"),
        (
            "optimization { graph { level: 1 } } response_cache { enable: true }",
            "optimization, res",
        ),
        ("model_warmup { name: 'w' }", "model_warmup"),
        ("model_transaction_policy { decoupled: false }", "model_transaction_policy"),
        ("dynamic_batching { preserve_ordering: true }", "dynamic_batching.preserve_ordering"),
        ("dynamic_batching { priority_levels: 3 default_priority_level: 2 }", ".priority_levels, "),
        ("dynamic_batching { default_queue_policy { max_queue_size: 9 } }", "default_queue_policy"),
    ],
)
def test_what_changes_no_answer_is_passed_over_by_name(text: str, named: str) -> None:
    config = read(text)

    assert named in config.warning
    assert bool(config.warning) == bool(named)
    assert config.options == read("").options
    assert config.serving(ServingConfig()) == ServingConfig()


def test_what_is_declared_for_clients_is_kept_for_them() -> None:
    config = read(
        """
        max_batch_size: 0
        input { name: "x" dims: [3, -1] format: FORMAT_NHWC reshape { shape: [1, -1, 3] } }
        output { name: "y" dims: [1] reshape { shape: [] } label_filename: "names.txt" }
        parameters { key: "intra_op_thread_count" value { string_value: "2" } }
        """
    )

    assert "parameters" in config.warning  # nothing else follows from them
    served = config.serving(ServingConfig())
    assert served.interface.parameters == {"intra_op_thread_count": "2"}
    (x,), (y,) = served.interface.inputs, served.interface.outputs
    assert (x.dims, x.own, x.format) == ((3, -1), (1, -1, 3), "FORMAT_NHWC")
    assert (y.dims, y.own, y.labels) == ((1,), (), ("cat", "dog"))
    assert not served.interface.has_batch
    assert from_json(ServingConfig, json.loads(json.dumps(to_json(served)))) == served


@pytest.mark.parametrize(
    ("dims", "own", "model", "has_batch", "shown", "expected"),
    [
        ((3, 4), (1, 3, 4), (1, 3, 4), False, (3, 4), (1, 3, 4)),
        ((12,), (3, 4), (BATCH, 3, 4), True, (5, 12), (5, 3, 4)),
        ((1,), (), (BATCH,), True, (7, 1), (7,)),
        ((-1, 3), (1, 3, -1), (1, 3, "t"), False, (9, 3), (1, 3, 9)),
        ((-1, 2, -1), (-1, -1, 2), ("n", "a", "b", 2), True, (1, 5, 2, 6), (1, 5, 6, 2)),
        ((3, 4), (1, 3, 4), (1, 3, 4), False, (4, 3), (4, 3)),  # not as declared
    ],
)
def test_shapes_of_equal_size_take_each_others_place(
    dims: tuple[int, ...],
    own: tuple[int, ...],
    model: tuple[int | str, ...],
    has_batch: bool,
    shown: tuple[int, ...],
    expected: tuple[int, ...],
) -> None:
    declared = DeclaredTensor("x", "TYPE_FP32", dims, own)
    outer, inner = reshapes([declared], {"x": TensorType("FP32", model)}, has_batch)["x"]
    assert reshaped(shown, outer, inner) == expected
    assert reshaped(expected, inner, outer) == shown


def test_a_reshape_to_what_the_model_has_not_is_left_out() -> None:
    declared = DeclaredTensor("x", "TYPE_FP32", (12,), (3, 4))
    assert not reshapes([declared], {"x": TensorType("FP32", (BATCH, 4, 3))}, True)
    assert not reshapes([declared], {"z": TensorType("FP32", (BATCH, 3, 4))}, True)


MODEL = {"x": TensorType("FP32", (BATCH, 3, "height")), "s": TensorType("BOOL", (2,))}


@pytest.mark.parametrize(
    ("max_batch_size", "declared"),
    [
        (4, "input { name: 'x' data_type: TYPE_FP32 dims: [3, -1] }"),
        (4, "input { name: 'x' data_type: TYPE_FP32 dims: [3, 7] }"),
        (0, "input { name: 'x' dims: [-1, 3, -1] }"),
        (0, "input { name: 's' data_type: TYPE_BOOL dims: [2] }"),
        (0, "input { name: 's' }"),
    ],
)
def test_what_is_declared_may_be_what_the_model_has(max_batch_size: int, declared: str) -> None:
    config = read(f"max_batch_size: {max_batch_size} {declared}")
    check_declared("input", config.interface.inputs, MODEL, without_batch=max_batch_size > 0)


@pytest.mark.parametrize(
    ("max_batch_size", "declared", "words"),
    [
        (0, "input { name: 'z' }", "'z' is none of the model's, which are: x, s"),
        (0, "input { name: 'x' data_type: TYPE_FP16 }", "is TYPE_FP32 in the model"),
        (0, "input { name: 'x' dims: [3, -1] }", r"dims \[-1, 3, -1\] in the model, not \[3, -1\]"),
        (4, "input { name: 'x' dims: [-1, 3, -1] }", "without the batch"),
        (4, "input { name: 'x' dims: [4, -1] }", r"\[3, -1\] in .*, not \[4, -1\]"),
    ],
)
def test_what_is_declared_otherwise_is_named(
    max_batch_size: int, declared: str, words: str
) -> None:
    config = read(f"max_batch_size: {max_batch_size} {declared}")
    with pytest.raises(InvalidRequest, match=words):
        check_declared("input", config.interface.inputs, MODEL, without_batch=max_batch_size > 0)


@pytest.mark.parametrize(
    ("text", "expected", "passed_over"),
    [
        ('parameters { key: "residency" value { string_value: "pinned" } }', Residency(PINNED), ()),
        (
            'parameters { key: "idle_seconds" value { string_value: "90" } }'
            'parameters { key: "refuse_unloaded" value { string_value: "true" } }',
            Residency(ON_DEMAND, 90.0, refuses=True),
            (),
        ),
        (
            'parameters { key: "residency" value { string_value: "on-demand" } }'
            'parameters { key: "other" value { string_value: "1" } }',
            Residency(ON_DEMAND),
            ("parameters",),
        ),
    ],
    ids=["pinned", "on demand", "beside others"],
)
def test_parameters_say_when_a_model_is_in_memory(
    text: str, expected: Residency, passed_over: tuple[str, ...]
) -> None:
    config = read(text)

    assert config.serving(ServingConfig()).residency == expected
    assert config.passed_over == passed_over
    assert read("").serving(ServingConfig(residency=expected)).residency == expected


def test_a_parameter_says_which_lengths_are_scheduled() -> None:
    config = read('parameters { key: "lengths" value { string_value: "64, 16" } }')

    assert config.options.given_lengths == (16, 64)
    assert config.passed_over == ()
    assert read("").options.lengths == NO_LENGTHS


def test_a_parameter_says_how_requests_are_padded() -> None:
    config = read('parameters { key: "pad" value { string_value: "length=zeros" } }')

    assert config.options.pad == {"length": "zeros"}
    assert config.passed_over == ()
    assert read("").options.pad == {}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("pad", "zeros", "give AXIS=zeros"),
        ("pad", "length=ones", "there are zeros, repeat"),
        ("lengths", "short", "lengths are none or integers"),
        ("lengths", "0,8", "lengths start at 1"),
        ("residency", "sometimes", "pinned, resident, on-demand"),
        ("idle_seconds", "soon", "give seconds"),
        ("idle_seconds", "0", "above 0"),
        ("refuse_unloaded", "yes", "give true or false"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(name: str, value: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        read(f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}')
