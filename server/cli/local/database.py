"""``braid database``: bring the database of a store to this version's tables."""

import argparse
import sys

from braid.core.errors import StartupError
from braid.server.cli.connection import Subparsers

FLAGS = {
    "--store": ("DIR", "folder with the database, if it is SQLite"),
    "--database": ("URL", "postgresql+psycopg://..., or sqlite:///PATH"),
    "--database-password-file": ("FILE", "the database's password in its first line"),
}


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "database",
        help="bring a store's database to this version",
        description="`braid serve` does the same at its start. Servers of the version before go on "
        "with the database.",
        epilog="Every flag can also be given as an environment variable, BRAID_DATABASE and so on.",
    )
    actions = parser.add_subparsers(dest="action", metavar="upgrade", required=True)
    upgrade = actions.add_parser("upgrade", help="create what is missing, convert what is older")
    for flag, (metavar, text) in FLAGS.items():
        upgrade.add_argument(flag, metavar=metavar, help=text)


def run(args: argparse.Namespace) -> int:
    # Imported here: no other subcommand needs what the server is made of.
    from braid.server.limits import store_database
    from braid.server.settings import load_settings
    from braid.server.store.database.opening import (
        is_shared,
        sqlite_path,
        upgrade_database,
        usual_url,
    )
    from braid.server.store.database.sqlite_file import StoredFiles
    from braid.server.store.files import StoreFolder

    names = [flag.removeprefix("--").replace("-", "_") for flag in FLAGS]
    try:
        settings = load_settings({name: getattr(args, name) for name in names})
    except StartupError as error:
        print(f"braid database: {error}", file=sys.stderr)
        return 2
    url = store_database(settings)
    folder = StoreFolder(settings.store, sqlite_path(url))
    try:
        if url is None or not is_shared(url):
            folder.open()  # no server may use it meanwhile
        files = StoredFiles(folder.root, folder.whole())
        revision = upgrade_database(url or usual_url(folder.database), files)
    finally:
        folder.close()
    print(f"the database is up to date (revision {revision})")
    return 0
