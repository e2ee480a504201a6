"""Generated jobs and histories, and what must hold in every one of them."""
