"""The model file of one version in a model repository, with the files of its external data.

VERSION/model.onnx                            the file as it is
VERSION/model.onnx, VERSION/weights.bin       a zip of both, if the model names the other one
VERSION/model.onnx/model.onnx, ...            the same, where the model is a folder
"""

from __future__ import annotations

from braid.core.errors import InvalidRequest
from braid.server.repository.folders import VersionFolder
from braid_client.external_data import ModelFile, with_its_data


def model_file(version: VersionFolder, filename: str) -> ModelFile:
    """Return the model file of a version's folder; links are followed.

    Raises:
        InvalidRequest: there is none, it is no regular file, or a file that it names is missing.
        OSError: the folder cannot be read.
    """
    model = version.path / filename
    if model.is_dir():  # a model that is a folder
        model /= filename
    for path in (version.path, model):
        if path.is_symlink() and not path.exists():
            raise InvalidRequest(f"{path.name} is a link that leads nowhere")
    if not model.exists():
        raise InvalidRequest(
            f"there is no {filename} in there; default_model_filename of config.pbtxt names another"
        )
    if not model.is_file():
        raise InvalidRequest(f"{filename} is no regular file")
    try:
        return with_its_data(model, links=True)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
