"""The frameworks with an image."""

from allranks.frameworks import FRAMEWORKS

IMAGES = [name for name in FRAMEWORKS if name != "spmd"]  # its ranks need no framework, so any image will do
