"""What users write: manifests, changes of them on the command line, directories of code, scripts without a manifest."""
