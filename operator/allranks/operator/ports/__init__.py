"""The ports of the operator: metrics, probes and reports, in its process or in one without rights (`frontend`)."""
