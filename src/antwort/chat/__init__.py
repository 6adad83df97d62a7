"""`antwort chat`: a conversation in the terminal, held with a server over HTTP.

What the model says goes a straight line: `client` reads frames, `answer` folds them into parts, `blocks` cuts text into
what is finished and what still grows, `writing` decides what is written for good, `screen` and `region` put it on the
terminal. `conversation` is what is sent, `session` the loop around it all.
"""
