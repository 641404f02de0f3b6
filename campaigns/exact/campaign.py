"""Random requests to random networks in one precision, through a running server.

    python -m campaigns exact --requests 10000 --out FILE

For each network: register ──> requests of 1 to 4 rows, several at once ──> each answer compared.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from braid.core.precision import BF16, FP32, INT8
from braid.core.schedule import SEQUENTIAL
from braid.engine.cpu.device_key import has_integer_kernels, offered_precisions
from braid_client import Client
from campaigns.exact.calibrated import Calibrated, samples_of
from campaigns.exact.checking import NOTHING, Comparison, compared
from campaigns.exact.drawing import Drawn, draw, rows, spoiled
from campaigns.exact.precisions import Floats, Integers, Precision
from campaigns.exact.steps import Array
from campaigns.exact.writing import write_operators, write_plain, write_qdq
from tests.service.server_process import BRAID, ServerProcess

AT_ONCE = 8
WITHIN = (0.015, 0.05, 0.5)
"""Errors that calibrated networks may have, in turn until one serves; every fourth begins with the
first, for which units must stay wide."""
BATCH_SIZES = (1, 4, 8)
_IN_INTEGERS = ("", "Relu", "Relu", "Clip", "LeakyRelu")

Make = Callable[[int, Path], Precision]


def _plain(seed: int, path: Path) -> Precision:
    drawn = draw(seed)
    write_plain(drawn, path)
    return Floats.of(drawn, narrow=False)


def _narrow(seed: int, path: Path) -> Precision:
    drawn = draw(seed)
    write_plain(drawn, path)
    return Floats.of(drawn, narrow=True)


def _qdq(seed: int, path: Path) -> Precision:
    drawn, has = draw(seed, activations=_IN_INTEGERS), has_integer_kernels()
    network = Integers.of(drawn, seed, on_integers=has, relu_is_least=False)
    write_qdq(network, path)
    return network


def _operators(seed: int, path: Path) -> Precision:
    drawn, has = draw(seed, activations=("", "Relu")), has_integer_kernels()
    network = Integers.of(drawn, seed, on_integers=has, relu_is_least=True)
    write_operators(network, path)
    return network


FORMS: Mapping[str, tuple[Make, str]] = {
    "fp32": (_plain, FP32),
    "bf16": (_narrow, BF16),
    "qdq": (_qdq, FP32),
    "qoperator": (_operators, FP32),
    "int8": (_plain, INT8),  # by calibration, of which the reference takes ranges
}
"""Name -> what writes a network, and the precision that it is registered in."""


def offered(form: str) -> bool:
    """Whether this CPU computes in a form's precision."""
    return form not in (BF16, INT8) or form in offered_precisions()


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is asked of one form."""

    networks: int
    requests: int  # of each network
    planner: str = SEQUENTIAL
    first_seed: int = 0


def requests_of(precision: Precision, count: int, seed: int) -> list[Array]:
    """Rows of each request; of every twentieth, each row holds a NaN or an infinity."""
    random = np.random.default_rng(seed)
    requests = []
    for number in range(count):
        x = rows(precision.drawn, int(random.integers(1, 5)), seed * 100_003 + number)
        requests.append(spoiled(x, number) if number % 20 == 7 else x)
    return requests


def answers_of(client: Client, name: str, asked: Sequence[Array]) -> list[Mapping[str, Array]]:
    """Answers to requests, of which several are on their way at once."""

    def one(x: Array) -> Mapping[str, Array]:
        return client.infer(name, {"x": x}).outputs

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(one, asked))


def _calibrated(
    client: Client, name: str, drawn: Drawn, seed: int, register: Callable[..., Any]
) -> Calibrated:
    """Register a network by samples; its reference, with the ranges that the server tells of."""
    samples = {"x": samples_of(drawn, seed)}
    for accepted in WITHIN if seed % 4 == 0 else WITHIN[1:]:
        register(samples=samples, accepted_error=accepted)
        if all(plan.promoted for plan in client.model(name).schedules):
            schedule, _ = client.schedule(name, BATCH_SIZES[0])
            return Calibrated.of(drawn, schedule["provenance"]["quantisation"])
        client.delete(name)
    raise AssertionError(f"{name} errs by more than {accepted} on integers")


@contextmanager
def served(
    server: ServerProcess, client: Client, form: str, seed: int, folder: Path,
    planner: str = SEQUENTIAL,
) -> Iterator[tuple[str, Precision]]:  # fmt: skip
    """A registered network and its reference."""
    make, precision = FORMS[form]
    name, path = f"{form}-{seed}", folder / f"{form}-{seed}.onnx"
    reference = make(seed, path)
    if planner != SEQUENTIAL and isinstance(reference, Floats):  # OpenVINO may have won
        reference = replace(reference, by_engines=reference.narrow)
    server.import_ahead(path)
    register = partial(
        client.register, name, path,
        batch_sizes=BATCH_SIZES, planner=planner, precision=precision, wait=True,
    )  # fmt: skip
    if precision == INT8:
        reference = _calibrated(client, name, reference.drawn, seed, register)
    else:
        register()
    try:
        yield name, reference
    finally:
        client.delete(name)


def answered(
    server: ServerProcess, form: str, amount: Amount, folder: Path
) -> Iterator[Comparison]:
    """Ask random networks; what is found of each."""
    with server.client() as client:
        for seed in range(amount.first_seed, amount.first_seed + amount.networks):
            with served(server, client, form, seed, folder, amount.planner) as (name, reference):
                asked = requests_of(reference, amount.requests, seed)
                answers = answers_of(client, name, asked)
            joined = {key: np.concatenate([a[key] for a in answers]) for key in answers[0]}
            yield compared(reference, np.concatenate(asked), joined)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=10_000, help="in each form")
    parser.add_argument("--networks", type=int, default=25, help="of each form")
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--planner", default=SEQUENTIAL)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Ask networks of each form that this CPU computes."""
    per_network = -(-options.requests // options.networks)
    amount = Amount(options.networks, per_network, options.planner, options.seed)
    results, broken = {}, []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = ServerProcess(folder / "store", command=BRAID).start()
        try:
            for form in filter(offered, options.forms.split(",")):
                began, total = time.monotonic(), NOTHING
                parts = answered(server, form, amount, folder)
                for seed, part in enumerate(parts, options.seed):
                    total = total.plus(part)
                    if part.outside:
                        broken.append(f"{form}, seed {seed}: {part}")
                asked = {"networks": amount.networks, "requests": per_network * amount.networks}
                seconds = round(time.monotonic() - began, 1)
                results[form] = {**asked, **asdict(total), "seconds": seconds}
                print(form, results[form], flush=True)
        finally:
            server.end()
    return {"forms": results, "broken": broken}
