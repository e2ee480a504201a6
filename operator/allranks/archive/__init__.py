"""The archive: jobs, their Events and the ends of their logs, kept when the job and its pods are gone."""
