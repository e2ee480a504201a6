"""Gang scheduling: the pods of an attempt are placed together or not at all."""
