"""One module for each command. Client libraries are imported only when a command runs."""
