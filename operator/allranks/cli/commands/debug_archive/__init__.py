"""The archive of `allranks debug`: everything about a job that somebody else needs to find out what went wrong."""
