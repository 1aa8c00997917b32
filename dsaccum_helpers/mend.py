"""Fixes become changes of the person's own file, comments and order kept."""
