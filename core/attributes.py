"""Attributes of a unit as numbers."""

from braid.core.graph import Operator


def whole(value: object) -> int:
    assert isinstance(value, int)
    return value


def wholes(value: object) -> list[int]:
    assert isinstance(value, list)
    return [whole(item) for item in value]


def image_window(unit: Operator) -> tuple[list[int], list[int], list[int], int]:
    """Stride, padding, dilation and groups of a 2-D convolution; empty lists mean the usual."""
    attributes = unit.attributes
    return (
        wholes(attributes["stride"]) or [1, 1],
        wholes(attributes["padding"]) or [0, 0],
        wholes(attributes["dilation"]) or [1, 1],
        whole(attributes.get("groups", 1)),
    )
