"""Generated jobs and histories, and invariants of all of them."""
