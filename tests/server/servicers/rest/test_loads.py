import base64
import random
from typing import Any

import pytest

from braid.core.errors import InvalidRequest
from braid.core.pieces import PIECE_BYTES, finished
from braid.server.servicers.oip.wire import messages
from braid.server.servicers.rest.json_messages import read_load

FILE = "file:1/model.onnx"


def loaded(text: str) -> Any:
    """The file of a load whose JSON says this."""
    message = messages.RepositoryModelLoadRequest()
    finished(read_load({"parameters": {FILE: text}}, message))
    return message.parameters[FILE].bytes_param


@pytest.mark.parametrize("size", [0, 1, 2, 3, PIECE_BYTES * 3 // 4, PIECE_BYTES, PIECE_BYTES + 1])
def test_a_file_is_what_was_sent(size: int) -> None:
    data = random.Random(size).randbytes(size)

    assert loaded(base64.b64encode(data).decode()) == data


def test_a_large_file_is_decoded_in_pieces() -> None:
    given = {"parameters": {FILE: base64.b64encode(bytes(3 * PIECE_BYTES)).decode()}}

    assert sum(1 for _ in read_load(given, messages.RepositoryModelLoadRequest())) > 3


@pytest.mark.parametrize(
    "text",
    [
        *("***", "YQ", "YQ=", "YQ==YQ==", "=", "é", "Y Q=="),
        "A" * PIECE_BYTES + "YQ==" * 2,
        "A" * (PIECE_BYTES - 1) + "=AAAA",
        "A" * PIECE_BYTES + "A",
    ],
)
def test_what_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'{FILE}' is not base64"):
        loaded(text)
