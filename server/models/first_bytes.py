"""The first bytes of an upload: what cannot be a model is refused before the rest is sent."""

from braid.core.errors import InvalidUpload
from braid_client.model_files import HEAD_BYTES, why_no_model


class FirstBytes:
    """Checks the beginning of one upload, which comes in chunks."""

    def __init__(self) -> None:
        self._head = b""
        self._is_done = False

    def take(self, chunk: bytes) -> None:
        """Check the next chunk. Raises InvalidUpload: the file cannot be a model."""
        if self._is_done:
            return
        self._head += chunk[: HEAD_BYTES + 1 - len(self._head)]
        if len(self._head) > HEAD_BYTES:
            self._check(whole=False)

    def end(self) -> None:
        """End the check; an empty upload is not refused here. InvalidUpload: it is no model."""
        if self._head and not self._is_done:
            self._check(whole=True)

    def _check(self, whole: bool) -> None:
        self._is_done = True
        if reason := why_no_model(self._head, whole):
            raise InvalidUpload(reason)
