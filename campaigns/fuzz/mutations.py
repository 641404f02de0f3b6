"""Real files, damaged: bytes flipped, cut and repeated; protobuf fields and JSON values changed.

Deterministic: the same seed and file give the same damage, so that a finding can be made again.
"""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_NUMBERS = (0, 1, -1, 2, 127, 255, 1 << 31, (1 << 31) - 1, -(1 << 31), 1 << 38, (1 << 63) - 1)
_NAMES = ("", "x", "../../etc/passwd", "/etc/passwd", "a" * 5000, "\x00", "é", "aten", "Relu", "If")
_WHOLE = frozenset({FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_INT32})
_WHOLE |= {FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_ENUM}
_BROKEN = (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE)


def mutated(data: bytes, seed: int) -> bytes:
    """``data`` with a few changes of one kind."""
    rng = random.Random(seed)
    ways: list[Callable[[bytes, random.Random], bytes]] = [damaged_bytes]
    if data.startswith(b"PK"):
        ways += [_members] * 4
    else:
        ways += [_fields] * 4
    return rng.choice(ways)(data, rng)


def damaged_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flip, replace, cut or repeat some bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        if not changed:
            break
        at = rng.randrange(len(changed))
        span = rng.choice((1, 2, 8, 100))
        match rng.randrange(5):
            case 0:
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                changed[at : at + span] = rng.randbytes(span)
            case 2:
                del changed[at : at + span]
            case 3:
                changed[at:at] = changed[at : at + span]
            case 4:
                del changed[at:]
    return bytes(changed)


def _fields(data: bytes, rng: random.Random) -> bytes:
    """Change fields anywhere in an ONNX file."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception:  # an already damaged seed
        return damaged_bytes(data, rng)
    for _ in range(rng.choice((1, 1, 2, 5))):
        messages = _messages(model)
        change_field(rng.choice(messages), rng)
    return bytes(model.SerializeToString())


def _messages(root: Message) -> list[Message]:
    """All messages that have fields set; weights count once."""
    messages: list[Message] = []
    pending = [root]
    while pending and len(messages) < 50_000:
        message = pending.pop()
        messages.append(message)
        for descriptor, value in message.ListFields():
            if descriptor.type == FieldDescriptor.TYPE_MESSAGE:
                pending += value if _repeated(descriptor) else [value]
    return messages


def _repeated(descriptor: FieldDescriptor) -> bool:
    return bool(descriptor.is_repeated)


def _is_map(descriptor: FieldDescriptor) -> bool:
    kind = descriptor.message_type
    return kind is not None and bool(kind.GetOptions().map_entry)


def change_field(message: Any, rng: random.Random) -> None:
    """Change, repeat or remove one field of a message that has some."""
    fields = [entry for entry in message.ListFields() if not _is_map(entry[0])]
    if not fields:
        return
    descriptor, value = rng.choice(fields)
    if not _repeated(descriptor):
        if descriptor.type == FieldDescriptor.TYPE_MESSAGE or rng.random() < 0.15:
            message.ClearField(descriptor.name)
        else:
            _set(message, descriptor, rng)
        return
    at = rng.randrange(len(value))
    match rng.randrange(4):
        case 0:
            del value[at]
        case 1 if descriptor.type == FieldDescriptor.TYPE_MESSAGE:
            value.add().CopyFrom(value[at])
        case 1:
            value.append(value[at])
        case 2 if descriptor.type == FieldDescriptor.TYPE_MESSAGE:
            other = rng.randrange(len(value))
            value[at].CopyFrom(
                type(value[at])().__class__.FromString(value[other].SerializeToString())
            )
        case _ if descriptor.type != FieldDescriptor.TYPE_MESSAGE:
            value[at] = _scalar(descriptor, value[at], rng)


def _set(message: Any, descriptor: FieldDescriptor, rng: random.Random) -> None:
    try:
        new = _scalar(descriptor, getattr(message, descriptor.name), rng)
        setattr(message, descriptor.name, new)
    except (ValueError, TypeError):  # out of the field's range
        message.ClearField(descriptor.name)


def _scalar(descriptor: FieldDescriptor, old: Any, rng: random.Random) -> Any:
    if descriptor.type in _WHOLE:
        limit = descriptor.type in (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_ENUM)
        near = [int(old) + 1, max(0, int(old) - 1)]
        numbers = [n for n in (*_NUMBERS, *near) if not limit or -(1 << 31) <= n < 1 << 31]
        numbers = [n for n in numbers if descriptor.type != FieldDescriptor.TYPE_UINT64 or n >= 0]
        return rng.choice(numbers)
    if descriptor.type in _BROKEN:
        return rng.choice((0.0, -1.0, 1e30, float("inf"), float("nan"), old * 2))
    if descriptor.type == FieldDescriptor.TYPE_BYTES:
        return damaged_bytes(bytes(old), rng)
    return rng.choice((*_NAMES, str(old) + "_", str(old)[:-1]))


def _members(data: bytes, rng: random.Random) -> bytes:
    """Change the files of a zip archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
    except Exception:  # an already damaged seed
        return damaged_bytes(data, rng)
    for _ in range(rng.choice((1, 1, 2))):
        texts = [name for name in files if name.endswith(".json")]
        name = rng.choice(texts if texts and rng.random() < 0.8 else list(files))
        match rng.randrange(8):
            case 0:
                del files[name]
            case 1:
                files[name] = damaged_bytes(files[name], rng)
            case _ if name.endswith(".json"):
                files[name] = _values(files[name], rng)
            case _ if name.endswith(".onnx"):
                files[name] = _fields(files[name], rng)
            case _:
                files[name] = damaged_bytes(files[name], rng)
        if not files:
            break
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return target.getvalue()


def _values(text: bytes, rng: random.Random) -> bytes:
    """Change values anywhere in a JSON document."""
    try:
        document = json.loads(text)
    except ValueError:
        return damaged_bytes(text, rng)
    for _ in range(rng.choice((1, 1, 2, 4))):
        places = _places(document)
        if not places:
            break
        holder, key = rng.choice(places)
        match rng.randrange(6):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.insert(key, holder[key])
            case 2:
                other, name = rng.choice(places)
                holder[key] = json.loads(json.dumps(other[name]))
            case _:
                holder[key] = _value(holder[key], rng)
    return json.dumps(document).encode()


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a document."""
    places: list[tuple[Any, Any]] = []
    pending = [document]
    while pending and len(places) < 100_000:
        holder = pending.pop()
        items: Sequence[tuple[Any, Any]] = ()
        if isinstance(holder, dict):
            items = [*holder.items()]
        elif isinstance(holder, list):
            items = [*enumerate(holder)]
        for key, value in items:
            places.append((holder, key))
            if isinstance(value, dict | list):
                pending.append(value)
    return places


def _value(old: Any, rng: random.Random) -> Any:
    if isinstance(old, bool) or old is None:
        return rng.choice((True, False, None, 1))
    if isinstance(old, int):
        return rng.choice((*_NUMBERS, old + 1, old - 1))
    if isinstance(old, str):
        targets = ("torch.ops.aten.add_.Tensor", "torch.ops.aten.view.default", "_operator.add")
        return rng.choice((*_NAMES, *targets, old + "_", old[:-1]))
    return rng.choice((None, 0, "x", [], {}))
