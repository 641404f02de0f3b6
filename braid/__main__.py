"""Console script ``braid``, also ``python -m braid``, where the server may not be installed."""

import sys


def main() -> int:
    """Run the command line; where one of its packages is missing, say what installs them."""
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
