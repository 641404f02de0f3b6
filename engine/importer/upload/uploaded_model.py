"""Formats of uploads: an ONNX file, an ONNX model zipped with its external data, a ``.pt2``.

upload ──open_upload──> UploadedModel ──lowered()──> template + weights
                           └────reference()──> what the import is compared with
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from onnx import ModelProto
from torch import Tensor

from braid.core.errors import ModelImportError, UnsupportedOperators
from braid.core.graph import OpGraph
from braid.core.regular_file import NoRegularFile
from braid.engine.importer.host.report import RAISED
from braid.engine.importer.host.samples import Arrays
from braid.engine.importer.upload.archive import Archive, is_zip
from braid.engine.importer.upload.model_strings import words_of
from braid.engine.importer.upload.onnx_file import complaint, read_with_data, unpack_bundle
from braid.engine.importer.upload.whole_model import as_one_unit
from braid.engine.importer.verification.reference import ReferenceModel, open_reference
from braid.engine.onnx.lowering import lower
from braid.engine.onnx.old_operators import is_old, raised
from braid.engine.onnx.plain import make_plain, without_dictionaries
from braid.engine.onnx.prepare import prepare
from braid.engine.onnx.structure import multiplies_integers
from braid.engine.runtime.memory import raise_out_of_memory

MAX_METADATA_BYTES = 1 << 18  # kept of a file; names of a thousand classes take 30,000

NO_SHAPES: Mapping[str, tuple[int, ...]] = MappingProxyType({})


def open_upload(
    upload: Path, work: Path, shapes: Mapping[str, tuple[int, ...]] = NO_SHAPES
) -> UploadedModel:
    """Tell the format of an uploaded file and read it; ``ModelImportError`` if it cannot be.

    ``work`` is an empty folder of this import's own, ``shapes`` are known to work, by input.
    """
    try:
        zipped = is_zip(upload)
    except NoRegularFile as error:
        raise ModelImportError(f"the upload cannot be read: {error.strerror}") from error
    data: frozenset[str] = frozenset()
    if not zipped:
        model, path = read_with_data(upload), upload
    else:
        archive = Archive(upload)
        if any(name.endswith("/archive_format") for name in archive.names):
            return Pt2Upload(archive, work)
        model, path = unpack_bundle(archive, work)
        data = frozenset(archive.names) - {path.name}
    make_plain(model, shapes)
    if not (remark := without_dictionaries(model)):
        return OnnxUpload(model, path, work, file=upload, data=data, shapes=shapes)
    path = work / "tensors.onnx"
    path.write_bytes(model.SerializeToString())
    # no runtime takes the upload itself
    return OnnxUpload(model, path, work, file=None, shapes=shapes, remark=remark)


class OnnxUpload:
    """An ONNX model; its reference is ONNX Runtime on the file as it was uploaded.

    Its weights are in memory until they are lowered, and are read again where it is served whole.
    """

    kind = "onnx"  # or one of report.CONVERTED
    file: Path | None  # all of the model in one file that other runtimes read
    remark: str  # what is not served as the file has it, for the report; "" if nothing
    metadata: Mapping[str, str]  # properties that the file has of itself

    def __init__(
        self,
        model: ModelProto,
        path: Path,
        work: Path,
        *,
        file: Path | None,
        data: frozenset[str] = frozenset(),
        shapes: Mapping[str, tuple[int, ...]] = NO_SHAPES,
        remark: str = "",
    ) -> None:
        """Keep a model, with all its weights, that was read from ``path``.

        ``file`` is what the artefact keeps for other runtimes, also a zip, with its ``data`` files.
        ``remark`` tells what differs from the upload.
        """
        self._model: ModelProto | None = model
        self._opsets = {opset.domain: opset.version for opset in model.opset_import}
        self._words = words_of(model)
        self._on_integers = multiplies_integers(model)
        self._path = path
        self._as_filed: Path | None = None  # if a newer form of it stands there
        self._work = work
        self._data = data
        self._shapes = shapes
        self.file = file
        self.remark = remark
        self.metadata = {}
        if sum(entry.ByteSize() for entry in model.metadata_props) <= MAX_METADATA_BYTES:
            self.metadata = {entry.key: entry.value for entry in model.metadata_props}

    @property
    def opset(self) -> int:
        return self._opsets.get("", self._opsets.get("ai.onnx", 0))

    def lowered(self) -> tuple[OpGraph, Mapping[str, Tensor], str]:
        """The template, its constants, and a remark for the report ("" if none).

        The checker comes last, because it stops at the first operator it does not know. A
        complaint about a model that lowers (an output without a shape, say) is worth a warning;
        the comparison with the reference decides.
        """
        template, weights = self.in_parts()
        is_all_onnx = self._opsets.keys() <= {"", "ai.onnx"}
        against = complaint(self._path) if is_all_onnx else ""
        return template, weights, f"not valid ONNX: {against}" if against else ""

    def in_parts(self) -> tuple[OpGraph, Mapping[str, Tensor]]:
        try:
            if is_old(self._whole_model()):
                self._replace(raised(self._whole_model()))
            template, weights = lower(prepare(self._whole_model()))
        except ModelImportError:
            raise
        except Exception as error:
            raise_out_of_memory(error)
            reason = complaint(self._path)
            if not reason:
                raise
            raise ModelImportError(f"the model is not valid ONNX: {reason}") from error
        self._model = None
        return template, weights

    def _replace(self, model: ModelProto) -> None:
        """Let a newer form of the model stand for it, in a file that other runtimes read."""
        self.kind, self._model, self._as_filed = RAISED, model, self._path
        self._path = self.file = self._work / "newer.onnx"
        self._path.write_bytes(model.SerializeToString())
        self._data = frozenset()

    def _whole_model(self) -> ModelProto:
        if self._model is None:
            self._model = read_with_data(self._path, self._data)
            make_plain(self._model, self._shapes)
        return self._model

    def whole(
        self, reasons: tuple[str, ...], given: Mapping[str, tuple[int, ...]], samples: Arrays
    ) -> tuple[OpGraph, Mapping[str, Tensor], str]:
        """Template of one operator that runs the model, its constants, and a complaint.

        The complaint says why nothing shows what its outputs are like: it ran on nothing that was
        tried ("" if it did). ``reasons`` are against running it in parts; ``UnsupportedOperators``
        has them all, if there is no safe way.
        """
        return as_one_unit(self._whole_model(), reasons, self.reference, given, samples)

    def reference(self) -> ReferenceModel:
        """An independent implementation; ``ModelImportError`` if none takes the model."""
        on_integers, newer = self._on_integers, self._path
        return open_reference(self._as_filed or newer, self._words, newer, on_integers=on_integers)


class Pt2Upload:
    """A program that torch.export saved, converted to ONNX; its reference is torch itself.

    Its properties and methods are as those of ``OnnxUpload``.
    """

    kind = "pt2"
    metadata: Mapping[str, str] = {}

    def __init__(self, archive: Archive, work: Path) -> None:
        from braid.engine.importer.upload.pt2_file import read_container

        try:
            from braid.engine.pt2.conversion import exported, write_onnx
        except ModuleNotFoundError as error:
            raise ModelImportError(
                f"reading a .pt2 needs {error.name}, which this server has not: "
                "pip install onnxscript, or export the model as ONNX"
            ) from error
        self._outline, weights = read_container(archive)
        self._program = exported(self._outline, weights)
        path = work / "converted.onnx"
        # ONNX has one name for one value; a program may call a result like an argument.
        inputs, results = self._outline.inputs, self._outline.outputs
        self._renamed = {f"{name}/result" if name in inputs else name: name for name in results}
        data = write_onnx(self._program, inputs, list(self._renamed), path)
        file = None if data else path
        self._onnx = OnnxUpload(read_with_data(path, data), path, work, file=file, data=data)
        self.file = None if set(inputs) & set(results) else self._onnx.file
        fixed = ", ".join(f"{name} = {value!r}" for name, value in self._outline.fixed.items())
        self.remark = f"left out of the outputs, as no tensors: {fixed}"[:300] if fixed else ""

    @property
    def opset(self) -> int:
        return self._outline.opset

    def lowered(self) -> tuple[OpGraph, Mapping[str, Tensor], str]:
        from braid.engine.pt2.document import OPERATORS_PAGE

        try:
            template, weights = self._onnx.in_parts()  # what torch.onnx writes needs no checker
        except UnsupportedOperators as refusal:
            raise UnsupportedOperators(refusal.reasons, OPERATORS_PAGE) from refusal
        outputs = {self._renamed[name]: value for name, value in template.outputs.items()}
        return replace(template, outputs=outputs), weights, ""

    def whole(
        self, reasons: tuple[str, ...], given: Mapping[str, tuple[int, ...]], samples: Arrays
    ) -> tuple[OpGraph, Mapping[str, Tensor], str]:
        if self.file is None:
            raise UnsupportedOperators(reasons)
        return self._onnx.whole(reasons, given, samples)

    def reference(self) -> ReferenceModel:
        from braid.engine.importer.verification.pt2_reference import EagerReference

        return EagerReference(self._program, self._outline.outputs)


UploadedModel = OnnxUpload | Pt2Upload
