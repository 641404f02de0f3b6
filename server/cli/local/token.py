"""``braid token``: make a bearer token, or say how a token stands in a file."""

import argparse
import sys

from braid.server.cli.connection import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "token",
        help="make a bearer token",
        description="Prints a new token to give to a caller, and the line for the server's token "
        "file, from which the token cannot be read back.",
    )
    parser.add_argument("--hash", action="store_true", help="of the token on standard input")


def run(args: argparse.Namespace) -> int:
    # Imported here: no other subcommand needs what the server is made of.
    from braid.server.security.tokens import hashed, new_token

    if args.hash:
        print(hashed(sys.stdin.readline().strip()))
        return 0
    token = new_token()
    print(f"token: {token}")
    print(f"line:  {hashed(token)}")
    return 0
