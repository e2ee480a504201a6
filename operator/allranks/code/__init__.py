"""Ships a directory of code to the ranks: which files, the archive, and the ConfigMap that holds it on a cluster."""
