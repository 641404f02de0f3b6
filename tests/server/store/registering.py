import asyncio
import hashlib
from dataclasses import replace
from pathlib import Path

from braid.compiler.options import ModelOptions
from braid.server.store.records import JobStatus, ModelStatus, ReceivedUpload, Registration
from braid.server.store.store import Store

MODEL = b"a model"


def receive(store: Store, content: bytes = MODEL) -> ReceivedUpload:
    async def upload() -> ReceivedUpload:
        incoming = store.receive(1000)
        await incoming.__aenter__()
        await incoming.write(content)
        return await incoming.finish(hashlib.sha256(content).hexdigest())

    return asyncio.run(upload())


def register(
    store: Store,
    name: str = "lenet",
    content: bytes = MODEL,
    options: ModelOptions | None = None,
    device_keys: str = "cpu-a",
) -> Registration:
    received = receive(store, content)
    try:
        return store.register(name, received, options or ModelOptions(), device_keys)
    finally:
        assert received.path is not None
        received.path.unlink(missing_ok=True)


def end(store: Store, made: Registration, state: JobStatus) -> None:
    if state is JobStatus.READY:
        store.set_model_state(made.model.name, made.model.version, ModelStatus.SERVING)
    store.end_job(replace(made.job, state=state, message="why"))


def import_done(store: Store, sha256: str) -> Path:
    folder = store.folder.artefact(sha256)
    folder.mkdir()
    (folder / "graph.json").write_text("{}")
    return folder
