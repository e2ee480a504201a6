"""Decides what a TrainingSweep does next. Pure, as the rest of the core."""
