"""What keeps objects in step: pure reconcile functions, level-triggered.

Each takes the objects as they are now and returns what should be written; nothing here reads, writes or waits. The loops
that do are `bayplan.components.controllers`.
"""
