from collections.abc import Mapping
from pathlib import Path

from braid.server.models.preload import prefer
from tests.server.models.test_name_turns import Names


def written(file: Path, content: bytes) -> Path:
    file.write_bytes(content)
    return file


async def named(names: Names, file: Path) -> Mapping[str, int]:
    """Labels of "net" once a start has named a file."""
    await prefer([f"net={file}"], names.server.store)
    config = names.server.store.serving_configs().get("net")
    return {} if config is None else config.labels


async def test_the_file_named_answers_from_the_first_request_on(tmp_path: Path) -> None:
    names, file = Names(tmp_path / "store"), tmp_path / "net.onnx"
    await names.start()
    await names.loader.serve_version(names.server.store.find_model("net", 1))
    try:
        assert await named(names, written(file, b"version 2")) == {}, "it answers anyway"
        assert await named(names, written(file, b"another")) == {}, (
            "it is registered by what follows"
        )
        assert await named(names, written(file, b"version 1")) == {"stable": 1}
        await names.policies.restore()
        assert names.models.number("net", "") == 1
        assert await named(names, written(file, b"version 2")) == {"stable": 2}
    finally:
        await names.server.stop()


async def test_a_new_file_takes_the_label_of_the_one_named_before(tmp_path: Path) -> None:
    names = Names(tmp_path / "store")
    await names.start()
    try:
        await names.policies.answer_with("net", 2)
        assert names.models.config("net").labels == {}, "the newest answers, and what comes after"
        await names.policies.configure("net", names.models.config("net").answering(1))
        await names.policies.answer_with("net", 2)
        assert names.models.config("net").labels == {"stable": 2}
    finally:
        await names.server.stop()
