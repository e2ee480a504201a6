"""Live output while a job runs."""
