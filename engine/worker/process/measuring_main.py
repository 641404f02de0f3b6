"""Entry point of a worker that only measures: it gives way from before torch is loaded."""

from braid.engine.runtime.priority import process_gives_way
from braid.engine.worker.process.main import main as serve_link


def main() -> None:
    """Serve as ``main``, at the lowest priority."""
    process_gives_way()
    serve_link()


if __name__ == "__main__":
    main()
