"""Helpers that run inside pods: one file each, standard library only. `allranks inject` copies them there."""
