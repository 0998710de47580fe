"""Fixtures of several files."""

from helpers.engine_kinds import rig

__all__ = ["rig"]
