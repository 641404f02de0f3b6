"""Formats of uploads: an ONNX file, an ONNX model zipped with its external data, a ``.pt2``.

upload ──open_upload──> UploadedModel ──lowered()──> template + weights
                           └────reference()──> what the import is compared with
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from braid.core.errors import ModelImportError, UnsupportedOperators
from braid.core.regular_file import NoRegularFile
from braid.engine.importer.upload.archive import Archive, is_zip
from braid.engine.runtime.memory import raise_out_of_memory

if TYPE_CHECKING:  # torch is loaded only after the file has proved to be a model
    from onnx import ModelProto
    from torch import Tensor

    from braid.core.graph import OpGraph
    from braid.engine.importer.verification.reference import ReferenceModel


class UploadedModel(Protocol):
    """An uploaded model, checked as far as that needs no torch."""

    kind: str  # "onnx" or "pt2"

    @property
    def opset(self) -> int:
        """Version of the operator set that the model uses."""
        ...

    def lowered(self) -> tuple[OpGraph, Mapping[str, Tensor], str]:
        """Return the template, its constants, and a complaint for the report ("" if none).

        Raises:
            ModelImportError: it cannot be lowered.
        """
        ...

    def whole(
        self, reasons: tuple[str, ...], given: Mapping[str, tuple[int, ...]]
    ) -> tuple[OpGraph, Mapping[str, Tensor], str]:
        """Return the template of one operator that runs the model, its constants, and a complaint.

        The complaint says why nothing shows what its outputs are like: it ran on nothing that was
        tried ("" if it did). ``reasons`` are against running it in parts.

        Raises:
            UnsupportedOperators: there is no safe way to run it; with all reasons.
        """
        ...

    def reference(self) -> ReferenceModel:
        """Return an independent implementation of the model.

        Raises:
            ModelImportError: there is none that takes it.
        """
        ...


def open_upload(upload: Path, work: Path) -> UploadedModel:
    """Tell the format of an uploaded file and read it.

    Args:
        upload: the file.
        work: an empty folder of this import's own.

    Raises:
        ModelImportError: no format that Braid imports, or over a structural budget.
    """
    try:
        zipped = is_zip(upload)
    except NoRegularFile as error:
        raise ModelImportError(f"the upload cannot be read: {error.strerror}") from error
    if not zipped:
        from braid.engine.importer.upload.onnx_file import parse_model, read_model

        return OnnxUpload(parse_model(read_model(upload)), upload)
    archive = Archive(upload)
    if any(name.endswith("/archive_format") for name in archive.names):
        return Pt2Upload(archive)
    from braid.engine.importer.upload.onnx_bundle import unpack_bundle

    return OnnxUpload(*unpack_bundle(archive, work))


class OnnxUpload:
    """An ONNX model; its reference is ONNX Runtime on the file as it was uploaded."""

    kind = "onnx"

    def __init__(self, model: ModelProto, file: Path) -> None:
        self._model = model
        self._file = file

    @property
    def opset(self) -> int:
        from braid.engine.onnx.lowering import opset_of

        return opset_of(self._model)

    def lowered(self) -> tuple[OpGraph, Mapping[str, Tensor], str]:
        """Lower through the table.

        The checker comes last, because it stops at the first operator it does not know. What it
        finds in a model that lowers (an output without a shape, say) is worth a warning; the
        comparison with the reference decides.
        """
        from braid.engine.importer.upload.onnx_file import complaint
        from braid.engine.onnx.lowering import lower
        from braid.engine.onnx.prepare import prepare

        try:
            template, weights = lower(prepare(self._model))
        except ModelImportError:
            raise
        except Exception as error:
            raise_out_of_memory(error)
            reason = complaint(self._file)
            if not reason:
                raise
            raise ModelImportError(f"the model is not valid ONNX: {reason}") from error
        return template, weights, complaint(self._file)

    def whole(
        self, reasons: tuple[str, ...], given: Mapping[str, tuple[int, ...]]
    ) -> tuple[OpGraph, Mapping[str, Tensor], str]:
        from braid.engine.importer.upload.whole_model import as_one_unit

        return as_one_unit(self._model, reasons, self.reference, given)

    def reference(self) -> ReferenceModel:
        from braid.engine.importer.upload.model_strings import words_of
        from braid.engine.importer.verification.reference import open_reference

        return open_reference(self._file, words_of(self._model))


class Pt2Upload:
    """A program that torch.export saved; its reference runs the aten operators one by one."""

    kind = "pt2"

    def __init__(self, archive: Archive) -> None:
        from braid.engine.importer.upload.pt2_file import read_container

        self._program, self._weights = read_container(archive)

    @property
    def opset(self) -> int:
        return self._program.opset

    def lowered(self) -> tuple[OpGraph, Mapping[str, Tensor], str]:
        from braid.engine.pt2.lowering import lower

        try:
            return (*lower(self._program, self._weights), "")
        except UnsupportedOperators:
            raise
        except (KeyError, AssertionError) as error:
            raise ModelImportError(f"the graph of the .pt2 is malformed: {error!r}") from error

    def whole(
        self, reasons: tuple[str, ...], given: Mapping[str, tuple[int, ...]]
    ) -> tuple[OpGraph, Mapping[str, Tensor], str]:
        """Refuse: no other library runs a ``.pt2`` safely."""
        raise UnsupportedOperators(reasons)

    def reference(self) -> ReferenceModel:
        from braid.engine.importer.verification.pt2_reference import EagerReference

        return EagerReference(self._program, self._weights)
