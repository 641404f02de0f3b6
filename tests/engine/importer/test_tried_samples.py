"""Samples of a registration as the content of an import's trials, where none can be guessed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from braid.core.errors import InvalidRequest, ModelImportError
from braid.engine.importer.artefact import Artefact, load_artefact
from braid.engine.importer.host.request import Hints, ImportLimits, ImportRequest
from braid.engine.importer.host.samples import samples_file
from braid.engine.importer.sandbox.pipeline import import_upload
from braid.engine.importer.upload.onnx_file import parse_model
from braid.engine.importer.upload.uploaded_model import OnnxUpload
from braid.engine.importer.verification.reference import ReferenceModel, open_reference
from braid.engine.ops.whole import KIND
from tests.engine.importer.running import computed, import_here, imported
from tests.engine.onnx.oracle import assert_same, through_onnxruntime
from tests.models.graphs import from_x, parsed

RNG = np.random.default_rng(0)
Samples = Mapping[str, np.ndarray[Any, Any]]


def named(made: onnx.ModelProto, at: int, name: str) -> onnx.ModelProto:
    """The model with a name for one of its nodes."""
    made.graph.node[at].name = name
    return made


#   ids ──- 1000──> Gather from 10 rows ──> sum ──> y
def table() -> tuple[onnx.ModelProto, Samples]:
    made = parsed(
        """(int64[n, 4] ids) => (float[n, 8] y) {
          rows = Sub(ids, offset)  found = Gather(table, rows)
          y = ReduceSum<keepdims=0>(found, axis) }""",
        {"offset": 1000, "table": RNG.standard_normal((10, 8)).astype(np.float32), "axis": [1]},
    )
    return named(made, 1, "look_up"), {"ids": RNG.integers(1000, 1010, (6, 4))}


#   d ──/ 3──- 500──clip──> divisor of q
def divisor() -> tuple[onnx.ModelProto, Samples]:
    made = parsed(
        """(int64[n, 3] q, int64[n, 3] d) => (int64[n, 3] y) {
          third = Div(d, three)  less = Sub(third, offset)  by = Clip(less, zero)
          y = Div(q, by) }""",
        {"three": 3, "offset": 500, "zero": 0},
    )
    samples = {"q": RNG.integers(0, 9000, (6, 3)), "d": RNG.integers(1600, 1900, (6, 3))}
    return named(made, 3, "share"), samples


def split() -> tuple[onnx.ModelProto, Samples]:
    """The sizes are an input, and make seven together."""
    made = parsed(
        """(float[n, 7] x, int64[2] sizes) => (float[n, ?] y, float[n, ?] z)
        { y, z = Split<axis=1>(x, sizes) }"""
    )
    x = RNG.standard_normal((6, 1, 7)).astype(np.float32)
    return named(made, 0, "cut"), {"x": x, "sizes": np.tile([3, 4], (6, 1))}


def attention() -> tuple[onnx.ModelProto, Samples]:
    """Lengths are inputs, and say how much of the past is attended to."""
    made = parsed(
        """(float[b, s, 64] q, float[b, s, 32] k, float[b, s, 32] v, float[b, 2, p, 16] pk,
            float[b, 2, p, 16] pv, int32[b] lengths, int32[1] total)
        => (float[b, s, 64] y, float[b, 2, t, 16] k2, float[b, 2, t, 16] v2) {
          y, k2, v2 = com.microsoft.GroupQueryAttention<num_heads=4, kv_num_heads=2>
            (q, k, v, pk, pv, lengths, total) }"""
    )
    shapes = {"q": (1, 64), "k": (1, 32), "v": (1, 32), "pk": (2, 3, 16), "pv": (2, 3, 16)}
    samples = {
        name: RNG.standard_normal((6, *shape)).astype(np.float32) for name, shape in shapes.items()
    }
    lengths = {"lengths": np.full((6, 1), 3, np.int32), "total": np.full((6, 1), 4, np.int32)}
    return made, {**samples, **lengths}


def brought(made: onnx.ModelProto, folder: Path, samples: Samples | None = None) -> Artefact:
    """The artefact of a model, with or without samples."""
    folder.mkdir(exist_ok=True)
    (folder / "upload").write_bytes(made.SerializeToString())
    if samples is None:
        return load_artefact(import_here(folder / "upload", folder / "artefact"))
    file = folder / "samples.npz"
    file.write_bytes(samples_file(samples))
    return load_artefact(import_here(folder / "upload", folder / "artefact", file))


@pytest.mark.parametrize(("drawn", "kind"), [(table, "Gather"), (divisor, "Div"), (split, "Split")])
def test_content_that_cannot_be_guessed_is_named_and_samples_supply_it(
    drawn: Any, kind: str, tmp_path: Path
) -> None:
    made, samples = drawn()

    untried = brought(made, tmp_path / "untried")
    tried = brought(made, tmp_path / "tried", samples)

    (said,) = (text for text in untried.report.warnings if text.startswith("not verified"))
    assert f"while running {kind} node" in said
    assert "--samples" in said
    assert not untried.report.verified.batches
    assert KIND not in {unit.kind for unit in tried.graph.operators}
    assert tried.report.verified.batches == ((1,) if drawn is split else (1, 3, 5))
    batch = {name: array[0] if drawn is split else array[:5] for name, array in samples.items()}
    assert_same(computed(tried, batch), through_onnxruntime(made, batch), 1e-5)


def test_a_model_that_runs_whole_is_tried_at_the_shapes_of_its_samples(tmp_path: Path) -> None:
    made, samples = attention()

    artefact = brought(made, tmp_path, samples)

    assert artefact.report.verified.batches == (1,)
    assert artefact.report.example_shapes["pk"] == (1, 2, 3, 16)
    assert set(artefact.report.content) == set(samples)
    longer = {
        name: RNG.standard_normal((1, *shape)).astype(np.float32)
        for name, shape in {"q": (2, 64), "k": (2, 32), "v": (2, 32)}.items()
    }
    longer |= {name: samples[name][:1] for name in ("pk", "pv")}
    longer |= {"lengths": np.array([4], np.int32), "total": np.array([5], np.int32)}
    assert_same(computed(artefact, longer), through_onnxruntime(made, longer), 1e-5)


def test_samples_that_are_all_alike_do_not_speak_against_a_batch(tmp_path: Path) -> None:
    made, samples = table()

    artefact = brought(made, tmp_path, {"ids": samples["ids"][:1].repeat(6, 0)})

    assert artefact.report.batch is not None  # the graph shows it
    assert not artefact.report.batch.alone


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        ({"ids": np.full((2, 4), 1000, np.int32)}, "is int32, the model takes int64"),
        ({"ids": np.full((2, 3), 1000)}, r"has the shape \[2, 3\]; .* give \[samples, n, 4\]"),
        ({"rows": np.full((2, 4), 1000)}, "give one array for each of the model's inputs: ids"),
    ],
)
def test_samples_of_another_model_are_refused(
    samples: Samples, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelImportError, match=reason):
        brought(table()[0], tmp_path, samples)


def test_samples_that_the_model_refuses_leave_it_untried(tmp_path: Path) -> None:
    artefact = brought(table()[0], tmp_path, {"ids": np.full((2, 4), 5000)})

    (said,) = (text for text in artefact.report.warnings if text.startswith("not verified"))
    assert "the model does not run on the samples" in said
    assert "Gather" in said


class _WithAnotherReference(OnnxUpload):
    """An upload whose lowering is wrong: its reference is another file's."""

    other: Path

    def reference(self) -> ReferenceModel:
        return open_reference(self.other)


def test_samples_hide_no_difference_that_other_content_shows(tmp_path: Path) -> None:
    file, other = tmp_path / "upload", tmp_path / "other"
    file.write_bytes(from_x("y = Abs(x)").SerializeToString())
    other.write_bytes(from_x("y = Identity(x)").SerializeToString())
    samples = tmp_path / "samples.npz"
    np.savez(samples, x=np.ones((3, 4), np.float32))
    source = _WithAnotherReference(parse_model(file.read_bytes()), file, tmp_path, file=file)
    source.other = other
    request = ImportRequest(file, tmp_path / "artefact", ImportLimits(), Hints(samples=samples))

    import_upload(source, request, lambda *_: None)

    artefact = load_artefact(request.artefact)
    assert [unit.kind for unit in artefact.graph.operators] == [KIND]
    assert not artefact.report.verified.batches
    assert any("does not agree" in text for text in artefact.report.warnings)


async def test_the_confined_process_reads_samples_from_where_they_lie(tmp_path: Path) -> None:
    made, samples = table()
    work, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    work.mkdir()
    elsewhere.mkdir()
    (elsewhere / "samples.npz").write_bytes(samples_file(samples))

    folder = await imported(made, work, samples=elsewhere / "samples.npz")

    assert load_artefact(folder).report.verified.batches == (1, 3, 5)


def test_a_damaged_file_of_samples_ends_the_import(tmp_path: Path) -> None:
    (tmp_path / "upload").write_bytes(table()[0].SerializeToString())
    (tmp_path / "samples.npz").write_bytes(b"no archive")

    with pytest.raises(InvalidRequest, match=r"no \.npz file"):
        import_here(tmp_path / "upload", tmp_path / "artefact", tmp_path / "samples.npz")
