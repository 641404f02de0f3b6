"""Check of a file's first bytes, before an upload, for whether the file can be a model.

    ONNX          a protobuf message whose fields are those of ModelProto
    zip           .pt2 of torch.export, or an ONNX model with its external data

Anything that passes may still be refused by the server's importer, which reads all of it. Needs
neither onnx nor torch; the server looks at uploads with the same functions.
"""

import re
import struct

from braid_client.wire_fields import varint

HEAD_BYTES = 4096

EXPORT = (
    "export the model instead: torch.export.save(torch.export.export(model, (example,)), "
    "'model.pt2'), or torch.onnx.export(model, (example,), 'model.onnx', external_data=False)"
)

_ZIP = b"PK\x03\x04"
_PICKLE = f"a pickle (an old PyTorch checkpoint?), which would have to be run; {EXPORT}"
_OTHERS = {
    b"\x1f\x8b": "a gzip archive; unpack it",
    b"\x89HDF": "an HDF5 file (Keras?); export it as ONNX (tf2onnx)",
    b"GGUF": "a GGUF file; export the model as ONNX",
    b"\x7fELF": "a program",
    b"version https://git-lfs": "a Git LFS pointer; fetch the model itself (git lfs pull)",
    b"<!DOCTYPE": "a web page; download the model itself",
    b"<!doctype": "a web page; download the model itself",
    b"<html": "a web page; download the model itself",
    b"<?xml": "XML (OpenVINO?); register the ONNX model that it was made of",
    b"\x80\x02": _PICKLE,
    b"\x80\x03": _PICKLE,
    b"\x80\x04": _PICKLE,
    b"\x80\x05": _PICKLE,
}

_SAVED = re.compile(rb"[^/]+/data(\.pkl|/\d+)")

_VARINT, _LENGTH = 0, 2
_FIELDS = {  # of ModelProto: number -> wire type
    **dict.fromkeys((1, 5), _VARINT),  # ir_version, model_version
    **dict.fromkeys((2, 3, 4, 6), _LENGTH),  # producer's name and version, domain, doc_string
    **dict.fromkeys((7, 8, 14, 20, 25, 26), _LENGTH),  # graph, opset_import, metadata_props, ...
}
_NEWEST_FIELD = 26


def why_no_model(head: bytes, whole: bool) -> str:
    """Reason that a file that begins with ``head`` cannot be a model; empty if it may be one.

    Args:
        head: the first ``HEAD_BYTES`` of the file or more; fewer if that is all.
        whole: the file ends there.
    """
    if not head:
        return "the file is empty"
    for magic, what in _OTHERS.items():
        if head.startswith(magic):
            return f"not a model: the file looks like {what}"
    if head[4:8] == b"TFL3":
        return "not a model: the file looks like a TFLite model; export it as ONNX (tf2onnx)"
    if head[4:8] == b"ORTM":
        return (
            "not a model: the file looks like one in ORT format (.ort); register the .onnx that it "
            "was made of"
        )
    if head[8:9] == b"{" and struct.unpack_from("<Q", head)[0] < 1 << 32:
        return (
            "not a model: the file looks like safetensors, which holds weights without a network; "
            f"{EXPORT}"
        )
    if head.startswith(_ZIP):
        return _why_no_archive(head)
    if not _may_be_onnx(head, whole):
        return (
            "not a model: neither ONNX nor a .pt2 file of torch.export, nor a zip of an ONNX model "
            "with its data; or the file is truncated"
        )
    return ""


def _why_no_archive(head: bytes) -> str:
    """Reason that an archive is no model: it begins as torch.save or torch.jit.save write."""
    (length,) = struct.unpack_from("<H", head, 26) if len(head) >= 30 else (0,)
    if _SAVED.fullmatch(head[30 : 30 + length]):
        return (
            "not a model: the file is a PyTorch checkpoint or TorchScript (.pt), whose pickle or "
            f"code would have to be run; {EXPORT}"
        )
    return ""


def _may_be_onnx(head: bytes, whole: bool) -> bool:
    """True if all fields within ``head`` are fields of a ModelProto."""
    view, at = memoryview(head), 0
    try:
        while at < len(head):
            tag, at = varint(view, at)
            number, kind = tag >> 3, tag & 7
            if _FIELDS.get(number, kind if number > _NEWEST_FIELD else None) != kind:
                return False
            if kind not in (_VARINT, _LENGTH):
                return False
            value, at = varint(view, at)
            at += value if kind == _LENGTH else 0
    except IndexError:  # cut off
        return not whole
    return at == len(head) or not whole
