"""The host process of an embedded engine: `python -m flashagents_runtime.host FD`.

Runs SGLang's `Engine` (this process, a scheduler, a detokenizer) and serves it over the socket that it
inherited as file descriptor FD. Not for people to start: the application does, and owns it.
"""
