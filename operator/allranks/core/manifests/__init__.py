"""The objects of an attempt, as manifests."""
