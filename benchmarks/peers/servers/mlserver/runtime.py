"""Runtime of MLServer around ``onnxruntime.InferenceSession``."""

import asyncio

import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class OnnxModel(MLModel):  # type: ignore[misc]
    """The model at ``parameters.uri``."""

    async def load(self) -> bool:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.settings.parameters.extra["threads"]
        self.session = onnxruntime.InferenceSession(self.settings.parameters.uri, options)
        self.names = [output.name for output in self.session.get_outputs()]
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        feeds = {tensor.name: NumpyCodec.decode_input(tensor) for tensor in payload.inputs}
        arrays = await asyncio.to_thread(self.session.run, None, feeds)
        outputs = [
            NumpyCodec.encode_output(name, array)
            for name, array in zip(self.names, arrays, strict=True)
        ]
        return InferenceResponse(model_name=self.name, outputs=outputs)
