"""Everything for hours, with kills. `run` is the command, `load` the producers and readers in a process of
their own, `server` inspects the server, `series` keeps and draws the samples.
"""
