"""`allranks report`: the one-page account of a job, as text, as a page for browsers, as JSON."""
