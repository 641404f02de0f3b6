import subprocess
import sys
from pathlib import Path

OF_FLEETS = ("braid.server.fleet", *("psycopg", "obstore", "sqlalchemy.dialects.postgresql"))
LATER = ("jinja2", "opentelemetry")
OF_OTHER_COMMANDS = ("rich", "shtab", "braid.server.cli.local.demo", "braid.server.cli.remote")

PROGRAM = """
import asyncio
import sys
from pathlib import Path
from braid.server.cli import main
main.build_parser(["serve"])
from braid.server.app.front_end import FrontEnd
from braid.server.settings import load_settings
from braid.server.store.serving_config import ServingConfig

async def make():
    front = FrontEnd(load_settings({"store": Path(sys.argv[1])}))
    front.store.put_serving_config("lenet", ServingConfig())
    front.store.close()

for start in ("with an empty store", "with a store"):
    asyncio.run(make())
print(*(name for name in sys.argv[2:] if name in sys.modules))
"""


def test_a_start_imports_nothing_of_fleets_and_other_commands(tmp_path: Path) -> None:
    names = (*OF_FLEETS, *LATER, *OF_OTHER_COMMANDS)
    command = [sys.executable, "-P", "-c", PROGRAM, str(tmp_path / "store"), *names]

    ran = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (ran.stdout, ran.returncode) == ("\n", 0), ran.stderr
