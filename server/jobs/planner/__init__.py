"""The planner as a child process, and the server's side of it."""
