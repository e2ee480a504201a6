"""What a job has reached and used: progress, times, cost, and whom to notify about it."""
