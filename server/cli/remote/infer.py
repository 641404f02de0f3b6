"""``braid infer``: run a model once, on arrays from files or at random."""

import argparse
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from braid.server.cli.connection import Subparsers, add_address, connect
from braid.server.cli.parser import at_least_zero, seconds
from braid.server.cli.remote.register import extents
from braid.server.cli.text import duration_text, print_table, say
from braid_client import BFloat16Bits, Client, InferResult, InvalidArgument, TensorSpec
from braid_client.tensors import Array

_WORDS = ("alpha", "beta", "gamma", "delta")
_REALS = {"FP16": np.float16, "BF16": np.float32, "FP32": np.float32, "FP64": np.float64}


@dataclass(frozen=True, slots=True)
class Source:
    """Source of an input's values: a file, or else random numbers."""

    name: str  # "": of the only input; with neither path nor shape, of all that are not named
    path: Path | None = None
    shape: tuple[int, ...] | None = None  # of random numbers; None: as the model says


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("infer", help="run a model once")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--input",
        dest="inputs",
        metavar="[INPUT=]FILE.npy | [INPUT=]random[:N,N,...]",
        type=source,
        action="append",
        help="repeat for each input; INPUT may be left out if there is one; random: in the model's "
        "shape, open extents as 1, or in this; without INPUT, all inputs that are not given "
        "(default: random)",
    )
    parser.add_argument("--output", metavar="FILE.npz", type=Path, help="write the outputs here")
    parser.add_argument(
        "--version", metavar="N", help="a number or a label; default: the one that answers"
    )
    parser.add_argument(
        "--seed", metavar="N", type=at_least_zero, default=0, help="of random inputs"
    )
    parser.add_argument("--timeout", metavar="SECONDS", type=seconds, help="default: 60")
    add_address(parser)


def source(text: str) -> Source:
    """Parse ``x=FILE.npy``, ``x=random`` or ``x=random:1,3,224,224``; ``x=`` may be missing."""
    name, equals, value = text.partition("=")
    if not equals and (text.endswith(".npy") or text.partition(":")[0] == "random"):
        name, value = "", text
    elif not equals or not name or not value:
        raise argparse.ArgumentTypeError(f"not INPUT=FILE.npy or INPUT=random: {text!r}")
    if value == "random":
        return Source(name)
    if value.startswith("random:"):
        return Source(name, shape=extents(value.removeprefix("random:")))
    return Source(name, path=Path(value))


def run(args: argparse.Namespace) -> int:
    sources = args.inputs or [Source("")]
    for file in filter(None, (source.path for source in sources)):
        file.stat()  # missing ones are told before anything is asked
    with connect(args) as client:
        inputs = arrays_of(client, args, sources)
        result = client.infer(args.name, inputs, version=args.version, timeout_s=args.timeout)
    if args.output is not None:
        _save(args.output, result.outputs)
    print_outputs(result)
    return 0


def arrays_of(
    client: Client, args: argparse.Namespace, sources: Sequence[Source]
) -> dict[str, Array]:
    """Arrays by input, from files or random; the model is asked about only if need be."""
    arrays: dict[str, Array] = {}
    specs: dict[str, TensorSpec] = {}
    random = np.random.default_rng(args.seed)
    if any(not item.name or item.path is None for item in sources):
        model = client.model(args.name, version=args.version)
        specs = {spec.name: spec for spec in model.inputs}
    for item in _named(sources, args.name, tuple(specs)):
        if item.name in arrays:
            raise InvalidArgument(f"--input {item.name} is given twice")
        if item.path is not None:
            arrays[item.name] = _load(item.path)
            continue
        if item.name not in specs:
            names = ", ".join(map(str, specs.values())) or "none yet: it is not imported"
            raise InvalidArgument(f"{args.name} has no input {item.name!r}; its inputs: {names}")
        arrays[item.name] = random_array(specs[item.name], item.shape, random)
    return arrays


def _named(sources: Sequence[Source], model: str, inputs: Sequence[str]) -> Iterator[Source]:
    """Sources with the names of their inputs. InvalidArgument: one names none of several."""
    given = {source.name for source in sources}
    for source in sources:
        if source.name:
            yield source
        elif source == Source("") and inputs:
            yield from (Source(name) for name in inputs if name not in given)
        elif len(inputs) == 1:
            yield replace(source, name=inputs[0])
        else:
            names = ", ".join(inputs) or "none yet: it is not imported"
            raise InvalidArgument(f"say INPUT=...: the inputs of {model} are {names}")


def _load(path: Path) -> Array:
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise InvalidArgument(f"{path} is not a .npy file: {error}") from None
    if not isinstance(array, np.ndarray):
        raise InvalidArgument(f"{path} holds several arrays; give a .npy file with one")
    return array


def random_array(
    spec: TensorSpec, shape: tuple[int, ...] | None, random: np.random.Generator
) -> Array:
    """Make random values in the shape given, else in the spec's with open extents as 1."""
    if shape is None:
        shape = tuple(extent if isinstance(extent, int) else 1 for extent in spec.shape)
    if min(shape, default=1) < 0:
        raise InvalidArgument(f"negative extent in shape {list(shape)}")
    if spec.dtype in _REALS:
        values = random.standard_normal(shape)
        if spec.dtype == "BF16":
            return BFloat16Bits.of(values)
        return values.astype(_REALS[spec.dtype])
    if spec.dtype == "BOOL":
        return random.integers(0, 2, shape).astype(np.bool_)
    if spec.dtype == "BYTES":
        return np.array(_WORDS)[random.integers(0, len(_WORDS), shape)]
    return random.integers(0, 10, shape).astype(spec.dtype.lower())


def _save(path: Path, outputs: Mapping[str, Array]) -> None:
    """Write a .npz file; unlike ``np.savez``, outputs may have any name."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in outputs.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, _plain(array), allow_pickle=False)


def _plain(array: Array) -> Array:
    """Convert BF16 to FP32 and objects to text: .npy files hold neither."""
    if isinstance(array, BFloat16Bits):
        return array.float32()
    if array.dtype == object:
        return array.astype(str)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def print_outputs(result: InferResult) -> None:
    print_table(
        ("output", "dtype", "shape", "min", "mean", "max"),
        (_row(name, array) for name, array in result.outputs.items()),
        right=("min", "mean", "max"),
    )
    timing = result.timing
    prepared = f"preparing the shape {duration_text(timing.prepare_us)}, "
    say(
        f"queue {duration_text(timing.queue_us)}, {prepared if timing.prepare_us else ''}"
        f"compute {duration_text(timing.compute_us)}, "
        f"total {duration_text(timing.total_us)}; rode in a batch of {result.batch_size} with "
        f"{result.batch_rows} rows used; version {result.version}, plan {result.plan_id}"
    )


def _row(name: str, array: Array) -> tuple[str, ...]:
    numbers = ["-"] * 3
    if array.dtype == object:
        return (name, "str", "x".join(map(str, array.shape)) or "scalar", *numbers)
    values = _plain(array).astype(np.float64)
    if values.size:
        with np.errstate(invalid="ignore"):  # infinity less infinity, in the mean
            numbers = [f"{number:.6g}" for number in (values.min(), values.mean(), values.max())]
    dtype = "bfloat16" if isinstance(array, BFloat16Bits) else array.dtype.name
    return (name, dtype, "x".join(map(str, array.shape)) or "scalar", *numbers)
