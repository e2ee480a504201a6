"""What went wrong, and what follows from it: root causes, hangs, stragglers, restarts. Imports facts only."""
