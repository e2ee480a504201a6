"""What people and programs see of a job, without I/O."""
