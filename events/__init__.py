"""The log: entity keys, typed records, codec, topics, writer, reader, table, mirror, and the embedded broker.

Everything Detent knows is a fold of its log. Nothing here decides; it reads, writes and folds.
"""
