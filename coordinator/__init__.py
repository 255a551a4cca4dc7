"""The coordinator: its state (a fold of the log), its pure decisions, its leadership.

Never imports `workers`: all that passes between the two is a record on a topic.
"""
