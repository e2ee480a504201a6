"""The one-page report on a job, as text, HTML or JSON."""
