"""braid.compiler stands below the server: it can be read, loaded and used without it."""

import subprocess
import sys

ABOVE = ("braid.server", "braid.library")


def test_to_compile_loads_nothing_of_the_server_and_no_torch() -> None:
    program = "import sys, braid.compiler.compile, braid.compiler.bench; print(*sys.modules)"

    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    loaded = ran.stdout.split()
    assert "braid.engine.link.messages" in loaded
    assert [name for name in loaded if name.startswith((*ABOVE, "torch", "sqlalchemy"))] == []
