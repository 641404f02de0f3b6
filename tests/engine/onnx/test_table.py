"""The lowering table."""

import pytest
from onnx import defs

from braid.engine.onnx.families import TABLE
from braid.engine.onnx.lowering_table import NEWEST_OPSET

pytestmark = pytest.mark.skipif(
    defs.onnx_opset_version() < NEWEST_OPSET, reason="the installed onnx is older than the table"
)


@pytest.mark.parametrize("op_type", TABLE)
def test_bounds_are_forms_of_the_operator_and_the_newest_is_covered(op_type: str) -> None:
    entry = TABLE[op_type]
    forms = {
        schema.since_version
        for schema in defs.get_all_schemas_with_history()
        if schema.name == op_type and not schema.domain and schema.since_version <= NEWEST_OPSET
    }
    deprecated = {"Scatter": 11, "Upsample": 10}

    assert {entry.first, entry.last} <= forms
    assert entry.last == max(forms - {deprecated.get(op_type)})
