"""Entry point of a worker that only measures: it gives way from before torch is loaded."""

from engine.priority import process_gives_way
from engine.worker.main import main as serve_link


def main() -> None:
    """Be a device worker that nobody waits for."""
    process_gives_way()
    serve_link()


if __name__ == "__main__":
    main()
