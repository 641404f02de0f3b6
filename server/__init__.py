"""The front end: settings, persistent state, jobs, batching, RPCs, metrics, command line."""
