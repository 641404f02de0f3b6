"""The bench of a CPU as a process: a device worker under a name that operators can tell apart."""

from braid.engine.worker.process.main import main

if __name__ == "__main__":
    main()
