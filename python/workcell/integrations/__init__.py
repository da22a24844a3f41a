"""Workcell in other frameworks."""
