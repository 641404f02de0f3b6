"""Shapes are found on meta tensors without loading torch's compiler, which takes a second."""

from __future__ import annotations

import subprocess
import sys

SHAPES = """
import sys, torch
from braid.engine.ops.meta_kernels import leave_compiler_out
leave_compiler_out()
x = torch.empty(2, 3, device="meta")
y = torch.empty(3, dtype=torch.float64, device="meta")
for found in (x + y, (x * 2).relu(), torch.nn.functional.gelu(x - 1), torch.where(x > 0, x, y)):
    assert tuple(found.shape) == (2, 3), found
assert (x + y).dtype is torch.float64
print("torch._dynamo" in sys.modules)
"""


def test_elementwise_operators_on_meta_tensors_do_not_load_the_compiler() -> None:
    ran = subprocess.run([sys.executable, "-c", SHAPES], capture_output=True, text=True, check=True)

    assert ran.stdout.strip() == "False"
