"""`bayplan driver`: the example driver of :mod:`bayplan.driver.example`."""

from __future__ import annotations

from bayplan.driver.example_main import driver

__all__ = ["driver"]
