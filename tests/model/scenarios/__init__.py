"""Steps of change and expectation, written once for every world."""
