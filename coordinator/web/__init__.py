"""REST and the web page: a process that follows the log, answers from what it has read, and publishes commands. It
leads nothing, and there may be any number of it."""
