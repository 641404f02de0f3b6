"""Entry point of a worker that only measures: it gives way from before torch is loaded."""

from engine.priority import process_gives_way


def main() -> None:
    """Be a device worker that nobody waits for."""
    process_gives_way()
    from engine.worker.main import main as work  # loads torch

    work()


if __name__ == "__main__":
    main()
