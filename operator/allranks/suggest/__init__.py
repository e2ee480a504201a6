"""Parameters by Optuna, in a process of its own: neither its memory nor its time is the operator's."""
