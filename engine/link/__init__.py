"""The front end's link to a device worker: process, messages, shared memory. Loads no torch."""
