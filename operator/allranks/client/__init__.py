"""Jobs on a cluster: what the command line, the Python interface and the web UI do with them."""
