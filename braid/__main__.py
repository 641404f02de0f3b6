"""Console script ``braid``, also ``python -m braid``, where the server may not be installed."""

import sys


def main() -> int:
    """Run the command line; where one of its packages is missing, say what installs them."""
    if sys.argv[1:2] == ["serve"] and not {"-h", "--help"} & {*sys.argv}:
        from braid.engine.processes.fork_server import ForkServer

        ForkServer.running()  # loads its libraries while this process loads its own
    try:
        from braid.server.cli.main import main as command

        return command()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "braid":
            raise
        sys.exit(
            f"braid: {error.name} is missing, which the server and its commands need: "
            "pip install 'braid-serve[server]'"
        )


if __name__ == "__main__":
    sys.exit(main())
