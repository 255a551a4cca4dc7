"""The workers: their pure decisions, their ledger, the Spark task loop.

Never imports `coordinator`: all that passes between the two is a record on a topic.
"""
