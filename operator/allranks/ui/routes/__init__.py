"""The routes: pages for people, and REST for programs."""
