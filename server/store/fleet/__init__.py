"""What a store offers where several nodes share it: leases, claims of jobs, a list of nodes."""
