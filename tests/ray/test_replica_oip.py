"""The suite of the Open Inference Protocol against a node behind Ray Serve's HAProxy.

Every method of tritonclient, every datatype, strings, streams; what is refused is in test_replica.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.ray.test_replica import OFFERS_MEMORY, replica
from tests.service.oip.conftest import model_files, stub  # noqa: F401
from tests.service.oip.test_datatypes import (  # noqa: F401
    test_classification_gives_the_largest_first,
    test_typed_contents,
)
from tests.service.oip.test_every_method import client, test_every_method_of_the_client_works  # noqa: F401
from tests.service.oip.test_strings import (  # noqa: F401
    test_a_pipeline_of_text_and_numbers_answers_as_onnxruntime,
    test_a_string_that_a_model_refuses_does_not_fail_its_neighbours,
    test_answers_longer_than_their_room_get_more,
    test_strings_of_several_callers_share_batches,
    test_strings_stay_out_of_shared_memory,
    test_the_sdk_takes_arrays_of_strings_and_gives_objects,
    test_triton_clients_send_and_take_strings,
)
from tests.service.server_process import ServerProcess, serving

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(find_spec("ray") is None, reason="pip install 'braid-serve[ray]'"),
]


@pytest.fixture(scope="module")
def oip_server(
    tmp_path_factory: pytest.TempPathFactory,
    model_files: dict[str, Path],  # noqa: F811
) -> Iterator[ServerProcess]:
    """A replica with every model of the suite."""
    server = replica(tmp_path_factory.mktemp("oip"), **OFFERS_MEMORY)
    with serving(server, model_files, "sequential"):
        yield server
