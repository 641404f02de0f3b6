"""grpc.aio around infinity-emb, which sorts texts by length and pads those of a batch.

Its model is the folder beside the ONNX file. A text is the words that ids stand for, so that its
tokenizer gives the same ids.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc


class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers ModelInfer with embeddings of norm 1."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    async def ModelInfer(self, request: pb.ModelInferRequest, context: object) -> object:
        """Embed as many texts as the request has rows; masks are taken to be all 1."""
        raw = dict(zip((i.name for i in request.inputs), request.raw_input_contents, strict=True))
        ids = np.frombuffer(raw["input_ids"], np.int64).reshape(request.inputs[0].shape)
        texts = [" ".join(f"w{word}" for word in row) for row in ids]
        embeddings, _ = await self.engine.embed(sentences=texts)
        array = np.stack(embeddings).astype(np.float32)
        answer = pb.ModelInferResponse(model_name=request.model_name)
        answer.outputs.add(name="y", datatype="FP32", shape=array.shape)
        answer.raw_output_contents.append(array.tobytes())
        return answer


async def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--model", "--name", "--port", "--threads", "--batch-sizes", "--folder"):
        parser.add_argument(name, required=True)
    given = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}  # read by the imports
    from infinity_emb import AsyncEmbeddingEngine, EngineArgs

    torch.set_num_threads(int(given.threads))
    settings = EngineArgs(
        model_name_or_path=str(Path(given.model).with_suffix("")),
        device="cpu",
        engine="torch",
        dtype="float32",
        batch_size=max(int(size) for size in given.batch_sizes.split(",")),
        bettertransformer=False,
        lengths_via_tokenize=False,
    )
    engine = AsyncEmbeddingEngine.from_args(settings)
    async with engine:
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Servicer(engine), server)
        server.add_insecure_port(f"127.0.0.1:{given.port}")
        await server.start()
        print("READY", flush=True)
        await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
