"""`antwort chat`: a conversation in the terminal, held with a server over HTTP.

An answer passes through `client` (reads events), `answer` (folds them into parts), `markdown` (splits text into
blocks), `answer_view` (decides which lines are final) and `screen` (writes to the terminal).
`conversation` is what is sent, `session` the loop around it all.
"""
