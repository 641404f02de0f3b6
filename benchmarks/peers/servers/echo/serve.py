"""The bare grpc.aio server of the benchmarks: answers with the tensors it was sent."""

import argparse
import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4]))

from benchmarks.load import echo
from braid.engine.runtime.memory import keep_freed_memory

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("--model", "--name", "--port", "--threads", "--batch-sizes", "--folder"):
        parser.add_argument(name, required=True)
    keep_freed_memory()
    asyncio.run(echo.serve(int(parser.parse_args().port), "READY"))
