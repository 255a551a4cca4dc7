"""The scenarios of docs/scenarios.md as stories: plain text that says what is asked, what goes wrong and when, and how
it must end, with the trace of what then happens. `python -m tests.scenarios --help` tells them."""
